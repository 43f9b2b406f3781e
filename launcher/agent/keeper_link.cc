#include "launcher/agent/keeper_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/file_system.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "base/strings.h"
#include "base/unix_socket.h"
#include "base/wait_fd.h"
#include "launcher/process_tree.h"

namespace godwit {

namespace {

constexpr Duration kStartLimit = std::chrono::seconds(10);
constexpr Duration kLook = std::chrono::milliseconds(20);
constexpr Duration kSendLimit = std::chrono::seconds(5);
constexpr int kMaxStarts = 3;
constexpr size_t kMaxFds = 3;
constexpr uint32_t kProbes = 10;  // in the silence limit
constexpr Duration kKillLimit = std::chrono::seconds(1);

}  // namespace

Result<std::string> FindKeeperProgram() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  if (n < 0) return ErrnoError(errno, "readlink(/proc/self/exe)");
  const std::string dir = DirName(std::string(path, static_cast<size_t>(n)));
  const std::string beside = JoinPath(dir, "godwit-keeper");
  const std::string libexec = JoinPath(DirName(dir), "libexec/godwit-keeper");
  for (const std::string& candidate : {beside, libexec}) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return NotFoundError("the keeper's program is neither " + beside + " nor " + libexec);
}

KeeperLink::KeeperLink(Options options, EventLoop* loop, Callbacks callbacks)
    : options_(std::move(options)), loop_(loop), callbacks_(std::move(callbacks)) {}

KeeperLink::~KeeperLink() {
  if (probe_ != 0) loop_->CancelTimer(probe_);
  if (fd_) loop_->RemoveFd(fd_.get());
}

Status KeeperLink::SpawnKeeper() {
  const std::string log_path = JoinPath(options_.run_dir, "keeper.log");
  const UniqueFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log) return ErrnoError(errno, "open(" + log_path + ")");
  const auto window =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.adopt_window).count();
  SpawnOptions spawn;
  spawn.argv = {options_.program,
                "--socket",
                options_.socket,
                "--slots",
                std::to_string(options_.slots),
                "--adopt-window-ms",
                std::to_string(window),
                "--run-dir",
                options_.run_dir,
                "--remove-run-dir",
                options_.remove_run_dir ? "1" : "0"};
  spawn.stdin_fd = options_.inherit_stdin ? SpawnOptions::kInherit : SpawnOptions::kDevNull;
  spawn.stdout_fd = log.get();
  spawn.stderr_fd = log.get();
  spawn.new_session = true;
  // It notices our end by its socket, but only after it has one. TERM: it ends its workers first.
  if (window == 0) spawn.parent_death_signal = SIGTERM;
  GODWIT_ASSIGN_OR_RETURN(Child child, Spawn(spawn));
  child_ = std::move(child);
  return OkStatus();
}

Status KeeperLink::Connect() {
  for (int tries = 1;; ++tries) {
    const Status status = TryConnect();
    // ABORTED: it was killed while it started, or before it heard of us. Nothing is lost with it.
    if (status.code() != StatusCode::kAborted || tries == kMaxStarts) return status;
    LogWarning("{}; starting another", status.message());
  }
}

Status KeeperLink::TryConnect() {
  pid_ = 0;
  process_.Reset();
  Result<UniqueFd> fd = ConnectUnix(options_.socket);
  if (!fd.ok()) {
    // Nobody listens there: what lies at the path is a dead keeper's.
    if (unlink(options_.socket.c_str()) != 0 && errno != ENOENT) {
      return ErrnoError(errno, "unlink(" + options_.socket + ")");
    }
    GODWIT_RETURN_IF_ERROR(SpawnKeeper());
    const MonotonicTime limit = SaturatingAdd(MonotonicClock::now(), kStartLimit);
    while (true) {
      fd = ConnectUnix(options_.socket,
                       std::min(limit, SaturatingAdd(MonotonicClock::now(), kLook)));
      if (fd.ok()) break;
      GODWIT_ASSIGN_OR_RETURN(const std::optional<ExitStatus> ended, child_->TryWait());
      if (ended) {
        child_.reset();
        const std::string message = "the keeper ended as it started: " + ended->ToString() +
                                    "; its log is " + JoinPath(options_.run_dir, "keeper.log");
        return ended->signal != 0 ? AbortedError(message) : UnavailableError(message);
      }
      if (MonotonicClock::now() >= limit) {
        Kill();
        return fd.status();
      }
    }
  }
  fd_ = std::move(*fd);
  Status status = SendMessage(fd_.get(), AsBytes(EncodeKeeperMessage(AttachRequest())), {},
                              SaturatingAdd(MonotonicClock::now(), kSendLimit));
  if (status.ok()) status = loop_->AddFd(fd_.get(), EPOLLIN, [this](uint32_t) { OnReadable(); });
  if (!status.ok()) {
    fd_.Reset();
    return status;
  }
  const Result<PeerCred> peer = PeerCredentials(fd_.get());
  Result<UniqueFd> process = peer.ok() ? OpenPidfd(peer->pid) : peer.status();
  if (process.ok()) {
    pid_ = peer->pid;
    process_ = std::move(*process);
  } else {
    LogWarning("keeper: {}", process.status().message());
  }
  // The attach waits for its answer like any probe.
  hung_ = false;
  unanswered_ = 0;
  ArmProbe();
  return OkStatus();
}

void KeeperLink::ArmProbe() {
  if (probe_ != 0) loop_->CancelTimer(probe_);
  probe_ = loop_->AddTimer(SaturatingAdd(MonotonicClock::now(), options_.silence_limit / kProbes),
                           [this] {
                             probe_ = 0;
                             Probe();
                           });
}

void KeeperLink::Probe() {
  if (!fd_) return;
  if (hung_) {
    // Not even SIGKILL ends it: it waits in the kernel. Its workers are ended without it.
    Lost("the keeper, process " + std::to_string(pid_) + ", was hung, and is not to be ended");
    return;
  }
  // Counted in probes, not in time: we may have been stopped ourselves, and its answer be there.
  const Result<ProcessActivity> now = pid_ != 0 ? ActivityOf(pid_) : ProcessActivity();
  if (unanswered_ >= kProbes && now.ok()) {
    // One that works (to allocate much memory takes its time) or gets no processor isn't hung.
    if (now->state == 'R' || now->cpu_ticks != cpu_ticks_) {
      unanswered_ = 0;
    } else {
      LogError(
          "the keeper, process {}, has not answered for {} and does nothing (state {}): it is "
          "killed",
          pid_, HumanDuration(options_.silence_limit), now->state);
      hung_ = true;
      Kill();  // the hang-up tells the rest
      ArmProbe();
      return;
    }
  }
  if (unanswered_ == 0 && now.ok()) cpu_ticks_ = now->cpu_ticks;
  ++unanswered_;
  // One that takes nothing more is not asked again.
  const Status asked =
      SendMessage(fd_.get(), AsBytes(EncodeKeeperMessage(PingRequest{.number = unanswered_})));
  if (!asked.ok()) LogDebug("keeper: {}", asked.message());
  ArmProbe();
}

Status KeeperLink::SendLarge(const StartWorkerRequest& request, const std::string& bytes) {
  if (bytes.size() > kMaxLargeMessageBytes) {
    return ResourceExhaustedError("arguments and environment of a worker: got " +
                                  HumanBytes(bytes.size()) +
                                  ", allowed: " + HumanBytes(kMaxLargeMessageBytes));
  }
  GODWIT_ASSIGN_OR_RETURN(
      const UniqueFd memory,
      CreateSharedMemory("godwit-start-" + std::to_string(request.slot), bytes.size()));
  GODWIT_ASSIGN_OR_RETURN(const SharedMapping mapping,
                          SharedMapping::Map(memory.get(), bytes.size()));
  std::memcpy(mapping.data(), bytes.data(), bytes.size());
  const int fd = memory.get();
  return SendMessage(fd_.get(), AsBytes(EncodeKeeperMessage(LargeRequest{bytes.size()})), {&fd, 1},
                     SaturatingAdd(MonotonicClock::now(), kSendLimit));
}

void KeeperLink::Send(const KeeperMessage& message) {
  if (!fd_) return;  // its workers are gone, and with them what the message was about
  const std::string bytes = EncodeKeeperMessage(message);
  const auto* const start = std::get_if<StartWorkerRequest>(&message);
  Status status;
  if (start != nullptr && bytes.size() > kMaxKeeperMessageBytes) {
    status = SendLarge(*start, bytes);
  } else {
    status = SendMessage(fd_.get(), AsBytes(bytes), {},
                         SaturatingAdd(MonotonicClock::now(), kSendLimit));
  }
  if (status.ok()) return;
  if (start != nullptr && status.code() == StatusCode::kResourceExhausted) {
    // Said by the loop: the caller is in the middle of what it asked for.
    const ErrorReply error{.slot = start->slot,
                           .code = static_cast<int32_t>(status.code()),
                           .message = status.message()};
    loop_->AddTimer(MonotonicClock::now(), [this, error] { callbacks_.message(error, {}); });
    return;
  }
  LogWarning("keeper: {}", status.message());
  if (status.code() == StatusCode::kUnavailable) Kill();  // it hangs; the hang-up tells the rest
}

void KeeperLink::OnReadable() {
  Result<ReceivedMessage> packet = RecvMessage(fd_.get(), kMaxKeeperMessageBytes, kMaxFds);
  if (!packet.ok()) {
    if (packet.status().code() != StatusCode::kUnavailable) Lost(packet.status().message());
    return;
  }
  const Result<KeeperMessage> message = DecodeKeeperMessage(AsBytes(packet->bytes));
  if (!message.ok()) {
    Lost(message.status().message());
    return;
  }
  unanswered_ = 0;
  if (std::holds_alternative<PongReply>(*message)) return;
  callbacks_.message(*message, std::move(packet->fds));
}

void KeeperLink::Lost(const std::string& why) {
  if (!fd_) return;
  loop_->RemoveFd(fd_.get());
  fd_.Reset();
  if (probe_ != 0) loop_->CancelTimer(probe_);
  probe_ = 0;
  callbacks_.lost(hung_ ? "the keeper was hung" : why);
}

void KeeperLink::OnChildEnded() {
  if (!child_) return;
  const Result<std::optional<ExitStatus>> ended = child_->TryWait();
  if (!ended.ok()) LogError("keeper: {}", ended.status().message());
  if (ended.ok() && !*ended) return;
  if (ended.ok() && !(*ended)->success()) LogWarning("keeper: {}", (*ended)->ToString());
  child_.reset();
}

void KeeperLink::Kill() {
  // While it starts there is only the child.
  const int process = process_ ? process_.get() : child_ ? child_->pidfd() : -1;
  if (process < 0) return;
  if (const Status s = SignalPidfd(process, SIGKILL);
      !s.ok() && s.code() != StatusCode::kNotFound) {
    LogError("keeper: {}", s.message());
    return;
  }
  const Result<bool> ended =
      WaitFd(process, POLLIN, SaturatingAdd(MonotonicClock::now(), kKillLimit));
  if (!ended.ok() || !*ended) {
    LogError("the keeper has not ended within {} of SIGKILL", HumanDuration(kKillLimit));
  }
  // It could not do this itself.
  unlink(options_.socket.c_str());
  unlink(JoinPath(options_.run_dir, "keeper.pid").c_str());
}

}  // namespace godwit
