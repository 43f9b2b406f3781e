#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/job_text.h"
#include "cli/proto_json.h"
#include "cli/scheduler_client.h"
#include "cli/verb.h"

namespace godwit::cli {
namespace {

constexpr Duration kFollowWait = std::chrono::seconds(10);
constexpr Duration kSchedulerAway = std::chrono::seconds(60);

struct Options {
  std::string scheduler, job;
  uint64_t after = 0;
  bool follow = false, json = false;
};

void Print(const proto::Event& event, bool json) {
  if (json) {
    fmt::print("{}\n", ToJson(event).dump());
  } else {
    fmt::print("{}  {:<10} {:<14} {}\n", UnixMsText(event.unix_ms()),
               event.job_id().empty() ? "-" : event.job_id(), event.kind(), event.message());
  }
}

int Events(Options options) {
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  if (!options.job.empty()) {
    Result<proto::JobInfo> job = client->GetJob(options.job);
    if (!job.ok()) return Fail(job.status());
    options.job = job->job_id();
  }
  MonotonicTime answered = RealClock().Monotonic();
  while (true) {
    Result<proto::ListEventsReply> reply =
        client->ListEvents(options.job, options.after, options.follow ? kFollowWait : Duration(0));
    if (!reply.ok()) {
      const bool away = reply.status().code() == StatusCode::kUnavailable;
      if (!options.follow || !away || RealClock().Monotonic() - answered > kSchedulerAway) {
        return Fail(reply.status());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      continue;
    }
    answered = RealClock().Monotonic();
    for (const proto::Event& event : reply->events()) {
      Print(event, options.json);
      options.after = event.number();
    }
    if (std::fflush(stdout) != 0) return kExitError;  // the reader has gone
    if (reply->events().empty() && !options.follow) return kExitOk;
  }
}

}  // namespace

void AddEvents(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      AddVerb(root, "events", "List what happened, to a job or in the cluster", "events gpt -f");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_option("JOB", options->job, "Id or name (default: all)");
  AddCount(app, "--after", &options->after, 0, UINT64_MAX, "Only events with a number above this");
  app->add_flag("-f,--follow", options->follow, "Go on with new ones as they come");
  app->add_flag("--json", options->json, "One JSON object a line");
  verbs.push_back({app, false, [options](const Command&) { return Events(*options); }});
}

}  // namespace godwit::cli
