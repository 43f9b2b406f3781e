#include "launcher/agent/agent_process.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/file_system.h"
#include "base/log.h"
#include "base/real_file_system.h"
#include "base/strings.h"
#include "launcher/process_tree.h"
#include "launcher/run_dir.h"

extern char** environ;

namespace godwit {

namespace {

constexpr Duration kOrphanLook = std::chrono::milliseconds(5);
constexpr Duration kOrphanLimit = std::chrono::seconds(2);
// A little more than a keeper takes at most to end (KeeperCore::kEndLimit).
constexpr Duration kKeeperEndLimit = std::chrono::seconds(6);
constexpr Duration kLastWords = std::chrono::milliseconds(200);
// A keeper that dies again and again is a fault of this host, not of the job.
constexpr size_t kKeeperStarts = 5;
constexpr Duration kKeeperStartsWithin = std::chrono::seconds(60);

Status CheckOptions(const AgentOptions& options) {
  if (options.job_id.empty()) return InvalidArgumentError("agent: job: got no id");
  if (options.slots == 0 || options.slots > kMaxNodeSlots) {
    return InvalidArgumentError("agent: slots: got " + std::to_string(options.slots) +
                                ", allowed: 1 to " + std::to_string(kMaxNodeSlots));
  }
  if (options.scheduler.empty() == options.master.empty()) {
    return InvalidArgumentError("agent: allowed: the address of a scheduler, or of a master; got " +
                                std::string(options.master.empty() ? "neither" : "both"));
  }
  if (options.run_dir.empty() || options.run_dir[0] != '/') {
    return InvalidArgumentError("agent: run-dir: got '" + options.run_dir +
                                "', allowed: an absolute path");
  }
  return OkStatus();
}

Result<std::string> WorkingDirectory() {
  char path[PATH_MAX];
  if (getcwd(path, sizeof(path)) == nullptr) return ErrnoError(errno, "getcwd");
  return std::string(path);
}

std::vector<std::string> Environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

}  // namespace

void LimitMemory() {
  // Two arenas serve our few threads; the default of eight per core is never given back.
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

AgentProcess::AgentProcess(const AgentOptions& options, Extras extras)
    : options_(options), extras_(std::move(extras)) {}

AgentProcess::~AgentProcess() {
  // Threads that post to the loop end before it does.
  persister_.reset();
  master_.reset();
  node_.reset();
  keeper_.reset();
}

Result<std::unique_ptr<AgentProcess>> AgentProcess::Open(const AgentOptions& options,
                                                         Extras extras) {
  GODWIT_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<AgentProcess> agent(new AgentProcess(options, std::move(extras)));
  GODWIT_RETURN_IF_ERROR(agent->Init());
  return agent;
}

Status AgentProcess::Init() {
  log_dir_ = extras_.log_dir.empty() ? JoinPath(options_.run_dir, "workers") : extras_.log_dir;
  FileSystem& fs = RealFileSystem();
  GODWIT_RETURN_IF_ERROR(fs.CreateDirs(options_.run_dir));
  GODWIT_ASSIGN_OR_RETURN(lock_, LockRunDir(options_.run_dir));
  GODWIT_RETURN_IF_ERROR(fs.CreateDirs(log_dir_));
  // So that what a killed keeper leaves comes to us.
  GODWIT_RETURN_IF_ERROR(SetChildSubreaper());
  GODWIT_ASSIGN_OR_RETURN(
      signals_, BlockSignalsToFd({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2}));
  GODWIT_ASSIGN_OR_RETURN(loop_, EventLoop::Open());
  GODWIT_RETURN_IF_ERROR(loop_->AddFd(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); }));

  socket_ = JoinPath(options_.run_dir, "keeper.sock");
  std::string program = options_.keeper_program;
  if (program.empty()) {
    GODWIT_ASSIGN_OR_RETURN(program, FindKeeperProgram());
  }
  keeper_ = std::make_unique<KeeperLink>(
      KeeperLink::Options{.program = program,
                          .socket = socket_,
                          .run_dir = options_.run_dir,
                          .slots = options_.slots,
                          .adopt_window = options_.adopt_window,
                          .inherit_stdin = extras_.inherit_stdin,
                          .remove_run_dir = extras_.remove_run_dir,
                          .silence_limit = options_.keeper_silence_limit},
      loop_.get(),
      KeeperLink::Callbacks{.message =
                                [this](const KeeperMessage& message, std::vector<UniqueFd> fds) {
                                  node_->OnKeeperMessage(message, std::move(fds),
                                                         MonotonicClock::now());
                                  ArmTimer();
                                },
                            .lost = [this](const std::string& why) { OnKeeperLost(why); }});

  NodeAgent::Options node;
  node.job_id = options_.job_id;
  node.node_id = options_.node_id;
  node.node_index = options_.node_index;
  node.slots = options_.slots;
  node.run_dir = options_.run_dir;
  node.keeper_socket = socket_;
  GODWIT_ASSIGN_OR_RETURN(node.cwd, WorkingDirectory());
  node.environment = Environment();
  node.worker_environment = extras_.worker_environment;
  node.log_dir = log_dir_;
  node.master_lost_limit = options_.master_lost_limit;
  node.choose_master_port = extras_.choose_master_port;
  node_ = std::make_unique<NodeAgent>(std::move(node), this, MonotonicClock::now());

  persister_ =
      std::make_unique<Persister>(&RealFileSystem(), &RealClock(), [this](PersistResult result) {
        auto shared = std::make_shared<PersistResult>(std::move(result));
        const Status posted = loop_->Post([this, shared] {
          node_->OnPersisted(std::move(*shared), MonotonicClock::now());
          ArmTimer();
        });
        if (!posted.ok()) LogError("persister: {}", posted.message());
      });
  master_ = std::make_unique<MasterLink>(
      MasterLink::Options{.job_id = options_.job_id,
                          .attempt = options_.attempt,
                          .scheduler = options_.scheduler,
                          .master = options_.master},
      loop_.get(),
      MasterLink::Callbacks{.connected =
                                [this] {
                                  node_->OnMasterConnected(MonotonicClock::now());
                                  ArmTimer();
                                },
                            .order =
                                [this](const proto::MasterOrder& order) {
                                  node_->OnOrder(order, MonotonicClock::now());
                                  ArmTimer();
                                },
                            .lost =
                                [this](const Status& why) {
                                  node_->OnMasterLost(why, MonotonicClock::now());
                                  ArmTimer();
                                }});
  return OkStatus();
}

int AgentProcess::Run() {
  StartKeeper();
  master_->Start();
  ArmTimer();
  if (const Status s = loop_->Run(); !s.ok()) {
    LogError("{}", s.message());
    exit_code_ = 1;
    end_reason_ = s.message();
  }
  return exit_code_;
}

void AgentProcess::ArmTimer() {
  const MonotonicTime at = ending_ ? MonotonicTime::max() : node_->deadline();
  if (timer_ != 0 && at == timer_at_) return;
  if (timer_ != 0) loop_->CancelTimer(timer_);
  timer_ = 0;
  if (at == MonotonicTime::max()) return;
  timer_at_ = at;
  timer_ = loop_->AddTimer(at, [this] {
    timer_ = 0;
    node_->OnTick(MonotonicClock::now());
    ArmTimer();
  });
}

void AgentProcess::OnSignal() {
  bool ended_children = false;
  while (true) {
    const Result<std::optional<int>> signal = ReadSignalFd(signals_.get());
    if (!signal.ok()) LogError("{}", signal.status().message());
    if (!signal.ok() || !*signal) break;
    switch (**signal) {
      case SIGCHLD:
        ended_children = true;
        break;
      case SIGTERM:
      case SIGINT:
        if (extras_.on_signal) {
          extras_.on_signal(**signal);
        } else {
          End(76, "got " + SignalName(**signal));
        }
        break;
      case SIGUSR1:
      case SIGUSR2:
        node_->ForwardSignal(**signal);
        break;
      default:  // SIGHUP, SIGPIPE: nothing to do
        break;
    }
  }
  while (ended_children) {
    const Result<pid_t> pid = PeekEndedChild();
    if (!pid.ok()) LogError("{}", pid.status().message());
    if (!pid.ok() || *pid == 0) break;
    if (keeper_->child() && keeper_->child()->pid() == *pid) keeper_->OnChildEnded();
    if (extras_.on_child_ended) extras_.on_child_ended(*pid);
    ReapUnknownChild(*pid);  // a dead keeper's worker; nothing when it was reaped just now
  }
}

bool AgentProcess::SendToMaster(proto::AgentReport report) {
  return master_->Send(std::move(report));
}

void AgentProcess::SendToKeeper(const KeeperMessage& message) { keeper_->Send(message); }

void AgentProcess::WatchDoorbell(uint32_t slot, int fd) {
  const Status watched = loop_->AddFd(fd, EPOLLIN, [this, slot](uint32_t) {
    node_->OnDoorbell(slot, MonotonicClock::now());
    ArmTimer();
  });
  if (!watched.ok()) End(1, "doorbell of slot " + std::to_string(slot) + ": " + watched.message());
}

void AgentProcess::UnwatchDoorbell(int fd) { loop_->RemoveFd(fd); }

Status AgentProcess::StartPersist(PersistJob job) { return persister_->Add(std::move(job)); }

void AgentProcess::StartKeeper() {
  if (ending_) return;
  const MonotonicTime now = MonotonicClock::now();
  std::erase_if(keeper_starts_, [&](MonotonicTime t) { return now - t > kKeeperStartsWithin; });
  keeper_starts_.push_back(now);
  Status status = OkStatus();
  if (keeper_starts_.size() > kKeeperStarts) {
    status = UnavailableError("the keeper was lost " + std::to_string(kKeeperStarts) +
                              " times within " + HumanDuration(kKeeperStartsWithin));
  } else {
    status = keeper_->Connect();
  }
  if (!status.ok()) End(1, status.message());
}

void AgentProcess::OnKeeperLost(const std::string& why) {
  keeper_->Kill();  // it may have lost its socket only
  orphans_ = true;
  EndOrphans(SaturatingAdd(MonotonicClock::now(), kOrphanLimit), [this, why] {
    orphans_ = false;
    if (ending_) {
      FinishEnd();
      return;
    }
    node_->OnKeeperLost(why, MonotonicClock::now());
    ArmTimer();
  });
}

void AgentProcess::EndOrphans(MonotonicTime limit, std::function<void()> then) {
  // Workers end by the parent-death signal; what they started has the keeper's socket in its
  // environment.
  const Result<std::vector<pid_t>> left = ProcessesWithEnvironment(kEnvKeeperSocket, socket_);
  if (!left.ok()) LogError("{}", left.status().message());
  for (const pid_t pid : left.ok() ? *left : std::vector<pid_t>()) {
    // The number may be another's by now: looked at again once it is held.
    const Result<UniqueFd> process = OpenPidfd(pid);
    if (!process.ok() || EnvironmentOf(pid, kEnvKeeperSocket) != socket_) continue;
    if (const Status s = SignalPidfd(process->get(), SIGKILL);
        !s.ok() && s.code() != StatusCode::kNotFound) {
      LogWarning("process {}: {}", pid, s.message());
    }
  }
  const MonotonicTime now = MonotonicClock::now();
  if (!left.ok() || left->empty() || now >= limit) {
    if (left.ok() && !left->empty()) {
      LogError("{} processes of the lost keeper have not ended within {} of SIGKILL", left->size(),
               HumanDuration(kOrphanLimit));
    }
    then();
    return;
  }
  loop_->AddTimer(SaturatingAdd(now, kOrphanLook),
                  [this, limit, then = std::move(then)] { EndOrphans(limit, then); });
}

void AgentProcess::End(int exit_code, const std::string& reason) {
  if (ending_) return;
  ending_ = true;
  exit_code_ = exit_code;
  end_reason_ = reason;
  LogInfo("ends with {}: {}", exit_code, reason);
  ArmTimer();
  if (!keeper_->connected()) {
    if (!orphans_) loop_->AddTimer(MonotonicClock::now(), [this] { FinishEnd(); });
    return;
  }
  keeper_->Send(ShutdownRequest());
  loop_->AddTimer(SaturatingAdd(MonotonicClock::now(), kKeeperEndLimit), [this] {
    LogError("the keeper has not ended within {}", HumanDuration(kKeeperEndLimit));
    keeper_->Kill();
    FinishEnd();
  });
}

void AgentProcess::FinishEnd() {
  master_->Close(SaturatingAdd(MonotonicClock::now(), kLastWords));
  loop_->Stop();
}

void AgentProcess::Tell(const std::string& line) {
  if (extras_.tell) extras_.tell(line);
}

int RunAgent(const AgentOptions& options) {
  LimitMemory();
  SetLogComponent("agent " + options.node_id);
  Result<std::unique_ptr<AgentProcess>> agent = AgentProcess::Open(options, {});
  if (!agent.ok()) {
    std::fprintf(stderr, "godwit agent: %s\n", agent.status().message().c_str());
    return 78;
  }
  const int code = (*agent)->Run();
  if (code != 0 && code != 75) {
    std::fprintf(stderr, "godwit agent: %s\n", (*agent)->end_reason().c_str());
  }
  return code;
}

}  // namespace godwit
