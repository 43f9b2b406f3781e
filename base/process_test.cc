#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/real_file_system.h"
#include "base/strings.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "base/thread.h"
#include "base/wait_fd.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

MonotonicTime Soon() { return MonotonicClock::now() + seconds(30); }  // against hangs

std::pair<UniqueFd, UniqueFd> MakePipe() {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// All that comes until every writer has closed.
std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    EXPECT_THAT(WaitFd(fd, POLLIN, Soon()), IsOkAndHolds(true));
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n <= 0) return text;
    text.append(buffer, n);
  }
}

std::string ReadLine(int fd) {
  std::string text;
  char c;
  while (true) {
    EXPECT_THAT(WaitFd(fd, POLLIN, Soon()), IsOkAndHolds(true));
    if (read(fd, &c, 1) != 1 || c == '\n') return text;
    text += c;
  }
}

struct Output {
  std::string text;
  ExitStatus status;
};

// Runs `script` in a shell with the options given, and collects what it prints.
Output RunShell(const std::string& script, SpawnOptions options = {}) {
  auto [in, out] = MakePipe();
  options.argv = {"sh", "-c", script};
  options.stdout_fd = out.get();
  Result<Child> child = Spawn(options);
  EXPECT_OK(child);
  if (!child.ok()) return {};
  out.Reset();
  Output output;
  output.text = ReadAll(in.get());
  const Result<ExitStatus> status = child->Wait(Soon());
  EXPECT_OK(status);
  if (status.ok()) output.status = *status;
  return output;
}

TEST(SpawnTest, ReportsTheExitCode) {
  EXPECT_EQ(RunShell("exit 3").status, (ExitStatus{.code = 3}));
  EXPECT_TRUE(RunShell("true").status.success());
}

TEST(SpawnTest, ReportsTheSignalThatKilled) {
  const ExitStatus status = RunShell("kill -KILL $$").status;
  EXPECT_EQ(status.signal, SIGKILL);
  EXPECT_FALSE(status.success());
  EXPECT_EQ(status.ToString(), "signal 9 (SIGKILL)");
  EXPECT_EQ(status.ShellCode(), 137);
}

TEST(SpawnTest, TextsOfExitStatusAndSignals) {
  EXPECT_EQ(ExitStatus{.code = 3}.ToString(), "exit code 3");
  EXPECT_EQ((ExitStatus{.signal = SIGSEGV, .core_dumped = true}).ToString(),
            "signal 11 (SIGSEGV, core dumped)");
  EXPECT_EQ(SignalName(SIGTERM), "SIGTERM");
  EXPECT_EQ(SignalName(99), "signal 99");
}

TEST(SpawnTest, AMissingProgramIsNamed) {
  EXPECT_THAT(Spawn({.argv = {"/no/such/program"}}),
              StatusIs(StatusCode::kNotFound,
                       "cannot execute '/no/such/program': No such file or directory"));
  EXPECT_THAT(Spawn({.argv = {"no-such-program"}}),
              StatusIs(StatusCode::kNotFound, HasSubstr("'no-such-program'")));
}

TEST(SpawnTest, AFileThatIsNotExecutableIsNamed) {
  ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create());
  ASSERT_OK(WriteFileExclusive(RealFileSystem(), dir.File("f"), AsBytes("x"), Durability::kNone));
  EXPECT_THAT(Spawn({.argv = {dir.File("f")}}),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("Permission denied")));
}

TEST(SpawnTest, AFailureLeavesNoChild) {
  EXPECT_FALSE(Spawn({.argv = {"/no/such/program"}}).ok());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(SpawnTest, AMissingDirectoryIsNamed) {
  EXPECT_THAT(Spawn({.argv = {"true"}, .cwd = "/no/dir"}),
              StatusIs(StatusCode::kNotFound, AllOf(HasSubstr("/no/dir"), HasSubstr("'true'"))));
}

TEST(SpawnTest, NonsenseIsRefusedBeforeAnythingStarts) {
  EXPECT_THAT(Spawn({}), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Spawn({.argv = {std::string("a\0b", 3)}}), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Spawn({.argv = {"true"}, .env = {{"NOVALUE"}}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("NOVALUE")));
  EXPECT_THAT(Spawn({.argv = {"true"}, .passed_fds = {{0, 2}}}),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Spawn({.argv = {"true"}, .passed_fds = {{0, 3}, {1, 3}}}),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Spawn({.argv = {"true"}, .cpus = {-1}}), StatusIs(StatusCode::kInvalidArgument));
}

TEST(SpawnTest, TheProgramIsLookedForInTheChildsPath) {
  ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create());
  ASSERT_EQ(symlink("/bin/true", dir.File("only-here").c_str()), 0);
  ASSERT_OK_AND_ASSIGN(Child child,
                       Spawn({.argv = {"only-here"}, .env = {{"PATH=/nowhere:" + dir.path()}}}));
  EXPECT_THAT(child.Wait(Soon()), IsOkAndHolds(ExitStatus{}));
}

TEST(SpawnTest, EnvironmentAndDirectoryAreTheGivenOnes) {
  ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create());
  EXPECT_EQ(RunShell("echo $A; pwd -P; /usr/bin/env | grep -c HOME",
                     {.env = {{"A=1", "PATH=/usr/bin:/bin"}}, .cwd = dir.path()})
                .text,
            "1\n" + dir.path() + "\n0\n");
}

TEST(SpawnTest, StandardDescriptorsCanBeSwappedAndSilenced) {
  auto [in, out] = MakePipe();
  ASSERT_EQ(write(out.get(), "typed", 5), 5);
  out.Reset();
  EXPECT_EQ(
      RunShell("cat; echo lost >&2", {.stdin_fd = in.get(), .stderr_fd = SpawnOptions::kDevNull})
          .text,
      "typed");
  EXPECT_EQ(RunShell("cat", {.stdin_fd = SpawnOptions::kDevNull}).text, "");
}

TEST(SpawnTest, PassedDescriptorsGetTheirNumbersEvenWhenTheyCross) {
  auto [a_in, a_out] = MakePipe();
  auto [b_in, b_out] = MakePipe();
  // Each is to have the number of the other.
  const int a = a_out.get();
  const int b = b_out.get();
  ASSERT_TRUE(a >= 3 && b >= 3);
  RunShell(fmt::format("echo to-a >/proc/self/fd/{}; echo to-b >/proc/self/fd/{}", b, a),
           {.passed_fds = {{a, b}, {b, a}}});
  a_out.Reset();
  b_out.Reset();
  EXPECT_EQ(ReadAll(a_in.get()), "to-a\n");
  EXPECT_EQ(ReadAll(b_in.get()), "to-b\n");
}

TEST(SpawnTest, NoOtherDescriptorReachesTheChild) {
  const UniqueFd leak(open("/dev/null", O_RDONLY));  // without close-on-exec
  ASSERT_TRUE(leak.valid());
  auto [in, out] = MakePipe();
  // ls itself opens the directory: the number that it sees beside 0 to 2 and 9.
  const std::string fds = RunShell("exec ls /proc/self/fd", {.passed_fds = {{in.get(), 9}}}).text;
  EXPECT_EQ(fds, "0\n1\n2\n3\n9\n");
}

TEST(SpawnTest, ABadDescriptorIsReported) {
  EXPECT_THAT(Spawn({.argv = {"true"}, .passed_fds = {{999, 5}}}),
              StatusIs(StatusCode::kUnknown, HasSubstr("cannot pass descriptors to 'true'")));
}

TEST(SpawnTest, SignalsHaveTheirDefaultsAndNoneIsBlocked) {
  sigset_t block, before;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  sigaddset(&block, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &block, &before);
  struct sigaction ignore = {}, old_pipe;
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &old_pipe);
  // cat, since it catches nothing itself.
  const std::string status = RunShell("exec cat /proc/self/status").text;
  sigaction(SIGPIPE, &old_pipe, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (const char* field : {"SigBlk", "SigIgn", "SigCgt"}) {
    EXPECT_THAT(status, HasSubstr(std::string(field) + ":\t0000000000000000\n"));
  }
}

TEST(SpawnTest, SessionAndProcessGroup) {
  // Fields of stat behind the name: state, ppid, pgrp, session.
  const std::string script = "read -r p c s pp g n rest </proc/self/stat; echo $p $g $n";
  const auto ids = [&](SpawnOptions options) {
    return Split(Trim(RunShell(script, std::move(options)).text), ' ');
  };
  auto plain = ids({});
  ASSERT_EQ(plain.size(), 3u);
  EXPECT_EQ(plain[1], std::to_string(getpgrp()));
  EXPECT_EQ(plain[2], std::to_string(getsid(0)));
  auto group = ids({.new_process_group = true});
  EXPECT_EQ(group[1], group[0]);
  EXPECT_EQ(group[2], std::to_string(getsid(0)));
  auto session = ids({.new_session = true});
  EXPECT_EQ(session[1], session[0]);
  EXPECT_EQ(session[2], session[0]);
}

TEST(SpawnTest, RunsOnTheProcessorsGiven) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  EXPECT_EQ(RunShell("grep Cpus_allowed_list /proc/self/status", {.cpus = {cpu}}).text,
            "Cpus_allowed_list:\t" + std::to_string(cpu) + "\n");
  EXPECT_THAT(Spawn({.argv = {"true"}, .cpus = {8191}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("processors")));
}

// A process that spawns a child with a parent-death signal, prints its pid and waits to be killed.
[[noreturn]] void ParentMain(int out) {
  auto child = Spawn({.argv = {"sleep", "1000"}, .parent_death_signal = SIGKILL});
  const std::string line = std::to_string(child.ok() ? child->pid() : -1) + "\n";
  if (write(out, line.data(), line.size()) < 0) _exit(1);
  while (true) pause();
}

TEST(SpawnTest, TheParentDeathSignalEndsTheChildOfAKilledParent) {
  auto [in, out] = MakePipe();
  const pid_t parent = fork();
  if (parent == 0) ParentMain(out.get());
  out.Reset();
  const Result<int64_t> pid = ParseInt64(ReadLine(in.get()));
  ASSERT_OK(pid);
  ASSERT_OK_AND_ASSIGN(const UniqueFd pidfd, OpenPidfd(static_cast<pid_t>(*pid)));
  kill(parent, SIGKILL);
  EXPECT_EQ(waitpid(parent, nullptr, 0), parent);
  EXPECT_THAT(WaitFd(pidfd.get(), POLLIN, Soon()), IsOkAndHolds(true));
}

TEST(SpawnTest, WorksWhileOtherThreadsAllocateAndSpawn) {
  std::vector<Thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back("spawner", [](StopToken) {
      for (int i = 0; i < 20; ++i) {
        Result<Child> child = Spawn({.argv = {"true"}, .stdin_fd = SpawnOptions::kDevNull});
        ASSERT_OK(child);
        EXPECT_THAT(child->Wait(Soon()), IsOkAndHolds(ExitStatus{}));
      }
    });
  }
}

TEST(ChildTest, WaitEndsAtTheDeadlineAndSignalsReachTheChild) {
  ASSERT_OK_AND_ASSIGN(Child child, Spawn({.argv = {"sleep", "1000"}}));
  EXPECT_THAT(child.Wait(MonotonicClock::now() + std::chrono::milliseconds(2)),
              StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(child.TryWait(), IsOkAndHolds(std::nullopt));
  EXPECT_OK(child.Signal(SIGTERM));
  EXPECT_THAT(child.Wait(Soon()), IsOkAndHolds(ExitStatus{.signal = SIGTERM}));
  EXPECT_THAT(child.Wait(Soon()), IsOkAndHolds(ExitStatus{.signal = SIGTERM}));
  EXPECT_THAT(child.Signal(SIGTERM), StatusIs(StatusCode::kNotFound, HasSubstr("SIGTERM")));
}

TEST(ChildTest, ThePidfdIsReadableWhenTheChildHasEnded) {
  ASSERT_OK_AND_ASSIGN(Child child, Spawn({.argv = {"true"}}));
  EXPECT_THAT(WaitFd(child.pidfd(), POLLIN, Soon()), IsOkAndHolds(true));
  EXPECT_THAT(child.TryWait(), IsOkAndHolds(ExitStatus{}));
}

TEST(ChildTest, AChildReapedElsewhereIsReportedUnlessItsStatusIsHandedOver) {
  ASSERT_OK_AND_ASSIGN(Child child, Spawn({.argv = {"sh", "-c", "exit 4"}}));
  ASSERT_EQ(waitpid(child.pid(), nullptr, 0), child.pid());
  EXPECT_THAT(child.Wait(Soon()), StatusIs(StatusCode::kFailedPrecondition));
  child.SetReaped({.code = 4});
  EXPECT_THAT(child.Wait(Soon()), IsOkAndHolds(ExitStatus{.code = 4}));
}

// Runs in a process of its own, since a subreaper stays one.
int SubreaperMain() {
  if (!SetChildSubreaper().ok()) return 10;
  // The shell ends at once; what it started is orphaned and then ends with 7.
  auto [in, out] = MakePipe();
  auto [gate_in, gate_out] = MakePipe();
  auto shell = Spawn({.argv = {"sh", "-c", "(read line; exit 7) <&3 & echo $!"},
                      .stdout_fd = out.get(),
                      .passed_fds = {{gate_in.get(), 3}}});
  if (!shell.ok()) return 11;
  const Result<int64_t> orphan = ParseInt64(ReadLine(in.get()));
  if (!orphan.ok() || !shell->Wait(Soon()).ok()) return 12;
  Result<UniqueFd> pidfd = OpenPidfd(static_cast<pid_t>(*orphan));
  if (!pidfd.ok()) return 13;
  if (Result<std::optional<Reaped>> none = ReapAny(); !none.ok() || none->has_value()) return 14;
  gate_out.Reset();
  if (Result<bool> ended = WaitFd(pidfd->get(), POLLIN, Soon()); !ended.ok() || !*ended) return 15;
  const Result<std::optional<Reaped>> reaped = ReapAny();
  if (!reaped.ok() || !reaped->has_value()) return 16;
  if ((*reaped)->pid != *orphan || (*reaped)->status != ExitStatus{.code = 7}) return 17;
  const Result<std::optional<Reaped>> no_more = ReapAny();
  return no_more.ok() && !no_more->has_value() ? 0 : 18;
}

TEST(ReapTest, ASubreaperReapsOrphans) {
  const pid_t pid = fork();
  if (pid == 0) _exit(SubreaperMain());
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ProcessTest, PidfdsAndStartTimesOfNobodyAreNotFound) {
  ASSERT_OK_AND_ASSIGN(Child child, Spawn({.argv = {"true"}}));
  ASSERT_OK(child.Wait(Soon()));
  EXPECT_THAT(OpenPidfd(child.pid()), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(ProcessStartTime(child.pid()), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(SignalPidfd(child.pidfd(), 0), StatusIs(StatusCode::kNotFound));
}

TEST(ProcessTest, TheStartTimeTellsProcessesApartWhateverTheirName) {
  ASSERT_OK_AND_ASSIGN(const uint64_t before, ProcessStartTime(getpid()));
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  prctl(PR_SET_NAME, "a) R 1 2 (b");
  ASSERT_OK_AND_ASSIGN(const uint64_t renamed, ProcessStartTime(getpid()));
  prctl(PR_SET_NAME, name);
  EXPECT_EQ(renamed, before);
  EXPECT_GT(before, 0u);
  ASSERT_OK_AND_ASSIGN(Child child, Spawn({.argv = {"sleep", "1000"}}));
  ASSERT_OK_AND_ASSIGN(const uint64_t later, ProcessStartTime(child.pid()));
  EXPECT_GE(later, before);
  ASSERT_OK(child.Signal(SIGKILL));
  ASSERT_OK(child.Wait(Soon()));
}

TEST(ProcessTest, TheBootIdStaysTheSame) {
  ASSERT_OK_AND_ASSIGN(const std::string id, BootId());
  EXPECT_EQ(id.size(), 36u);
  EXPECT_THAT(BootId(), IsOkAndHolds(id));
}

TEST(SignalFdTest, ReportsTheSignalsItBlocks) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, BlockSignalsToFd({SIGUSR1, SIGUSR2}));
  EXPECT_THAT(ReadSignalFd(fd.get()), IsOkAndHolds(std::nullopt));
  pthread_kill(pthread_self(), SIGUSR2);
  EXPECT_THAT(ReadSignalFd(fd.get()), IsOkAndHolds(SIGUSR2));
  EXPECT_THAT(ReadSignalFd(fd.get()), IsOkAndHolds(std::nullopt));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(WaitFdTest, EndsAtTheDeadlineAndRejectsAClosedDescriptor) {
  auto [in, out] = MakePipe();
  const MonotonicTime deadline = MonotonicClock::now() + std::chrono::milliseconds(2);
  EXPECT_THAT(WaitFd(in.get(), POLLIN, deadline), IsOkAndHolds(false));
  EXPECT_GE(MonotonicClock::now(), deadline);
  EXPECT_THAT(WaitFd(in.get(), POLLIN, MonotonicTime::min()), IsOkAndHolds(false));
  out.Reset();
  EXPECT_THAT(WaitFd(in.get(), POLLIN, MonotonicTime::max()), IsOkAndHolds(true));  // hang-up
  EXPECT_FALSE(WaitFd(999, POLLIN, deadline).ok());
}

}  // namespace
}  // namespace godwit
