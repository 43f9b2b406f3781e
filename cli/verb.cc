#include "cli/verb.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdlib>

#include "base/strings.h"
#include "scheduler/scheduler.h"

namespace godwit::cli {

CLI::App* AddVerb(CLI::App& parent, const std::string& name, const std::string& what,
                  const std::string& example) {
  CLI::App* app = parent.add_subcommand(name, what);
  app->footer("Example:\n  godwit " + example);
  // Whatever is left over is reported by us, with the nearest name.
  app->allow_extras();
  return app;
}

void AddDuration(CLI::App* app, const std::string& flags, Duration* value,
                 const std::string& what) {
  app->add_option_function<std::string>(
         flags,
         [flags, value](const std::string& text) {
           Result<Duration> parsed = ParseDuration(text);
           if (!parsed.ok()) throw CLI::ValidationError(flags, parsed.status().message());
           *value = *parsed;
         },
         what)
      ->type_name("DURATION");
}

namespace {

template <typename T>
void AddWholeNumber(CLI::App* app, const std::string& flags, T* value, T min, T max,
                    const std::string& what) {
  const std::string name = flags.substr(0, flags.find(','));
  app->add_option_function<std::string>(
         flags,
         [name, value, min, max](const std::string& text) {
           const Result<uint64_t> parsed = ParseUint64(text);
           if (!parsed.ok() || *parsed < min || *parsed > max) {
             throw CLI::ValidationError(
                 name,
                 fmt::format("got '{}', allowed: a whole number from {} to {}", text, min, max));
           }
           *value = static_cast<T>(*parsed);
         },
         what)
      ->type_name("N");
}

}  // namespace

void AddCount(CLI::App* app, const std::string& flags, uint32_t* value, uint32_t min, uint32_t max,
              const std::string& what) {
  AddWholeNumber(app, flags, value, min, max, what);
}

void AddCount(CLI::App* app, const std::string& flags, uint64_t* value, uint64_t min, uint64_t max,
              const std::string& what) {
  AddWholeNumber(app, flags, value, min, max, what);
}

void AddJson(CLI::App* app, bool* json) {
  app->add_flag("--json", *json, "Print JSON instead of text for people");
}

void AddSchedulerAddress(CLI::App* app, std::string* address) {
  const char* from_environment = std::getenv("GODWIT_SCHEDULER");
  *address = from_environment != nullptr && *from_environment != '\0' ? from_environment
                                                                      : DefaultSchedulerAddress();
  app->add_option("--scheduler", *address,
                  "Where the scheduler listens, unix:PATH or HOST:PORT (default: GODWIT_SCHEDULER, "
                  "else " +
                      DefaultSchedulerAddress() + ")")
      ->type_name("ADDRESS");
}

void PrintError(std::string_view message) {
  std::string line = "godwit: ";
  for (const char c : message) line += c == '\n' ? std::string("; ") : std::string(1, c);
  line += '\n';
  // Nothing can be done about a closed stderr.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

int Fail(const Status& status) {
  PrintError(status.message());
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitError;
}

}  // namespace godwit::cli
