#include "launcher/agent/keeper_link.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

#include "base/file_system.h"
#include "base/log.h"
#include "base/unix_socket.h"

namespace godwit {

namespace {

constexpr Duration kStartLimit = std::chrono::seconds(10);
constexpr Duration kLook = std::chrono::milliseconds(20);
constexpr Duration kSendLimit = std::chrono::seconds(5);
constexpr int kMaxStarts = 3;
constexpr size_t kMaxFds = 3;

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
                options_.run_dir};
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
  if (!status.ok()) fd_.Reset();
  return status;
}

void KeeperLink::Send(const KeeperMessage& message) {
  if (!fd_) return;  // its workers are gone, and with them what the message was about
  const Status status = SendMessage(fd_.get(), AsBytes(EncodeKeeperMessage(message)), {},
                                    SaturatingAdd(MonotonicClock::now(), kSendLimit));
  if (status.ok()) return;
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
  callbacks_.message(*message, std::move(packet->fds));
}

void KeeperLink::Lost(const std::string& why) {
  if (!fd_) return;
  loop_->RemoveFd(fd_.get());
  fd_.Reset();
  callbacks_.lost(why);
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
  if (!child_) return;
  if (const Status s = child_->Signal(SIGKILL); !s.ok() && s.code() != StatusCode::kNotFound) {
    LogError("keeper: {}", s.message());
  }
}

}  // namespace godwit
