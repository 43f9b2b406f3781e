#include "master/master.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "cli/verb.h"

namespace godwit::cli {
namespace {

int Master(MasterOptions options, const Command& command) {
  if (!options.standalone && options.scheduler.empty()) {
    PrintError("master: neither --scheduler nor --standalone given; one of them is needed");
    return kExitUsage;
  }
  if (options.standalone && command.empty()) {
    PrintError("master: --standalone needs the workers' command after '--'");
    return kExitUsage;
  }
  options.argv = command;
  return RunMaster(options);
}

}  // namespace

void AddMaster(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<MasterOptions>();
  CLI::App* app = AddVerb(root, "master", "Run a job's master (the scheduler and 'run' start it)",
                          "master --standalone --job demo --run-dir /tmp/demo --workers 2 -- "
                          "./train");
  app->add_option("--job", options->job_id, "The job's id")->required();
  app->add_option("--attempt", options->attempt, "Which start of the job (1, 2, ...)");
  app->add_option("--run-dir", options->run_dir, "For journal and socket")->required();
  app->add_option("--scheduler", options->scheduler, "The scheduler's address");
  app->add_option("--listen", options->listen, "127.0.0.1:0 or unix:PATH");
  app->add_flag("--standalone", options->standalone, "Without a scheduler");
  app->add_option("--nodes", options->nodes, "Standalone: agents to wait for");
  app->add_option("--workers", options->workers, "Standalone: world size");
  app->add_option("--max-restarts", options->max_restarts, "Standalone: restarts in place");
  app->add_option("--dir", options->directory, "Standalone: directory of checkpoints");
  app->add_option("--env", options->env, "Standalone: NAME=value for the workers; may be repeated")
      ->allow_extra_args(false);
  verbs.push_back({app, true, [options](const Command& c) { return Master(*options, c); }});
}

}  // namespace godwit::cli
