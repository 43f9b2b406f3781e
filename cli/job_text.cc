#include "cli/job_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/process.h"
#include "base/strings.h"

namespace godwit::cli {

std::string WorkersText(const proto::JobInfo& job) {
  const proto::JobSpec& spec = job.spec();
  const std::string wanted = spec.min_workers() == spec.max_workers()
                                 ? fmt::format("{}", spec.min_workers())
                                 : fmt::format("{}:{}", spec.min_workers(), spec.max_workers());
  if (job.workers() == 0) return "- of " + wanted;
  return fmt::format("{} of {}", job.workers(), wanted);
}

std::string StepText(const proto::JobInfo& job) {
  if (!job.has_master() || job.master().total_steps() == 0) return "-";
  return fmt::format("{}/{}", job.master().step(), job.master().total_steps());
}

std::string SinceText(const proto::JobInfo& job) {
  uint64_t since = job.enqueued_unix_ms() != 0 ? job.enqueued_unix_ms() : job.created_unix_ms();
  if (job.state() == "Running" || job.state() == "Restarting") since = job.started_unix_ms();
  if (job.ended_unix_ms() != 0) since = job.ended_unix_ms();
  if (since == 0) return "-";
  const auto now = static_cast<uint64_t>(RealClock().WallUnix() / std::chrono::milliseconds(1));
  // The scheduler's clock may be ahead of ours; whole seconds are enough for a table.
  return HumanDuration(std::chrono::seconds(now > since ? (now - since) / 1000 : 0));
}

std::string NanosText(uint64_t nanos) {
  constexpr uint64_t kMax = static_cast<uint64_t>(std::chrono::nanoseconds::max().count());
  return HumanDuration(Duration(static_cast<int64_t>(std::min(nanos, kMax))));
}

std::string UnixMsText(uint64_t unix_ms) {
  if (unix_ms == 0 || unix_ms / 1000 > 253402300799) return "-";  // the year 9999
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  return fmt::format("{:%H:%M:%S}.{:03}", fmt::localtime(seconds), unix_ms % 1000);
}

std::string CommandText(const proto::JobSpec& spec) {
  std::string text;
  for (const std::string& word : spec.argv()) {
    if (!text.empty()) text += ' ';
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyz"
                                            "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789-_./=:,+@%") == std::string::npos;
    if (plain) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

std::string NoticeText(const proto::NoticeRecord& notice) {
  std::string text = fmt::format(
      "{} ({}{}) left {}: predicted {}, parked {}, gpu free {}, committed {}, left {}; steps lost: "
      "{}; {}",
      notice.id(), notice.reason(), notice.preemptor().empty() ? "" : ", for " + notice.preemptor(),
      NanosText(notice.time_left_ns()), NanosText(notice.predicted_ns()),
      NanosText(notice.parked_ns()), NanosText(notice.released_gpu_ns()),
      NanosText(notice.committed_ns()), NanosText(notice.released_node_ns()), notice.steps_lost(),
      notice.in_time() ? "in time" : "LATE");
  if (!notice.message().empty()) text += "; " + notice.message();
  return text;
}

std::string FailureText(const proto::FailureRecord& failure) {
  const std::string how = failure.signal() != 0 ? SignalName(failure.signal())
                                                : fmt::format("exit code {}", failure.exit_code());
  std::string text = fmt::format("{} rank {} on {} at step {}: {}", UnixMsText(failure.unix_ms()),
                                 failure.rank(), failure.node_id(), failure.step(), how);
  if (!failure.message().empty()) text += ": " + failure.message();
  if (!failure.action().empty()) text += "; " + failure.action();
  return text + fmt::format("; steps redone: {}", failure.steps_redone());
}

}  // namespace godwit::cli
