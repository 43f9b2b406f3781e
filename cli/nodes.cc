#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "cli/proto_json.h"
#include "cli/scheduler_client.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "cli/watch.h"

namespace godwit::cli {
namespace {

struct Options {
  std::string scheduler;
  bool json = false, watch = false;
};

Result<std::string> Render(SchedulerClient& client, bool json) {
  GODWIT_ASSIGN_OR_RETURN(const proto::ListNodesReply reply, client.ListNodes());
  if (json) return ToJson(reply)["nodes"].dump(2) + "\n";
  Table table({"NODE", "STATE", "SLOTS", "USED", "JOBS"});
  for (const proto::NodeInfo& node : reply.nodes()) {
    const std::vector<std::string> jobs(node.job_ids().begin(), node.job_ids().end());
    table.Row({node.name(), node.state(), fmt::format("{}", node.slots()),
               fmt::format("{}", node.used()), jobs.empty() ? "-" : Join(jobs, ", ")});
  }
  return table.Render();
}

int Nodes(const Options& options) {
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  return PrintOrWatch(options.watch, [&] { return Render(*client, options.json); });
}

}  // namespace

void AddNodes(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app = AddVerb(root, "nodes", "Show the nodes and who is on them", "nodes --json");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_flag("-w,--watch", options->watch, "Show it again every second");
  AddJson(app, &options->json);
  verbs.push_back({app, false, [options](const Command&) { return Nodes(*options); }});
}

}  // namespace godwit::cli
