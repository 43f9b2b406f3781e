#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/scheduler_client.h"
#include "cli/verb.h"

namespace godwit::cli {
namespace {

struct Options {
  std::string scheduler, job, reason = "operator";
  Duration grace = std::chrono::seconds(30);
  bool json = false;
};

int Preempt(const Options& options) {
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  Result<proto::JobInfo> job = client->GetJob(options.job);
  if (!job.ok()) return Fail(job.status());
  Result<proto::PreemptJobReply> reply =
      client->PreemptJob(job->job_id(), options.grace, options.reason);
  if (!reply.ok()) return Fail(reply.status());
  if (options.json) {
    fmt::print("{}\n",
               nlohmann::ordered_json{{"job_id", job->job_id()}, {"notice_id", reply->notice_id()}}
                   .dump());
  } else {
    fmt::print("{}\n", reply->notice_id());
  }
  return kExitOk;
}

}  // namespace

void AddPreempt(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      AddVerb(root, "preempt", "Send a notice by hand: the job saves, leaves and queues again",
              "preempt gpt --grace 30s --reason maintenance");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_option("JOB", options->job, "Id or name")->required();
  AddDuration(app, "--grace", &options->grace, "Time that the job has left (default: 30s)");
  app->add_option("--reason", options->reason, "Recorded with the notice (default: operator)");
  AddJson(app, &options->json);
  verbs.push_back({app, false, [options](const Command&) { return Preempt(*options); }});
}

}  // namespace godwit::cli
