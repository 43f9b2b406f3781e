#include "launcher/plain/master_child.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "base/unique_fd.h"
#include "launcher/process_tree.h"

namespace godwit {

namespace {

constexpr uint32_t kLooks = 5;  // in the stopped limit
constexpr Duration kFirstPause = std::chrono::milliseconds(10);

// Exit codes of a master that has brought its job to an end, one way or other; started again it
// would only say the same. (An abort or a crash is a signal.)
bool IsEnd(const ExitStatus& status) { return status.signal == 0; }

}  // namespace

MasterChild::MasterChild(Options options, EventLoop* loop, std::function<void(int)> ended,
                         std::function<void(const std::string&)> failed)
    : options_(std::move(options)),
      loop_(loop),
      ended_(std::move(ended)),
      failed_(std::move(failed)) {}

MasterChild::~MasterChild() { Finish(MonotonicClock::now()); }

Status MasterChild::Start() {
  const UniqueFd log(
      open(options_.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log) return ErrnoError(errno, "open(" + options_.log_path + ")");
  SpawnOptions spawn;
  spawn.argv = options_.argv;
  spawn.stdin_fd = SpawnOptions::kDevNull;
  spawn.stdout_fd = log.get();
  spawn.stderr_fd = log.get();
  // Signals of the terminal are for the agent, which tells the master what they mean.
  spawn.new_process_group = true;
  spawn.parent_death_signal = SIGKILL;
  GODWIT_ASSIGN_OR_RETURN(Child child, Spawn(spawn));
  child_ = std::move(child);
  seen_stopped_ = 0;
  ArmLook();
  return OkStatus();
}

void MasterChild::ArmLook() {
  if (look_ != 0) loop_->CancelTimer(look_);
  look_ = loop_->AddTimer(SaturatingAdd(MonotonicClock::now(), options_.stopped_limit / kLooks),
                          [this] {
                            look_ = 0;
                            Look();
                          });
}

void MasterChild::Look() {
  if (!child_ || finished_) return;
  // In looks, not in time: when all of the run was stopped, all of it goes on.
  const Result<ProcessActivity> activity = ActivityOf(child_->pid());
  seen_stopped_ = activity.ok() && activity->state == 'T' ? seen_stopped_ + 1 : 0;
  if (seen_stopped_ >= kLooks) {
    LogError("the master, process {}, has been stopped for {}: it is killed and started again",
             child_->pid(), HumanDuration(options_.stopped_limit));
    if (const Status s = child_->Signal(SIGKILL); !s.ok()) LogDebug("{}", s.message());
    return;
  }
  ArmLook();
}

void MasterChild::OnChildEnded(pid_t pid) {
  if (!child_ || child_->pid() != pid) return;
  const Result<std::optional<ExitStatus>> status = child_->TryWait();
  if (status.ok() && !*status) return;
  child_.reset();
  if (!status.ok()) {
    failed_("master: " + status.status().message());
    return;
  }
  if (finished_) return;
  const ExitStatus end = **status;
  if (IsEnd(end)) {
    ended_(end.code);
    return;
  }
  const MonotonicTime now = MonotonicClock::now();
  std::erase_if(deaths_, [&](MonotonicTime t) { return now - t > kDeathsWithin; });
  deaths_.push_back(now);
  if (deaths_.size() >= kMaxDeaths) {
    failed_("the master died " + std::to_string(kMaxDeaths) + " times within " +
            HumanDuration(kDeathsWithin) + ", last by " + end.ToString());
    return;
  }
  LogWarning("the master died: {}; it is started again", end.ToString());
  // Twice as long for each death in a row.
  const Duration pause = kFirstPause * (1 << deaths_.size());
  timer_ = loop_->AddTimer(SaturatingAdd(now, pause), [this] {
    timer_ = 0;
    if (const Status s = Start(); !s.ok()) failed_(s.message());
  });
}

void MasterChild::Finish(MonotonicTime deadline) {
  finished_ = true;
  if (timer_ != 0) loop_->CancelTimer(timer_);
  timer_ = 0;
  if (look_ != 0) loop_->CancelTimer(look_);
  look_ = 0;
  if (!child_) return;
  if (!child_->Wait(deadline).ok()) {
    if (const Status s = child_->Signal(SIGKILL); !s.ok()) LogDebug("{}", s.message());
    const Result<ExitStatus> killed =
        child_->Wait(SaturatingAdd(MonotonicClock::now(), std::chrono::seconds(1)));
    if (!killed.ok()) LogError("master: {}", killed.status().message());
  }
  child_.reset();
}

}  // namespace godwit
