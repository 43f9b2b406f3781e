#include "scheduler/scheduler.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "cli/verb.h"

namespace godwit::cli {

void AddScheduler(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<SchedulerOptions>();
  CLI::App* app = AddVerb(root, "scheduler",
                          "Run the cluster's scheduler; jobs outlive it, and it finds them again",
                          "scheduler --nodes 3x1 --config cluster.json --state-dir ~/godwit");
  app->add_option("--nodes", options->nodes,
                  "Virtual nodes of this machine, NODESxSLOTS (default: 1x1)");
  app->add_option("--config", options->config_path, "Quotas and defaults, a JSON file")
      ->type_name("FILE");
  app->add_option("--state-dir", options->state_dir,
                  "Store and run directories (default: $XDG_STATE_HOME/godwit/scheduler, else "
                  "~/.local/state/godwit/scheduler)")
      ->type_name("DIR");
  app->add_option(
         "--listen", options->listen,
         "unix:PATH or IP:PORT, port 0 for any (default: " + DefaultSchedulerAddress() + ")")
      ->type_name("ADDRESS");
  verbs.push_back({app, false, [options](const Command&) { return RunScheduler(*options); }});
}

}  // namespace godwit::cli
