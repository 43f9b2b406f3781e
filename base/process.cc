#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/strings.h"
#include "base/wait_fd.h"

extern char** environ;

namespace godwit {

namespace {

// A program on a file system that hangs must not hang us.
constexpr Duration kExecTimeout = std::chrono::seconds(60);
constexpr int kMaxCpu = 8192;

enum class Stage : int { kDescriptors, kChdir, kSession, kCpus, kDeathSignal, kExec };

// What the child reports through the pipe when it can't become the program.
struct Failure {
  Stage stage;
  int error;
};

// All that the child needs, made before the fork: after it, only async-signal-safe calls.
struct Plan {
  std::vector<const char*> argv;
  std::vector<const char*> envp;
  std::vector<const char*> candidates;  // paths to execute, tried in order
  const char* cwd = nullptr;
  std::vector<SpawnOptions::PassedFd> fds;  // standard ones too; sources are replaced in the child
  int first_free_fd = 0;                    // above all targets
  bool new_session = false;
  bool new_process_group = false;
  int parent_death_signal = 0;
  pid_t parent = 0;
  std::vector<unsigned long> cpu_mask;
  int report_fd = -1;
};

// System calls straight, below the interceptors of sanitizers and glibc's locks: the other threads
// of the parent, and what they held, don't exist in the child.
[[noreturn]] void Report(const Plan& plan, Stage stage, int error) {
  const Failure failure = {stage, error};
  syscall(SYS_write, plan.report_fd, &failure, sizeof(failure));
  syscall(SYS_exit_group, 127);
  __builtin_unreachable();
}

void CloseOthersOnExec() {
  if (syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Linux before 5.11.
  for (int fd = 3; fd < 65536; ++fd) syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
}

[[noreturn]] __attribute__((no_sanitize("thread", "address"))) void RunChild(Plan& plan) {
  // The kernel's struct sigaction, all zero: SIG_DFL. Real-time signals too, also the two that
  // glibc keeps for itself.
  const unsigned long default_action[8] = {};
  for (int s = 1; s <= 64; ++s) {
    if (s != SIGKILL && s != SIGSTOP) syscall(SYS_rt_sigaction, s, default_action, nullptr, 8);
  }
  if (plan.new_session) {
    if (syscall(SYS_setsid) < 0) Report(plan, Stage::kSession, errno);
  } else if (plan.new_process_group) {
    if (syscall(SYS_setpgid, 0, 0) < 0) Report(plan, Stage::kSession, errno);
  }
  if (plan.cwd != nullptr && syscall(SYS_chdir, plan.cwd) < 0) {
    Report(plan, Stage::kChdir, errno);
  }

  // Sources move out of the way first, so that no target overwrites one that is still needed.
  CloseOthersOnExec();
  for (SpawnOptions::PassedFd& fd : plan.fds) {
    const long moved = syscall(SYS_fcntl, fd.source, F_DUPFD_CLOEXEC, plan.first_free_fd);
    if (moved < 0) Report(plan, Stage::kDescriptors, errno);
    fd.source = static_cast<int>(moved);
  }
  for (const SpawnOptions::PassedFd& fd : plan.fds) {
    if (syscall(SYS_dup3, fd.source, fd.target, 0) < 0) {
      Report(plan, Stage::kDescriptors, errno);
    }
  }

  if (!plan.cpu_mask.empty() &&
      syscall(SYS_sched_setaffinity, 0, plan.cpu_mask.size() * sizeof(unsigned long),
              plan.cpu_mask.data()) < 0) {
    Report(plan, Stage::kCpus, errno);
  }

  const unsigned long no_signals = 0;
  if (plan.parent_death_signal != 0) {
    if (syscall(SYS_prctl, PR_SET_PDEATHSIG, plan.parent_death_signal, 0, 0, 0) < 0) {
      Report(plan, Stage::kDeathSignal, errno);
    }
    // A parent that died before prctl sends nothing any more.
    if (syscall(SYS_getppid) != plan.parent) {
      syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, nullptr, 8);
      syscall(SYS_kill, syscall(SYS_getpid), plan.parent_death_signal);
      syscall(SYS_exit_group, 128 + plan.parent_death_signal);
    }
  }
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, nullptr, 8);

  int error = ENOENT;
  for (const char* candidate : plan.candidates) {
    syscall(SYS_execve, candidate, plan.argv.data(), plan.envp.data());
    // As execvp: a program that may not be executed is worth more than one that isn't there.
    if (errno != ENOENT && errno != ENOTDIR && error == ENOENT) error = errno;
  }
  Report(plan, Stage::kExec, error);
}

bool HasNul(const std::string& s) { return s.find('\0') != std::string::npos; }

Status Validate(const SpawnOptions& options) {
  if (options.argv.empty() || options.argv[0].empty()) {
    return InvalidArgumentError("spawn: argv: got no program");
  }
  const std::string& program = options.argv[0];
  const std::string what = "spawn '" + program + "': ";
  for (const std::string& arg : options.argv) {
    if (HasNul(arg)) return InvalidArgumentError(what + "argv: an argument holds a NUL byte");
  }
  if (options.env) {
    for (const std::string& entry : *options.env) {
      if (HasNul(entry) || entry.find('=') == std::string::npos) {
        return InvalidArgumentError(what + "env: got '" + entry +
                                    "', allowed: NAME=value without NUL bytes");
      }
    }
  }
  if (HasNul(options.cwd)) return InvalidArgumentError(what + "cwd holds a NUL byte");
  std::set<int> targets;
  for (const SpawnOptions::PassedFd& fd : options.passed_fds) {
    if (fd.target < 3 || fd.source < 0 || !targets.insert(fd.target).second) {
      return InvalidArgumentError(what + "passed_fds: got " + std::to_string(fd.source) + " as " +
                                  std::to_string(fd.target) +
                                  ", allowed: an open descriptor, as a number >= 3 used once");
    }
  }
  for (const int cpu : options.cpus) {
    if (cpu < 0 || cpu >= kMaxCpu) {
      return InvalidArgumentError(what + "cpus: got " + std::to_string(cpu) + ", allowed: 0 to " +
                                  std::to_string(kMaxCpu - 1));
    }
  }
  return OkStatus();
}

std::vector<std::string> Candidates(const std::string& program,
                                    const std::optional<std::vector<std::string>>& env) {
  if (program.find('/') != std::string::npos) return {program};
  std::string path = "/usr/local/bin:/usr/bin:/bin";
  if (env) {
    for (const std::string& entry : *env) {
      if (entry.starts_with("PATH=")) path = entry.substr(5);
    }
  } else if (const char* value = std::getenv("PATH"); value != nullptr) {
    path = value;
  }
  std::vector<std::string> candidates;
  for (const std::string& dir : Split(path, ':')) {
    candidates.push_back(dir.empty() ? "./" + program : dir + "/" + program);
  }
  return candidates;
}

Status FailureStatus(const SpawnOptions& options, const Failure& failure) {
  const std::string& program = options.argv[0];
  switch (failure.stage) {
    case Stage::kDescriptors:
      return ErrnoError(failure.error, "cannot pass descriptors to '" + program + "'");
    case Stage::kChdir:
      return ErrnoError(failure.error,
                        "cannot change to directory '" + options.cwd + "' for '" + program + "'");
    case Stage::kSession:
      return ErrnoError(failure.error,
                        "cannot make a session or process group for '" + program + "'");
    case Stage::kCpus:
      return ErrnoError(failure.error, "cannot bind '" + program + "' to its processors");
    case Stage::kDeathSignal:
      return ErrnoError(failure.error, "cannot set the parent-death signal of '" + program + "'");
    case Stage::kExec:
      break;
  }
  return ErrnoError(failure.error, "cannot execute '" + program + "'");
}

ExitStatus FromSiginfo(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {.code = info.si_status & 0xff};
  return {.code = 0, .signal = info.si_status, .core_dumped = info.si_code == CLD_DUMPED};
}

// Waits for the child to execute its program, or to say why it can't.
Result<std::optional<Failure>> ReadFailure(int fd) {
  const MonotonicTime deadline = MonotonicClock::now() + kExecTimeout;
  while (true) {
    GODWIT_ASSIGN_OR_RETURN(const bool ready, WaitFd(fd, POLLIN, deadline));
    if (!ready) {
      return DeadlineExceededError("not executed within " + HumanDuration(kExecTimeout));
    }
    Failure failure;
    const ssize_t n = read(fd, &failure, sizeof(failure));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, "read(pipe)");
    // Pipes write this few bytes whole.
    if (n == sizeof(failure)) return std::optional<Failure>(failure);
    return std::optional<Failure>();
  }
}

std::string PidName(pid_t pid) { return "process " + std::to_string(pid); }

// A file of /proc, which is at most 4 KiB long.
Result<std::string> ReadProc(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoError(errno, "open(" + path + ")");
  char buffer[4096];
  ssize_t n;
  while ((n = read(fd.get(), buffer, sizeof(buffer))) < 0 && errno == EINTR) {
  }
  if (n < 0) return ErrnoError(errno, "read(" + path + ")");
  return std::string(buffer, static_cast<size_t>(n));
}

}  // namespace

std::string SignalName(int signal) {
  if (const char* name = sigabbrev_np(signal); name != nullptr) return std::string("SIG") + name;
  return "signal " + std::to_string(signal);
}

std::string ExitStatus::ToString() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  return "signal " + std::to_string(signal) + " (" + SignalName(signal) +
         (core_dumped ? ", core dumped)" : ")");
}

Result<Child> Spawn(const SpawnOptions& options) {
  GODWIT_RETURN_IF_ERROR(Validate(options));
  const std::string& program = options.argv[0];

  Plan plan;
  for (const std::string& arg : options.argv) plan.argv.push_back(arg.c_str());
  plan.argv.push_back(nullptr);
  if (options.env) {
    for (const std::string& entry : *options.env) plan.envp.push_back(entry.c_str());
  } else {
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      plan.envp.push_back(*entry);
    }
  }
  plan.envp.push_back(nullptr);
  const std::vector<std::string> candidates = Candidates(program, options.env);
  for (const std::string& candidate : candidates) plan.candidates.push_back(candidate.c_str());
  if (!options.cwd.empty()) plan.cwd = options.cwd.c_str();

  UniqueFd dev_null;
  const int standard[3] = {options.stdin_fd, options.stdout_fd, options.stderr_fd};
  plan.fds = options.passed_fds;
  for (int target = 0; target < 3; ++target) {
    int source = standard[target];
    if (source == SpawnOptions::kInherit) continue;
    if (source == SpawnOptions::kDevNull) {
      if (!dev_null) dev_null.Reset(open("/dev/null", O_RDWR | O_CLOEXEC));
      if (!dev_null) return ErrnoError(errno, "open(/dev/null)");
      source = dev_null.get();
    }
    plan.fds.push_back({source, target});
  }
  plan.first_free_fd = 3;
  for (const SpawnOptions::PassedFd& fd : plan.fds) {
    plan.first_free_fd = std::max(plan.first_free_fd, fd.target + 1);
  }
  plan.new_session = options.new_session;
  plan.new_process_group = options.new_process_group;
  plan.parent_death_signal = options.parent_death_signal;
  plan.parent = getpid();
  if (!options.cpus.empty()) {
    constexpr int kBits = CHAR_BIT * sizeof(unsigned long);
    plan.cpu_mask.resize(kMaxCpu / kBits);
    for (const int cpu : options.cpus) plan.cpu_mask[cpu / kBits] |= 1UL << (cpu % kBits);
  }

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  const UniqueFd report_in(ends[0]);
  UniqueFd report_out(ends[1]);
  // Above all targets, or one of them would overwrite it.
  UniqueFd report_high(fcntl(report_out.get(), F_DUPFD_CLOEXEC, plan.first_free_fd));
  if (!report_high) return ErrnoError(errno, "fcntl(F_DUPFD_CLOEXEC)");
  report_out.Reset();
  plan.report_fd = report_high.get();

  // No handler of ours runs in the child: it starts with all signals blocked, and opens them once
  // dispositions are the default ones. _Fork runs no fork handlers, which may take locks that
  // another thread holds (gRPC has some).
  sigset_t all, before;
  sigfillset(&all);
  GODWIT_CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
  const pid_t pid = _Fork();
  if (pid == 0) RunChild(plan);
  const int fork_error = errno;
  GODWIT_CHECK(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
  if (pid < 0) return ErrnoError(fork_error, "fork for '" + program + "'");
  report_high.Reset();

  // The number stays the child's until it's reaped, so this can't get another process.
  Result<UniqueFd> pidfd = OpenPidfd(pid);
  Result<std::optional<Failure>> failure =
      pidfd.ok() ? ReadFailure(report_in.get()) : Result<std::optional<Failure>>(pidfd.status());
  if (failure.ok() && !failure->has_value()) return Child(pid, std::move(*pidfd));
  kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!failure.ok()) return failure.status().Annotate("cannot start '" + program + "'");
  return FailureStatus(options, **failure);
}

Status Child::Signal(int signal) const {
  if (exit_) return NotFoundError(PidName(pid_) + " has ended: " + exit_->ToString());
  return SignalPidfd(pidfd_.get(), signal).Annotate(PidName(pid_));
}

Result<std::optional<ExitStatus>> Child::TryWait() {
  if (exit_) return exit_;
  siginfo_t info{};
  while (waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECHILD) {
      return FailedPreconditionError(PidName(pid_) +
                                     " is no child of this process, or was reaped elsewhere");
    }
    return ErrnoError(errno, "waitid(" + PidName(pid_) + ")");
  }
  if (info.si_pid == 0) return std::optional<ExitStatus>();
  exit_ = FromSiginfo(info);
  return exit_;
}

Result<ExitStatus> Child::Wait(MonotonicTime deadline) {
  while (true) {
    GODWIT_ASSIGN_OR_RETURN(const std::optional<ExitStatus> status, TryWait());
    if (status) return *status;
    // The pidfd becomes readable just before the process can be reaped by its parent.
    GODWIT_ASSIGN_OR_RETURN(const bool ready, WaitFd(pidfd_.get(), POLLIN, deadline));
    if (!ready) return DeadlineExceededError(PidName(pid_) + " still runs at the deadline");
  }
}

Result<UniqueFd> OpenPidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return ErrnoError(errno, "pidfd_open(" + PidName(pid) + ")");
  return fd;
}

Status SignalPidfd(int pidfd, int signal) {
  if (syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) != 0) {
    return ErrnoError(errno, "pidfd_send_signal(" + SignalName(signal) + ")");
  }
  return OkStatus();
}

Result<std::optional<Reaped>> ReapAny() {
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECHILD) return std::optional<Reaped>();
    return ErrnoError(errno, "waitid(any child)");
  }
  if (info.si_pid == 0) return std::optional<Reaped>();
  return std::optional<Reaped>(Reaped{.pid = info.si_pid, .status = FromSiginfo(info)});
}

Status SetChildSubreaper() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
    return ErrnoError(errno, "prctl(PR_SET_CHILD_SUBREAPER)");
  }
  return OkStatus();
}

Result<uint64_t> ProcessStartTime(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  GODWIT_ASSIGN_OR_RETURN(const std::string stat, ReadProc(path));
  // The program's name (field 2) may hold anything, so the rest is counted from its last ')'.
  const size_t name_end = stat.rfind(')');
  if (name_end != std::string::npos && name_end + 2 < stat.size()) {
    const std::vector<std::string> fields = Split(std::string_view(stat).substr(name_end + 2), ' ');
    if (fields.size() > 19) {
      if (Result<uint64_t> ticks = ParseUint64(fields[19]); ticks.ok()) return ticks;
    }
  }
  return InternalError(path + ": got '" + stat + "', allowed: field 22 is the start time");
}

Result<std::string> BootId() {
  GODWIT_ASSIGN_OR_RETURN(const std::string text, ReadProc("/proc/sys/kernel/random/boot_id"));
  return std::string(Trim(text));
}

Result<UniqueFd> BlockSignalsToFd(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : signals) {
    if (sigaddset(&set, s) != 0) return ErrnoError(errno, "sigaddset(" + SignalName(s) + ")");
  }
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return ErrnoError(error, "pthread_sigmask");
  }
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return ErrnoError(errno, "signalfd");
  return fd;
}

Result<std::optional<int>> ReadSignalFd(int fd) {
  signalfd_siginfo info;
  ssize_t n;
  while ((n = read(fd, &info, sizeof(info))) < 0 && errno == EINTR) {
  }
  if (n < 0 && errno == EAGAIN) return std::optional<int>();
  if (n != sizeof(info)) return ErrnoError(n < 0 ? errno : EINVAL, "read(signalfd)");
  return std::optional<int>(static_cast<int>(info.ssi_signo));
}

}  // namespace godwit
