#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace CLI {
class App;
}

namespace godwit::cli {

// Exit codes of the command itself; `run`, `master` and `agent` give those of the job instead.
inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;

// What stood after "--": the program that `run`, `submit` and `master` start.
using Command = std::vector<std::string>;

// One verb of the command line (or a verb below it: `ckpt ls`).
struct Verb {
  CLI::App* app = nullptr;  // owned by the root
  bool takes_command = false;
  // Runs with the options that were parsed; returns the exit code.
  std::function<int(const Command& command)> run;
};
using Verbs = std::vector<Verb>;

// Each adds its options to the root and itself to the list. One file each.
void AddAgent(CLI::App& root, Verbs& verbs);
void AddCkpt(CLI::App& root, Verbs& verbs);
void AddEvents(CLI::App& root, Verbs& verbs);
void AddExplain(CLI::App& root, Verbs& verbs);
void AddJobs(CLI::App& root, Verbs& verbs);
void AddLogs(CLI::App& root, Verbs& verbs);
void AddMaster(CLI::App& root, Verbs& verbs);
void AddNodes(CLI::App& root, Verbs& verbs);
void AddPreempt(CLI::App& root, Verbs& verbs);
void AddQuotas(CLI::App& root, Verbs& verbs);
void AddRun(CLI::App& root, Verbs& verbs);
void AddScheduler(CLI::App& root, Verbs& verbs);
void AddStatus(CLI::App& root, Verbs& verbs);
void AddStop(CLI::App& root, Verbs& verbs);
void AddSubmit(CLI::App& root, Verbs& verbs);

// A verb with its one line of help and its example (the text behind "godwit ").
CLI::App* AddVerb(CLI::App& parent, const std::string& name, const std::string& what,
                  const std::string& example);
// An option whose value is a duration ("30s"); a value that isn't one is a usage error.
void AddDuration(CLI::App* app, const std::string& flags, Duration* value, const std::string& what);
// An option whose value is a whole number from `min` to `max`; anything else is a usage error.
void AddCount(CLI::App* app, const std::string& flags, uint32_t* value, uint32_t min, uint32_t max,
              const std::string& what);
void AddCount(CLI::App* app, const std::string& flags, uint64_t* value, uint64_t min, uint64_t max,
              const std::string& what);
// --json.
void AddJson(CLI::App* app, bool* json);
// --scheduler; the default is GODWIT_SCHEDULER, else the default address.
void AddSchedulerAddress(CLI::App* app, std::string* address);

// One line "godwit: <message>" on stderr.
void PrintError(std::string_view message);
// The same for a status; returns kExitError, or kExitUsage for an INVALID_ARGUMENT.
int Fail(const Status& status);

}  // namespace godwit::cli
