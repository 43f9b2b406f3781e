#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "base/file_system.h"
#include "base/strings.h"
#include "cli/verb.h"
#include "launcher/agent.h"
#include "launcher/plain_run.h"

namespace godwit::cli {
namespace {

// More is a slip of the keyboard, or a way to say "always" that would hide a broken program.
constexpr uint32_t kMaxRestarts = 1'000'000;
constexpr size_t kMaxRunIdBytes = 256;

int RunJob(PlainRunOptions options, const Command& command) {
  if (command.empty()) {
    PrintError("run: no command; give it after '--': godwit run --nproc-per-node 2 -- ./train");
    return kExitUsage;
  }
  // They travel as text, to master, workers and checkpoints.
  for (const auto& [flag, value] :
       {std::pair("--run-id", &options.run_id), std::pair("--dir", &options.dir)}) {
    const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
    if (IsUtf8(*value) && std::none_of(value->begin(), value->end(), is_control)) continue;
    PrintError(std::string("run: ") + flag + ": got '" + ValidUtf8(*value) +
               "', allowed: UTF-8 text without control characters");
    return kExitUsage;
  }
  if (options.run_id.size() > kMaxRunIdBytes) {
    PrintError("run: --run-id: got " + HumanBytes(options.run_id.size()) +
               ", allowed: " + HumanBytes(kMaxRunIdBytes));
    return kExitUsage;
  }
  if (!options.dir.empty() && options.dir.front() != '/') {
    char* here = getcwd(nullptr, 0);
    if (here == nullptr) return Fail(ErrnoError(errno, "run: the working directory"));
    options.dir = JoinPath(here, options.dir);
    free(here);
  }
  options.argv = command;
  return RunPlain(options);
}

}  // namespace

void AddRun(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<PlainRunOptions>();
  CLI::App* app = AddVerb(root, "run", "Run a program with its workers on this node",
                          "run --nproc-per-node 2 --dir runs/gpt -- ./train --steps 1000");
  AddCount(app, "--nproc-per-node,--nproc_per_node", &options->nproc_per_node, 1, kMaxNodeSlots,
           "Workers (default: 1)");
  AddCount(app, "--max-restarts,--max_restarts", &options->max_restarts, 0, kMaxRestarts,
           "Restarts in place after failures (default: 0)");
  app->add_option("--dir", options->dir, "Directory of checkpoints, instead of the program's own");
  app->add_option("--run-id", options->run_id, "Name of the run");
  app->add_option("--log-dir", options->log_dir, "Keep the workers' output in this directory");
  app->add_option("--run-dir", options->run_dir,
                  "Sockets, journal and logs (default: a private directory, removed at the end)");
  AddDuration(app, "--shutdown-timeout", &options->shutdown_timeout,
              "Time to save and leave after SIGTERM or SIGINT (default: 30s)");
  app->add_flag("-q,--quiet", options->quiet, "Workers' output goes to files only");
  verbs.push_back({app, true, [options](const Command& c) { return RunJob(*options, c); }});
}

}  // namespace godwit::cli
