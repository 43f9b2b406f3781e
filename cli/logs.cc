#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "cli/follow.h"
#include "cli/scheduler_client.h"
#include "cli/verb.h"
#include "cli/worker_logs.h"

namespace godwit::cli {
namespace {

struct Options {
  std::string scheduler, job, stream = "both";
  uint32_t rank = 0, attempt = 0;
  CLI::Option* rank_option = nullptr;
  CLI::Option* attempt_option = nullptr;
  bool follow = false, json = false;
};

int Logs(const Options& options) {
  if (options.stream != "out" && options.stream != "err" && options.stream != "both") {
    return Fail(InvalidArgumentError(
        fmt::format("logs: --stream: got '{}', allowed: out, err, both", options.stream)));
  }
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  Result<proto::JobInfo> job = client->GetJob(options.job);
  if (!job.ok()) return Fail(job.status());
  FollowOptions follow;
  follow.output = true;
  follow.prefix = true;
  follow.json = options.json;
  follow.filter.out = options.stream != "err";
  follow.filter.err = options.stream != "out";
  if (options.rank_option->count() > 0) follow.filter.rank = options.rank;
  if (options.attempt_option->count() > 0) follow.filter.attempt = options.attempt;
  if (options.follow) return FollowJob(*client, job->job_id(), follow);
  return PrintJobOutput(*job, follow);
}

}  // namespace

void AddLogs(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      AddVerb(root, "logs", "Print what a job's workers printed: [attempt epoch rank] line",
              "logs gpt -f --rank 0");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_option("JOB", options->job, "Id or name")->required();
  app->add_flag("-f,--follow", options->follow,
                "Go on until the job has ended; the exit code is then its outcome");
  options->rank_option = app->add_option("--rank", options->rank, "Of this rank only");
  options->attempt_option =
      app->add_option("--attempt", options->attempt, "Of this start of the job only (1, 2, ...)");
  app->add_option("--stream", options->stream, "out, err or both (default)");
  app->add_flag("--json", options->json, "One JSON object a line");
  verbs.push_back({app, false, [options](const Command&) { return Logs(*options); }});
}

}  // namespace godwit::cli
