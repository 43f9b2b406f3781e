#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/proto_json.h"
#include "cli/scheduler_client.h"
#include "cli/verb.h"

namespace godwit::cli {
namespace {

struct Options {
  std::string scheduler, job;
  bool json = false;
};

int Explain(const Options& options) {
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  Result<proto::JobInfo> job = client->GetJob(options.job);
  if (!job.ok()) return Fail(job.status());
  Result<proto::ExplainReply> reply = client->Explain(job->job_id());
  if (!reply.ok()) return Fail(reply.status());
  if (options.json) {
    fmt::print("{}\n", ToJson(*reply).dump(2));
  } else {
    fmt::print("{}{}", reply->text(), reply->text().ends_with('\n') ? "" : "\n");
  }
  return kExitOk;
}

}  // namespace

void AddExplain(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app = AddVerb(root, "explain", "Say why a job waits, or why and for whom it was moved",
                          "explain gpt");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_option("JOB", options->job, "Id or name")->required();
  AddJson(app, &options->json);
  verbs.push_back({app, false, [options](const Command&) { return Explain(*options); }});
}

}  // namespace godwit::cli
