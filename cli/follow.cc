#include "cli/follow.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/real_file_system.h"
#include "cli/verb.h"
#include "cli/worker_logs.h"

namespace godwit::cli {
namespace {

constexpr Duration kOutputPoll = std::chrono::milliseconds(200);
constexpr Duration kStatePoll = std::chrono::seconds(2);
// A scheduler may be restarted under a running job.
constexpr Duration kSchedulerAway = std::chrono::seconds(60);
constexpr Duration kRetry = std::chrono::milliseconds(500);

constexpr int kExitStopped = 3;

void PrintLine(const LogReader::Line& line, const FollowOptions& options) {
  if (options.json) {
    const nlohmann::ordered_json object = {{"attempt", line.log->attempt},
                                           {"epoch", line.log->epoch},
                                           {"rank", line.log->rank},
                                           {"node", line.log->node},
                                           {"stream", line.log->is_stderr ? "err" : "out"},
                                           {"text", line.text}};
    fmt::print("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  std::FILE* stream = line.log->is_stderr ? stderr : stdout;
  if (options.prefix) {
    fmt::print(stream, "[a{} e{} r{}] ", line.log->attempt, line.log->epoch, line.log->rank);
  }
  fmt::print(stream, "{}\n", line.text);
}

bool HasEnded(const proto::JobInfo& job) {
  return job.state() == "Succeeded" || job.state() == "Failed" || job.state() == "Stopped";
}

}  // namespace

int PrintJobOutput(const proto::JobInfo& job, const FollowOptions& options) {
  LogReader reader(RealFileSystem(), job.run_directory(), options.filter);
  const Status read = reader.Poll(
      /*at_end=*/true, [&](const LogReader::Line& line) { PrintLine(line, options); });
  return read.ok() ? kExitOk : Fail(read);
}

int FollowJob(SchedulerClient& client, const std::string& job_id, const FollowOptions& options) {
  std::unique_ptr<LogReader> reader;
  uint64_t last_event = 0;
  MonotonicTime answered = RealClock().Monotonic();
  while (true) {
    Result<proto::JobInfo> job = client.GetJob(job_id);
    if (!job.ok()) {
      const bool away = job.status().code() == StatusCode::kUnavailable ||
                        job.status().code() == StatusCode::kDeadlineExceeded;
      if (!away || RealClock().Monotonic() - answered > kSchedulerAway) return Fail(job.status());
      std::this_thread::sleep_for(kRetry);
      continue;
    }
    answered = RealClock().Monotonic();
    // Read before the state is used: output that was there when the job ended is not missed.
    const bool ended = HasEnded(*job);
    if (options.output && !job->run_directory().empty()) {
      if (reader == nullptr) {
        reader =
            std::make_unique<LogReader>(RealFileSystem(), job->run_directory(), options.filter);
      }
      const Status read =
          reader->Poll(ended, [&](const LogReader::Line& line) { PrintLine(line, options); });
      std::fflush(stdout);
      if (!read.ok()) return Fail(read);
    }
    if (ended) {
      if (job->state() == "Succeeded") return kExitOk;
      PrintError(fmt::format("job {}: {}: {}", job_id, job->state(),
                             job->reason().empty() ? "no reason given" : job->reason()));
      return job->state() == "Stopped" ? kExitStopped : kExitError;
    }
    // Waits in the scheduler: an event of the job wakes us at once.
    Result<proto::ListEventsReply> events =
        client.ListEvents(job_id, last_event, options.output ? kOutputPoll : kStatePoll);
    if (events.ok()) {
      for (const proto::Event& event : events->events()) {
        last_event = std::max<uint64_t>(last_event, event.number());
      }
    } else {
      std::this_thread::sleep_for(kRetry);
    }
  }
}

}  // namespace godwit::cli
