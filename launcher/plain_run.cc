#include "launcher/plain_run.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/file_system.h"
#include "base/log.h"
#include "base/process.h"
#include "base/real_file_system.h"
#include "base/strings.h"
#include "base/temp_dir.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "control/keeper_protocol.h"
#include "launcher/agent/agent_process.h"
#include "launcher/agent/log_tail.h"
#include "launcher/plain/console_tail.h"
#include "launcher/plain/master_child.h"
#include "launcher/run_dir.h"

namespace godwit {

namespace {

constexpr const char* kRunDirPrefix = "godwit-run";
constexpr int kExitFailed = 1;
constexpr int kExitPreempted = 75;
constexpr int kExitPreemptedLoss = 76;
constexpr int kExitConfiguration = 78;
// What the master may take beyond the time that was given to it.
constexpr Duration kShutdownSlack = std::chrono::seconds(2);
// Its last word was Leave, and it made safe what matters before that.
constexpr Duration kMasterEndLimit = std::chrono::milliseconds(200);
// A master that ended by itself told its agent before; the word may still be on the way.
constexpr Duration kLeaveLimit = std::chrono::seconds(1);
constexpr Duration kConsoleLimit = std::chrono::seconds(10);
// timeout(1) and others signal the process and then its group: that is one wish, not two.
constexpr Duration kSameSignal = std::chrono::seconds(1);
constexpr size_t kLogTailBytes = 1024;

void PrintLine(const std::string& line) { std::fprintf(stderr, "godwit run: %s\n", line.c_str()); }

// The same search that executing does, made before anything is started.
Status CheckProgram(const std::string& program) {
  const auto executable = [](const std::string& path) -> int {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return errno;
    if (!S_ISREG(info.st_mode)) return EACCES;
    return access(path.c_str(), X_OK) == 0 ? 0 : errno;
  };
  int error = ENOENT;
  if (program.find('/') != std::string::npos) {
    error = executable(program);
  } else {
    const char* const path = std::getenv("PATH");
    for (const std::string& dir : Split(path != nullptr ? path : "/usr/bin:/bin", ':')) {
      const int found = executable(JoinPath(dir.empty() ? "." : dir, program));
      if (found == 0) return OkStatus();
      if (found != ENOENT && found != ENOTDIR) error = found;
    }
  }
  return error == 0 ? OkStatus() : ErrnoError(error, "cannot execute '" + program + "'");
}

Status CheckOptions(const PlainRunOptions& options) {
  if (options.argv.empty() || options.argv[0].empty()) {
    return InvalidArgumentError("command: got none");
  }
  if (options.nproc_per_node == 0 || options.nproc_per_node > kMaxNodeSlots) {
    return InvalidArgumentError("--nproc-per-node: got " + std::to_string(options.nproc_per_node) +
                                ", allowed: 1 to " + std::to_string(kMaxNodeSlots));
  }
  return OkStatus();
}

Result<std::string> AbsolutePath(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  char here[PATH_MAX];
  if (getcwd(here, sizeof(here)) == nullptr) return ErrnoError(errno, "getcwd");
  return JoinPath(here, path);
}

Result<std::string> OwnProgram() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  if (n < 0) return ErrnoError(errno, "readlink(/proc/self/exe)");
  return std::string(path, static_cast<size_t>(n));
}

// One run, from its directories to its end.
class PlainRun {
 public:
  explicit PlainRun(const PlainRunOptions& options) : options_(options) {}
  ~PlainRun() {
    // What posts to the agent's loop goes before it.
    notifier_ = Thread();
    master_.reset();
    console_.reset();
    agent_.reset();
  }

  Status Open();
  int Run();

 private:
  Status OpenDirectories();
  std::vector<std::string> MasterCommand(const std::string& program) const;
  void OnSignal(int signal);
  void Notify(int signal);
  void OnMasterEnded(int exit_code);

  PlainRunOptions options_;
  std::optional<TempDir> own_run_dir_;
  UniqueFd run_dir_fd_;  // where its path is too long for a socket's
  std::string master_socket_;
  std::string notice_id_;
  std::unique_ptr<AgentProcess> agent_;
  std::unique_ptr<ConsoleTail> console_;
  std::unique_ptr<MasterChild> master_;
  Thread notifier_;
  std::optional<MonotonicTime> signaled_at_;  // the first
};

Status PlainRun::OpenDirectories() {
  if (options_.run_dir.empty()) {
    GODWIT_ASSIGN_OR_RETURN(TempDir own, TempDir::Create(kRunDirPrefix));
    own_run_dir_ = std::move(own);
    options_.run_dir = own_run_dir_->path();
  }
  GODWIT_ASSIGN_OR_RETURN(options_.run_dir, AbsolutePath(options_.run_dir));
  GODWIT_ASSIGN_OR_RETURN(options_.log_dir, AbsolutePath(options_.log_dir));
  GODWIT_ASSIGN_OR_RETURN(options_.dir, AbsolutePath(options_.dir));
  GODWIT_RETURN_IF_ERROR(RealFileSystem().CreateDirs(options_.run_dir));
  master_socket_ = JoinPath(options_.run_dir, "master.sock");
  if (master_socket_.size() >= sizeof(sockaddr_un::sun_path)) {
    // gRPC hands the path to the kernel as it is. This one is short, and the same for the master.
    run_dir_fd_.Reset(open(options_.run_dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!run_dir_fd_) return ErrnoError(errno, "open(" + options_.run_dir + ")");
    master_socket_ = "/proc/" + std::to_string(getpid()) + "/fd/" +
                     std::to_string(run_dir_fd_.get()) + "/master.sock";
  }
  return OkStatus();
}

std::vector<std::string> PlainRun::MasterCommand(const std::string& program) const {
  std::vector<std::string> argv = {program,
                                   "master",
                                   "--standalone",
                                   "--job",
                                   options_.run_id,
                                   "--run-dir",
                                   options_.run_dir,
                                   "--listen",
                                   "unix:" + master_socket_,
                                   "--nodes",
                                   "1",
                                   "--workers",
                                   std::to_string(options_.nproc_per_node),
                                   "--max-restarts",
                                   std::to_string(options_.max_restarts)};
  if (!options_.dir.empty()) {
    argv.push_back("--dir");
    argv.push_back(options_.dir);
  }
  argv.push_back("--");
  argv.insert(argv.end(), options_.argv.begin(), options_.argv.end());
  return argv;
}

Status PlainRun::Open() {
  GODWIT_RETURN_IF_ERROR(CheckOptions(options_));
  GODWIT_RETURN_IF_ERROR(OpenDirectories());
  if (options_.run_id.empty()) {
    options_.run_id = "run-" + std::to_string(getpid());
  }
  notice_id_ = "signal-" + std::to_string(getpid());

  AgentOptions agent;
  agent.job_id = options_.run_id;
  agent.node_id = "local";
  agent.slots = options_.nproc_per_node;
  agent.master = "unix:" + master_socket_;
  agent.run_dir = options_.run_dir;
  agent.adopt_window = Duration(0);
  agent.keeper_program = options_.keeper_program;
  AgentProcess::Extras extras;
  if (!options_.dir.empty()) {
    extras.worker_environment.push_back(std::string(kEnvDir) + "=" + options_.dir);
  }
  extras.choose_master_port = true;
  extras.inherit_stdin = true;
  extras.remove_run_dir = own_run_dir_.has_value();
  extras.log_dir = options_.log_dir;
  extras.on_signal = [this](int signal) { OnSignal(signal); };
  extras.on_child_ended = [this](pid_t pid) {
    if (master_) master_->OnChildEnded(pid);
  };
  extras.tell = PrintLine;
  GODWIT_ASSIGN_OR_RETURN(agent_, AgentProcess::Open(agent, std::move(extras)));

  GODWIT_ASSIGN_OR_RETURN(const std::string program, OwnProgram());
  master_ = std::make_unique<MasterChild>(
      MasterChild::Options{.argv = MasterCommand(program),
                           .log_path = JoinPath(options_.run_dir, "master.log")},
      &agent_->loop(), [this](int exit_code) { OnMasterEnded(exit_code); },
      [this](const std::string& why) { agent_->End(kExitFailed, why); });
  GODWIT_RETURN_IF_ERROR(master_->Start());
  // While the master starts: what runs have left whose launcher and keeper were killed at once.
  if (own_run_dir_) RemoveAbandonedIn(DirName(own_run_dir_->path()), kRunDirPrefix);
  if (!options_.quiet) {
    GODWIT_ASSIGN_OR_RETURN(console_, ConsoleTail::Start({.directory = agent_->log_dir(),
                                                          .prefix = options_.nproc_per_node > 1}));
  }
  return OkStatus();
}

void PlainRun::OnSignal(int signal) {
  const auto now = MonotonicClock::now();
  if (signaled_at_) {
    if (now - *signaled_at_ < kSameSignal) return;
    agent_->End(kExitPreemptedLoss, "got " + SignalName(signal) + " again");
    return;
  }
  signaled_at_ = now;
  PrintLine("got " + SignalName(signal) + ": saves and leaves within " +
            HumanDuration(options_.shutdown_timeout) + "; a second signal ends it at once");
  agent_->loop().AddTimer(
      SaturatingAdd(MonotonicClock::now(), options_.shutdown_timeout + kShutdownSlack), [this] {
        agent_->End(kExitPreemptedLoss,
                    "it has not left within " + HumanDuration(options_.shutdown_timeout));
      });
  Notify(signal);
}

void PlainRun::Notify(int signal) {
  // The call blocks, and the loop has better things to do. A master that is just being started
  // again is waited for.
  notifier_ = Thread("gw-notice", [this, signal,
                                   deadline = SaturatingAdd(MonotonicClock::now(),
                                                            options_.shutdown_timeout)](StopToken) {
    proto::NoticeRequest request;
    request.set_id(notice_id_);
    request.set_reason(SignalName(signal));
    request.set_time_left_ns(
        static_cast<uint64_t>(std::max<int64_t>(options_.shutdown_timeout.count(), 1)));
    const Result<proto::NoticeReply> reply =
        NotifyMaster("unix:" + master_socket_, request, deadline);
    if (!reply.ok()) {
      LogWarning("{}", reply.status().message());
    } else if (!reply->accepted()) {
      LogInfo("the notice was not accepted: {}", reply->message());
    }
  });
}

void PlainRun::OnMasterEnded(int exit_code) {
  agent_->loop().AddTimer(SaturatingAdd(MonotonicClock::now(), kLeaveLimit), [this, exit_code] {
    std::string why = "the master ended with exit code " + std::to_string(exit_code);
    const std::string tail = LogTail(JoinPath(options_.run_dir, "master.log"), kLogTailBytes);
    const std::vector<std::string> lines = Split(Trim(tail), '\n');
    // "<time> <level> [master] <message>"
    const size_t message = lines.back().find("] ");
    if (!lines.back().empty()) {
      why += ": " + lines.back().substr(message == std::string::npos ? 0 : message + 2);
    }
    // It never said Leave, so that 0 would be a guess.
    agent_->End(exit_code == 0 ? kExitFailed : exit_code, why);
  });
}

int PlainRun::Run() {
  const int code = agent_->Run();
  const std::string reason = agent_->end_reason();
  master_->Finish(SaturatingAdd(MonotonicClock::now(), kMasterEndLimit));
  if (console_) console_->Finish(SaturatingAdd(MonotonicClock::now(), kConsoleLimit));
  const bool good = code == 0 || code == kExitPreempted;
  if (code == kExitPreempted) {
    PrintLine(reason + ": left, no step lost; the same command goes on from there");
  } else if (code == kExitPreemptedLoss) {
    PrintLine(reason + ": steps since the last checkpoint are lost");
  } else if (code != 0) {
    PrintLine(reason);
  }
  if (!good && own_run_dir_) {
    if (const Status s = KeepRunDir(own_run_dir_->path()); !s.ok()) LogWarning("{}", s.message());
    PrintLine("logs are kept in " + own_run_dir_->Release());
  }
  return code;
}

}  // namespace

int RunPlain(const PlainRunOptions& options) {
  LimitMemory();
  SetLogComponent("run");
  // The console belongs to the workers; what goes on inside is asked for with GODWIT_LOG.
  if (std::getenv("GODWIT_LOG") == nullptr) SetLogLevel(LogLevel::kError);
  if (!options.argv.empty()) {
    if (const Status s = CheckProgram(options.argv[0]); !s.ok()) {
      PrintLine(s.message());
      return kExitFailed;
    }
  }
  // From here on there is something to clean up: they are taken by the loop.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  PlainRun run(options);
  if (const Status s = run.Open(); !s.ok()) {
    PrintLine(s.message());
    return kExitConfiguration;
  }
  return run.Run();
}

}  // namespace godwit
