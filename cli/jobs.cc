#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "cli/follow.h"
#include "cli/job_text.h"
#include "cli/proto_json.h"
#include "cli/scheduler_client.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "cli/watch.h"

namespace godwit::cli {
namespace {

struct Options {
  std::string scheduler;
  bool all = false, json = false, watch = false;
};

Result<std::string> Render(SchedulerClient& client, const Options& options) {
  GODWIT_ASSIGN_OR_RETURN(const proto::ListJobsReply reply, client.ListJobs(options.all));
  if (options.json) return ToJson(reply)["jobs"].dump(2) + "\n";
  if (reply.jobs().empty()) {
    return std::string(options.all ? "no jobs\n" : "no jobs (see --all for those that ended)\n");
  }
  const bool colour = UseColour();
  Table table({"ID", "NAME", "QUOTA", "STATE", "WORKERS", "STEP", "RUNS ON", "SINCE", "REASON"});
  for (const proto::JobInfo& job : reply.jobs()) {
    table.Row({job.job_id(), job.spec().name(), job.spec().quota(),
               ColouredState(job.state(), colour), WorkersText(job), StepText(job),
               job.resource().empty() ? "-" : job.resource(), SinceText(job),
               job.reason().empty() ? "-" : job.reason()});
  }
  return table.Render();
}

int Jobs(const Options& options) {
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  return PrintOrWatch(options.watch, [&] { return Render(*client, options); });
}

}  // namespace

void AddJobs(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app = AddVerb(root, "jobs", "List the jobs", "jobs --all");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_flag("-a,--all", options->all, "Also jobs that have ended");
  app->add_flag("-w,--watch", options->watch, "Show it again every second");
  AddJson(app, &options->json);
  verbs.push_back({app, false, [options](const Command&) { return Jobs(*options); }});
}

}  // namespace godwit::cli
