#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace godwit {

// How a process ended: an exit code, or the signal that killed it.
struct ExitStatus {
  int code = 0;    // 0..255; meaningless when signal != 0
  int signal = 0;  // 0: it exited by itself
  bool core_dumped = false;

  bool success() const { return signal == 0 && code == 0; }
  // "exit code 3", "signal 9 (SIGKILL)", "signal 11 (SIGSEGV, core dumped)".
  std::string ToString() const;
  // What a shell would report: the code, or 128 + signal.
  int ShellCode() const { return signal != 0 ? 128 + signal : code; }
  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

// "SIGTERM" for 15; "signal 99" for what has no name.
std::string SignalName(int signal);

struct SpawnOptions {
  static constexpr int kInherit = -1;
  static constexpr int kDevNull = -2;

  // The program and its arguments. A program without a slash is looked for in the PATH of `env`.
  std::vector<std::string> argv;
  // "NAME=value"; nullopt: this process's environment.
  std::optional<std::vector<std::string>> env;
  std::string cwd;  // empty: this process's
  // A descriptor (borrowed), kInherit or kDevNull.
  int stdin_fd = kInherit;
  int stdout_fd = kInherit;
  int stderr_fd = kInherit;
  // Descriptors (borrowed) that the child has under the given numbers (>= 3). It has no others
  // above 2, whatever their flags say here.
  struct PassedFd {
    int source;
    int target;
  };
  std::vector<PassedFd> passed_fds;
  bool new_session = false;        // setsid
  bool new_process_group = false;  // setpgid(0, 0); implied by new_session
  // Sent to the child when the *thread* that called Spawn ends (prctl(2), PR_SET_PDEATHSIG): spawn
  // from a thread that lives as long as the process. 0: none. If the parent is already gone the
  // child ends by that signal before it runs the program.
  int parent_death_signal = 0;
  // Processors that the child may run on; empty: this process's.
  std::vector<int> cpus;
};

// A child process. Destroying it neither kills nor reaps. Not thread-safe.
class Child {
 public:
  pid_t pid() const { return pid_; }
  // Readable when the process has ended; for epoll. Owned by this object.
  int pidfd() const { return pidfd_.get(); }

  // Through the pidfd: never reaches another process that has got the number. NOT_FOUND when the
  // process has ended and was reaped.
  Status Signal(int signal) const;
  // Reaps the process; DEADLINE_EXCEEDED when it still runs at the deadline. Once it was reaped the
  // same answer comes again.
  Result<ExitStatus> Wait(MonotonicTime deadline);
  // The same at once; nullopt while it runs.
  Result<std::optional<ExitStatus>> TryWait();
  // What waitid(P_ALL) of a subreaper's loop found about this process: Wait then gives this.
  void SetReaped(ExitStatus status) { exit_ = status; }
  bool reaped() const { return exit_.has_value(); }

 private:
  friend Result<Child> Spawn(const SpawnOptions& options);
  Child(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid_;
  UniqueFd pidfd_;
  std::optional<ExitStatus> exit_;
};

// Starts a program, with default signal dispositions and an empty signal mask, without running
// fork handlers. OK only once the program has been executed: a failure before that is returned
// ("cannot execute 'x': No such file or directory", with ErrnoError's code), and leaves no child.
// REQUIRES that SIGCHLD is not ignored and that no other thread reaps unknown children meanwhile.
Result<Child> Spawn(const SpawnOptions& options);

// A pidfd of any process. NOT_FOUND when there is none with this number.
Result<UniqueFd> OpenPidfd(pid_t pid);
// NOT_FOUND when the process has ended.
Status SignalPidfd(int pidfd, int signal);

// A child of anybody that has ended.
struct Reaped {
  pid_t pid;
  ExitStatus status;
};
// Reaps one ended child (of a subreaper: also adopted ones), at once; nullopt when none has ended
// or there is none.
Result<std::optional<Reaped>> ReapAny();

// Orphaned descendants become children of this process.
Status SetChildSubreaper();

// When the process started, in clock ticks since boot (/proc/<pid>/stat, field 22): with the pid
// and BootId it names a process for ever. NOT_FOUND when there is none.
Result<uint64_t> ProcessStartTime(pid_t pid);
// A random id of this boot of the host (/proc/sys/kernel/random/boot_id).
Result<std::string> BootId();

// Blocks these signals in the calling thread (and threads it starts later) and returns a
// non-blocking signalfd that reports them. Called before other threads are started.
Result<UniqueFd> BlockSignalsToFd(std::initializer_list<int> signals);
// The next signal that such a descriptor has; nullopt when none is pending.
Result<std::optional<int>> ReadSignalFd(int fd);

}  // namespace godwit
