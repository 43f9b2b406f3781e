#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "cli/job_text.h"
#include "cli/proto_json.h"
#include "cli/scheduler_client.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "cli/watch.h"

namespace godwit::cli {
namespace {

struct Options {
  std::string scheduler, job;
  bool json = false, watch = false;
};

std::string RenderJob(const proto::JobInfo& job) {
  const proto::JobSpec& spec = job.spec();
  std::vector<std::pair<std::string, std::string>> fields;
  const auto add = [&fields](const std::string& name, const std::string& value) {
    if (!value.empty()) fields.emplace_back(name, value);
  };
  add("job", job.job_id() + (spec.name().empty() ? "" : " (" + spec.name() + ")"));
  add("state", ColouredState(job.state(), UseColour()));
  add("reason", job.reason());
  if (job.waiting_position() != 0)
    add("waits as number", fmt::format("{}", job.waiting_position()));
  add("quota", fmt::format("{}, class {}, idle {}", spec.quota(),
                           spec.job_class().empty() ? "medium" : spec.job_class(),
                           spec.idle().empty() ? "forbid" : spec.idle()));
  add("workers", WorkersText(job) + (job.workers() == 0 ? ""
                                                        : fmt::format(" ({} guaranteed, {} idle)",
                                                                      job.guaranteed_workers(),
                                                                      job.idle_workers())));
  add("runs on", job.resource());
  add("nodes", Join(std::vector<std::string>(job.nodes().begin(), job.nodes().end()), ", "));
  add("command", CommandText(spec));
  add("starts", fmt::format("{} (preempted {} times, restarted after failures {} times)",
                            job.attempt(), job.preemptions(), job.job_restarts()));
  if (job.has_master()) {
    const proto::MasterStatus& master = job.master();
    add("step", StepText(job));
    if (master.has_commit()) add("safe up to step", fmt::format("{}", master.committed_step()));
    add("checkpoints", master.directory());
    add("resumed",
        master.resumed_from().empty()
            ? ""
            : fmt::format("at step {}: {}", master.resumed_step(), master.resumed_from()));
    add("epoch, term", fmt::format("{}, {}", master.epoch(), master.term()));
    add("restarts in place",
        fmt::format("{} of {}", master.restarts_used(), master.max_restarts()));
  }
  add("run directory", job.run_directory());
  std::string text = RenderFields(fields);
  if (!job.notices().empty()) text += "notices\n";
  for (const proto::NoticeRecord& notice : job.notices()) text += "  " + NoticeText(notice) + "\n";
  if (!job.failures().empty()) text += "failures\n";
  for (const proto::FailureRecord& failure : job.failures()) {
    text += "  " + FailureText(failure) + "\n";
  }
  return text;
}

int ShowStatus(const Options& options) {
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  return PrintOrWatch(options.watch, [&]() -> Result<std::string> {
    GODWIT_ASSIGN_OR_RETURN(const proto::JobInfo job, client->GetJob(options.job));
    return options.json ? ToJson(job).dump(2) + "\n" : RenderJob(job);
  });
}

}  // namespace

void AddStatus(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app = AddVerb(root, "status", "Show what a job does, its notices and failures",
                          "status gpt --json");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_option("JOB", options->job, "Id or name")->required();
  app->add_flag("-w,--watch", options->watch, "Show it again every second");
  AddJson(app, &options->json);
  verbs.push_back({app, false, [options](const Command&) { return ShowStatus(*options); }});
}

}  // namespace godwit::cli
