#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "cli/scheduler_client.h"
#include "cli/verb.h"

namespace godwit::cli {
namespace {

struct Options {
  std::string scheduler, job, reason = "stopped by hand";
};

int Stop(const Options& options) {
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  Result<proto::JobInfo> job = client->GetJob(options.job);
  if (!job.ok()) return Fail(job.status());
  const Status stopped = client->StopJob(job->job_id(), options.reason);
  return stopped.ok() ? kExitOk : Fail(stopped);
}

}  // namespace

void AddStop(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      AddVerb(root, "stop", "End a job; a running one saves first", "stop gpt --reason done");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_option("JOB", options->job, "Id or name")->required();
  app->add_option("--reason", options->reason, "Recorded with the job");
  verbs.push_back({app, false, [options](const Command&) { return Stop(*options); }});
}

}  // namespace godwit::cli
