#include "launcher/agent.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "cli/verb.h"

namespace godwit::cli {
namespace {

int Agent(const AgentOptions& options) {
  if (options.scheduler.empty() == options.master.empty()) {
    PrintError("agent: exactly one of --scheduler and --master is needed");
    return kExitUsage;
  }
  return RunAgent(options);
}

}  // namespace

void AddAgent(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<AgentOptions>();
  CLI::App* app = AddVerb(root, "agent", "Run a node's agent (the scheduler starts it)",
                          "agent --job j-1 --attempt 1 --node node-0 --slots 1 --scheduler "
                          "unix:/run/godwit.sock --run-dir /tmp/node-0");
  app->add_option("--job", options->job_id, "The job's id")->required();
  app->add_option("--attempt", options->attempt, "Which start of the job (1, 2, ...)");
  app->add_option("--node", options->node_id, "The node's name")->required();
  app->add_option("--node-index", options->node_index, "Its place among the job's nodes, from 0");
  AddCount(app, "--slots", &options->slots, 1, kMaxNodeSlots, "Worker slots");
  app->add_option("--scheduler", options->scheduler, "Where to ask for the master");
  app->add_option("--master", options->master, "The master's address, instead of --scheduler");
  app->add_option("--run-dir", options->run_dir, "The node's directory")->required();
  AddDuration(app, "--adopt-window", &options->adopt_window,
              "How long workers outlive a killed agent (default: 60s)");
  AddDuration(app, "--master-lost-limit", &options->master_lost_limit,
              "How long to look for a lost master (default: 2m)");
  verbs.push_back({app, false, [options](const Command&) { return Agent(*options); }});
}

}  // namespace godwit::cli
