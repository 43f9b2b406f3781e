#include "scheduler/executor/local_executor.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/log.h"
#include "base/real_file_system.h"
#include "base/strings.h"
#include "base/temp_dir.h"
#include "scheduler/executor/process_scan.h"

extern char** environ;

namespace godwit {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(100);
constexpr Duration kMaxBackoff = std::chrono::seconds(5);
constexpr Duration kSweepAgain = std::chrono::milliseconds(50);
constexpr uint64_t kMaxLogBytes = 16 << 20;
// The exit code of a master or agent whose options or job can't work.
constexpr int kCantWork = 78;
constexpr char kMaster[] = "master";
constexpr char kAgent[] = "agent";

// Exit codes with which an agent has done what it was there for: told to leave (0, 1, 75, 76), or
// there is no master for it any more (76).
bool AgentDone(const ExitStatus& status) {
  return status.signal == 0 &&
         (status.code == 0 || status.code == 1 || status.code == 75 || status.code == 76);
}

Duration Backoff(uint32_t short_starts) {
  return std::min(kMaxBackoff, kFirstBackoff * (int64_t{1} << std::min(short_starts, 10u)));
}

std::string NameOf(const ProcessRecord& record) {
  return record.role == kMaster ? "the master" : "the agent on " + record.node;
}

// This process's environment with some variables set anew.
std::vector<std::string> Environment(const std::vector<std::pair<std::string, std::string>>& set) {
  std::vector<std::string> result;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view entry(*each);
    const std::string_view name = entry.substr(0, entry.find('='));
    const bool replaced = std::any_of(set.begin(), set.end(),
                                      [&](const auto& variable) { return variable.first == name; });
    if (!replaced) result.emplace_back(entry);
  }
  for (const auto& [name, value] : set) result.push_back(name + "=" + value);
  return result;
}

}  // namespace

LocalExecutor::LocalExecutor(Options options, EventLoop& loop, Clock& clock,
                             ExecutorListener& listener)
    : options_(std::move(options)), loop_(loop), clock_(clock), listener_(listener) {
  if (Result<std::string> boot_id = BootId(); boot_id.ok()) boot_id_ = *boot_id;
}

LocalExecutor::~LocalExecutor() {
  while (!attempts_.empty()) Forget(attempts_.begin()->first);
}

std::string LocalExecutor::TagOf(const std::string& job_id, uint32_t attempt) const {
  return fmt::format("{}/{}/{}", options_.tag, job_id, attempt);
}

LocalExecutor::Attempt* LocalExecutor::Find(const Key& key) {
  const auto it = attempts_.find(key);
  return it == attempts_.end() ? nullptr : it->second.get();
}

LocalExecutor::Attempt& LocalExecutor::Make(const AttemptPlan& plan) {
  auto attempt = std::make_unique<Attempt>();
  attempt->plan = plan;
  const auto add = [&](const char* role, const AttemptPlan::Node& node) {
    auto process = std::make_unique<Process>();
    process->record.job_id = plan.job_id;
    process->record.attempt = plan.attempt;
    process->record.role = role;
    process->record.node = node.name;
    process->node = node;
    attempt->processes.push_back(std::move(process));
  };
  add(kMaster, {});
  for (const AttemptPlan::Node& node : plan.nodes) add(kAgent, node);
  Attempt& result = *attempt;
  attempts_[{plan.job_id, plan.attempt}] = std::move(attempt);
  return result;
}

void LocalExecutor::Start(const AttemptPlan& plan) {
  const Key key(plan.job_id, plan.attempt);
  if (Find(key) != nullptr) return;
  Make(plan);
  for (size_t i = 0; i <= plan.nodes.size(); ++i) {
    // A listener that hears of a failure may end the attempt meanwhile.
    Attempt* attempt = Find(key);
    if (attempt == nullptr || attempt->stage != Stage::kRunning) return;
    Launch(key, *attempt->processes[i]);
  }
}

void LocalExecutor::Adopt(const AttemptPlan& plan, const std::vector<ProcessRecord>& processes) {
  const Key key(plan.job_id, plan.attempt);
  if (Find(key) != nullptr) return;
  Attempt& made = Make(plan);
  std::vector<TaggedProcess> tagged;
  if (auto found = FindTagged(kTagVariable, TagOf(plan.job_id, plan.attempt)); found.ok()) {
    tagged = std::move(*found);
  } else {
    LogWarning("{}: {}", plan.job_id, found.status().message());
  }
  for (auto& process : made.processes) {
    ProcessRecord& record = process->record;
    for (const ProcessRecord& each : processes) {
      if (each.role == record.role && each.node == record.node) record = each;
    }
    for (const TaggedProcess& each : tagged) {
      const bool recorded = record.boot_id == boot_id_ && record.pid == each.pid &&
                            record.start_time == each.start_time;
      // Started by a scheduler that was killed before it could note the process down.
      const auto has = [&](const std::string& word) {
        return std::find(each.argv.begin(), each.argv.end(), word) != each.argv.end();
      };
      const bool unrecorded = has(record.role) && has("--attempt") && has("--scheduler") &&
                              (record.role == kMaster || (has("--node") && has(record.node)));
      if (!recorded && !unrecorded) continue;
      Result<UniqueFd> pidfd = OpenPidfd(each.pid);
      const Result<uint64_t> start_time = ProcessStartTime(each.pid);
      if (!pidfd.ok() || !start_time.ok() || *start_time != each.start_time) continue;
      process->pidfd = std::move(*pidfd);
      process->running = true;
      process->started = clock_.Monotonic();
      record.pid = each.pid;
      record.start_time = each.start_time;
      record.boot_id = boot_id_;
      break;
    }
  }
  for (size_t i = 0; i < made.processes.size(); ++i) {
    Attempt* attempt = Find(key);
    if (attempt == nullptr || attempt->stage != Stage::kRunning) return;
    Process& process = *attempt->processes[i];
    if (process.running) {
      listener_.OnProcess(process.record);
      Watch(key, process);
    } else {
      Launch(key, process);
    }
  }
}

void LocalExecutor::Launch(const Key& key, Process& process) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr) return;
  process.restart = 0;
  if (const Status status = Spawn(*attempt, process); !status.ok()) {
    process.done = true;
    Lose(key, fmt::format("{} can't be started: {}", NameOf(process.record), status.message()),
         status.code() != StatusCode::kResourceExhausted &&
             status.code() != StatusCode::kUnavailable);
    return;
  }
  process.running = true;
  process.started = clock_.Monotonic();
  ++process.record.starts;
  listener_.OnProcess(process.record);
  Watch(key, process);
}

std::string LocalExecutor::Dir(const Attempt& attempt, const Process& process) const {
  const bool master = process.record.role == kMaster;
  return JoinPath(attempt.plan.run_dir, master ? std::string(kMaster) : process.record.node);
}

std::string LocalExecutor::LogNote(const Attempt& attempt, const Process& process) const {
  const std::string path = JoinPath(Dir(attempt, process), process.record.role + ".log");
  const Result<std::string> text = RealFileSystem().ReadFile(path, kMaxLogBytes);
  std::string last;
  if (text.ok()) {
    for (const std::string& line : Split(*text, '\n')) {
      if (!Trim(line).empty()) last = Trim(line);
    }
  }
  return fmt::format(" ({}all of its log: {})", last.empty() ? "" : last + "; ", path);
}

Status LocalExecutor::Spawn(const Attempt& attempt, Process& process) {
  const AttemptPlan& plan = attempt.plan;
  const bool master = process.record.role == kMaster;
  const std::string dir = Dir(attempt, process);
  const std::string tmp = JoinPath(dir, "tmp");
  const std::string runtime = JoinPath(dir, "runtime");
  for (const std::string& each : {tmp, runtime}) {
    GODWIT_RETURN_IF_ERROR(RealFileSystem().CreateDirs(each));
    if (chmod(each.c_str(), 0700) != 0) return ErrnoError(errno, "chmod(" + each + ")");
  }
  const std::string log_path = JoinPath(dir, process.record.role + ".log");
  UniqueFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return ErrnoError(errno, "open(" + log_path + ")");

  SpawnOptions options;
  options.argv = {options_.program, process.record.role,
                  "--job",          plan.job_id,
                  "--attempt",      std::to_string(plan.attempt),
                  "--scheduler",    options_.scheduler_address,
                  "--run-dir",      dir};
  if (!master) {
    for (std::string word : {std::string("--node"), process.node.name, std::string("--node-index"),
                             std::to_string(process.node.index), std::string("--slots"),
                             std::to_string(process.node.workers)}) {
      options.argv.push_back(std::move(word));
    }
    options.cwd = plan.cwd;
  }
  options.env = Environment({{"TMPDIR", tmp},
                             {"XDG_RUNTIME_DIR", runtime},
                             {kTagVariable, TagOf(plan.job_id, plan.attempt)}});
  options.stdin_fd = SpawnOptions::kDevNull;
  options.stdout_fd = log.get();
  options.stderr_fd = log.get();
  options.new_session = true;
  GODWIT_ASSIGN_OR_RETURN(Child child, godwit::Spawn(options));
  process.record.pid = child.pid();
  process.record.boot_id = boot_id_;
  // A child that has ended at once is a zombie until it's reaped here, so its start time is there.
  GODWIT_ASSIGN_OR_RETURN(process.record.start_time, ProcessStartTime(child.pid()));
  process.pidfd.Reset();
  process.child.emplace(std::move(child));
  return OkStatus();
}

void LocalExecutor::Watch(const Key& key, Process& process) {
  Process* target = &process;
  const Status status =
      loop_.AddFd(process.fd(), EPOLLIN, [this, key, target](uint32_t) { OnExit(key, *target); });
  if (!status.ok()) {
    Lose(key, fmt::format("{} can't be watched: {}", NameOf(process.record), status.message()),
         false);
  }
}

void LocalExecutor::OnExit(const Key& key, Process& process) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr || !process.running) return;
  loop_.RemoveFd(process.fd());
  std::optional<ExitStatus> status;
  if (process.child) {
    if (auto waited = process.child->Wait(clock_.Monotonic() + std::chrono::seconds(1));
        waited.ok()) {
      status = *waited;
    }
  }
  process.child.reset();
  process.pidfd.Reset();
  process.running = false;

  const std::string how = status ? status->ToString() : std::string("exit unknown");
  const bool agent_done = process.record.role == kAgent && status && AgentDone(*status);
  if (attempt->stage != Stage::kRunning || agent_done) {
    process.done = true;
  } else {
    if (status && status->signal == 0 && status->code == kCantWork) {
      process.done = true;
      Lose(key, fmt::format("{} can't work{}", NameOf(process.record), LogNote(*attempt, process)),
           true);
      return;
    }
    const bool settled = clock_.Monotonic() - process.started >= kSettled;
    process.short_starts = settled ? 1 : process.short_starts + 1;
    if (process.short_starts >= kMaxStarts) {
      process.done = true;
      Lose(
          key,
          fmt::format("{} ended {} times in a row, the last time with {}{}", NameOf(process.record),
                      process.short_starts, how, LogNote(*attempt, process)),
          false);
      return;
    }
    const Duration backoff = Backoff(process.short_starts - 1);
    listener_.OnExecutorEvent(key.first, process.record.role + "-exited",
                              fmt::format("{} ended with {}; it's started again in {}",
                                          NameOf(process.record), how, HumanDuration(backoff)));
    attempt = Find(key);
    if (attempt == nullptr || attempt->stage != Stage::kRunning) return;
    Process* target = &process;
    process.restart = loop_.AddTimer(SaturatingAdd(clock_.Monotonic(), backoff),
                                     [this, key, target] { Launch(key, *target); });
    return;
  }
  ScheduleSweep(key, Duration(0));
}

void LocalExecutor::Lose(const Key& key, const std::string& reason, bool permanent) {
  listener_.OnAttemptLost(key.first, key.second, reason, permanent);
  Terminate(key, true);
}

void LocalExecutor::SetDeadline(const std::string& job_id, uint32_t attempt_number,
                                MonotonicTime deadline) {
  ArmDeadline({job_id, attempt_number}, deadline);
}

void LocalExecutor::ArmDeadline(const Key& key, MonotonicTime deadline) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr || attempt->stage > Stage::kFinishing) return;
  if (attempt->deadline && *attempt->deadline <= deadline) return;
  attempt->deadline = deadline;
  loop_.CancelTimer(attempt->timer);
  attempt->timer = loop_.AddTimer(deadline, [this, key] {
    listener_.OnExecutorEvent(key.first, "deadline",
                              "not gone at the deadline: its processes get SIGTERM");
    // The master of a job whose time is over may still say what became of it.
    const Attempt* late = Find(key);
    if (late != nullptr) Terminate(key, late->stage != Stage::kRunning);
  });
}

void LocalExecutor::EnterStage(Attempt& attempt, Stage stage) {
  attempt.stage = stage;
  for (auto& process : attempt.processes) {
    if (process->running) continue;
    loop_.CancelTimer(process->restart);
    process->restart = 0;
    process->done = true;
  }
}

void LocalExecutor::Finish(const std::string& job_id, uint32_t attempt_number, Duration grace) {
  const Key key(job_id, attempt_number);
  Attempt* attempt = Find(key);
  if (attempt == nullptr || attempt->stage != Stage::kRunning) return;
  EnterStage(*attempt, Stage::kFinishing);
  ArmDeadline(key, SaturatingAdd(clock_.Monotonic(), grace));
  ScheduleSweep(key, Duration(0));
}

void LocalExecutor::Terminate(const Key& key, bool master_too) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr || attempt->stage >= Stage::kTerminating) return;
  EnterStage(*attempt, Stage::kTerminating);
  for (auto& process : attempt->processes) {
    if (!process->running || (process->record.role == kMaster && !master_too)) continue;
    // One that has just ended needs no signal.
    (void)SignalPidfd(process->fd(), SIGTERM).ok();
  }
  loop_.CancelTimer(attempt->timer);
  attempt->timer = loop_.AddTimer(SaturatingAdd(clock_.Monotonic(), options_.kill_after),
                                  [this, key] { Kill(key); });
  ScheduleSweep(key, Duration(0));
}

void LocalExecutor::Kill(const Key& key) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr) return;
  EnterStage(*attempt, Stage::kKilling);
  attempt->timer = 0;
  for (auto& process : attempt->processes) {
    if (process->running) (void)SignalPidfd(process->fd(), SIGKILL).ok();
  }
  ScheduleSweep(key, Duration(0));
}

void LocalExecutor::ScheduleSweep(const Key& key, Duration delay) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr) return;
  loop_.CancelTimer(attempt->sweep);
  attempt->sweep =
      loop_.AddTimer(SaturatingAdd(clock_.Monotonic(), delay), [this, key] { Sweep(key); });
}

void LocalExecutor::Sweep(const Key& key) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr) return;
  attempt->sweep = 0;
  const bool all_done = std::all_of(attempt->processes.begin(), attempt->processes.end(),
                                    [](const auto& p) { return !p->running && p->done; });
  if (!all_done && attempt->stage != Stage::kKilling) return;  // the next exit looks again
  Result<std::vector<TaggedProcess>> left = FindTagged(kTagVariable, TagOf(key.first, key.second));
  if (!left.ok()) {
    LogWarning("{}: {}", key.first, left.status().message());
    ScheduleSweep(key, std::chrono::seconds(1));
    return;
  }
  if (left->empty() && all_done) {
    for (const auto& process : attempt->processes) {
      const std::string dir = Dir(*attempt, *process);
      // The sockets are those of a keeper or master that was killed.
      for (const char* name : {"tmp", "runtime", "keeper.sock", "keeper.pid", "master.sock"}) {
        if (Status s = RemoveAll(JoinPath(dir, name)); !s.ok()) LogWarning("{}", s.message());
      }
    }
    Forget(key);
    listener_.OnAttemptGone(key.first, key.second);
    return;
  }
  if (!left->empty() && !attempt->told_leftover && attempt->stage != Stage::kKilling) {
    attempt->told_leftover = true;
    listener_.OnExecutorEvent(
        key.first, "leftover",
        fmt::format("{} outlived master and agents (first: pid {}, {}); SIGKILL ends what is left",
                    left->size() == 1 ? "1 process" : fmt::format("{} processes", left->size()),
                    left->front().pid,
                    left->front().argv.empty() ? "?" : left->front().argv.front()));
  }
  for (const TaggedProcess& each : *left) {
    const Result<UniqueFd> pidfd = OpenPidfd(each.pid);
    const Result<uint64_t> start_time = ProcessStartTime(each.pid);
    if (!pidfd.ok() || !start_time.ok() || *start_time != each.start_time) continue;
    if (Status s = SignalPidfd(pidfd->get(), SIGKILL);
        !s.ok() && s.code() != StatusCode::kNotFound) {
      LogWarning("{}: pid {}: {}", key.first, each.pid, s.message());
    }
  }
  ScheduleSweep(key, kSweepAgain);
}

void LocalExecutor::Forget(const Key& key) {
  Attempt* attempt = Find(key);
  for (auto& process : attempt->processes) {
    if (process->running) loop_.RemoveFd(process->fd());
    loop_.CancelTimer(process->restart);
  }
  loop_.CancelTimer(attempt->timer);
  loop_.CancelTimer(attempt->sweep);
  attempts_.erase(key);
}

}  // namespace godwit
