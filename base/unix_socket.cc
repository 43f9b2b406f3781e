#include "base/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/check.h"
#include "base/file_system.h"
#include "base/wait_fd.h"

namespace godwit {

namespace {

constexpr size_t kMaxFds = 253;  // SCM_MAX_FD of Linux
constexpr int kBacklog = 128;

std::string What(std::string_view call, std::string_view object) {
  return std::string(call) + "(" + std::string(object) + ")";
}

std::string FdName(int fd) { return "descriptor " + std::to_string(fd); }

// An address for `path`, and the directory that has to stay open while it's used.
struct Address {
  sockaddr_un address{};
  UniqueFd dir;
};

Result<Address> MakeAddress(const std::string& path) {
  Address result;
  result.address.sun_family = AF_UNIX;
  std::string name = path;
  if (name.size() >= sizeof(result.address.sun_path)) {
    const std::string dir = DirName(path);
    result.dir.Reset(open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!result.dir) return ErrnoError(errno, What("open directory", dir));
    name = "/proc/self/fd/" + std::to_string(result.dir.get()) + "/" + BaseName(path);
  }
  if (name.empty() || name.size() >= sizeof(result.address.sun_path)) {
    return InvalidArgumentError("unix socket '" + path + "': its last component has " +
                                std::to_string(BaseName(path).size()) + " bytes, allowed: 1 to 80");
  }
  std::memcpy(result.address.sun_path, name.c_str(), name.size() + 1);
  return result;
}

Result<UniqueFd> NewSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoError(errno, "socket(AF_UNIX)");
  return fd;
}

// What a call that would have blocked has to do: OK: try again.
Status AwaitReady(int fd, short events, MonotonicTime deadline, std::string_view what) {
  GODWIT_ASSIGN_OR_RETURN(const bool ready,
                          deadline == kNoWait ? Result<bool>(false) : WaitFd(fd, events, deadline));
  if (ready) return OkStatus();
  return UnavailableError(std::string(what) + ": would block" +
                          (deadline == kNoWait ? "" : ", and the deadline has passed"));
}

}  // namespace

Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode) {
  GODWIT_ASSIGN_OR_RETURN(const Address address, MakeAddress(path));
  GODWIT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  // bind(2) gives the new inode the socket's own mode (less the umask), so that it never exists
  // with a wider one; the umask itself belongs to the whole process.
  if (fchmod(fd.get(), mode) != 0) return ErrnoError(errno, What("fchmod", path));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.address),
           sizeof(address.address)) != 0) {
    return ErrnoError(errno, What("bind", path));
  }
  if (listen(fd.get(), kBacklog) != 0) return ErrnoError(errno, What("listen", path));
  return fd;
}

Result<UniqueFd> AcceptUnix(int listener, MonotonicTime deadline) {
  while (true) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return fd;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const std::string what = What("accept", FdName(listener));
    if (errno != EAGAIN) return ErrnoError(errno, what);
    GODWIT_RETURN_IF_ERROR(AwaitReady(listener, POLLIN, deadline, what));
  }
}

Result<UniqueFd> ConnectUnix(const std::string& path, MonotonicTime deadline) {
  Duration pause = std::chrono::milliseconds(1);
  while (true) {
    Status status;
    Result<Address> address = MakeAddress(path);
    if (address.ok()) {
      GODWIT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
      if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address->address),
                  sizeof(address->address)) == 0) {
        return fd;
      }
      // EAGAIN: the server's backlog is full.
      status = ErrnoError(errno, What("connect", path));
    } else {
      status = address.status();
    }
    const bool may_come =
        status.code() == StatusCode::kNotFound || status.code() == StatusCode::kUnavailable;
    const MonotonicTime now = MonotonicClock::now();
    if (!may_come || now >= deadline) return status;
    // There is nothing to wait on for a server that doesn't exist yet.
    const Duration wait = deadline < SaturatingAdd(now, pause) ? deadline - now : pause;
    const timespec ts = {.tv_sec = 0, .tv_nsec = wait.count()};
    nanosleep(&ts, nullptr);
    pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(50));
  }
}

Result<std::pair<UniqueFd, UniqueFd>> UnixSocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    return ErrnoError(errno, "socketpair(AF_UNIX)");
  }
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Status SendMessage(int fd, ByteSpan bytes, std::span<const int> fds, MonotonicTime deadline) {
  const std::string what = What("sendmsg", FdName(fd));
  if (bytes.empty()) return InvalidArgumentError(what + ": got an empty message");
  if (fds.size() > kMaxFds) {
    return InvalidArgumentError(what + ": got " + std::to_string(fds.size()) +
                                " descriptors, allowed: " + std::to_string(kMaxFds));
  }
  iovec iov = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  while (true) {
    const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      GODWIT_CHECK(static_cast<size_t>(n) == bytes.size());  // SOCK_SEQPACKET: whole, or not at all
      return OkStatus();
    }
    if (errno == EINTR) continue;
    if (errno == EMSGSIZE) {
      return OutOfRangeError(what + ": message of " + std::to_string(bytes.size()) +
                             " bytes is larger than the socket's buffer");
    }
    if (errno != EAGAIN) return ErrnoError(errno, what);
    GODWIT_RETURN_IF_ERROR(AwaitReady(fd, POLLOUT, deadline, what));
  }
}

Result<ReceivedMessage> RecvMessage(int fd, size_t max_bytes, size_t max_fds,
                                    MonotonicTime deadline) {
  const std::string what = What("recvmsg", FdName(fd));
  ReceivedMessage received;
  received.bytes.resize(max_bytes);
  while (true) {
    iovec iov = {.iov_base = received.bytes.data(), .iov_len = max_bytes};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    // Room for as many as can come, so that those too many are known, and closed.
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return ErrnoError(errno, what);
      GODWIT_RETURN_IF_ERROR(AwaitReady(fd, POLLIN, deadline, what));
      continue;
    }
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int received_fd;
        std::memcpy(&received_fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        received.fds.emplace_back(received_fd);
      }
    }
    if (n == 0) return AbortedError(what + ": the peer has closed the connection");
    if (static_cast<size_t>(n) > max_bytes) {
      return OutOfRangeError(what + ": message of " + std::to_string(n) +
                             " bytes, allowed: " + std::to_string(max_bytes));
    }
    if (received.fds.size() > max_fds) {
      return OutOfRangeError(what + ": message with " + std::to_string(received.fds.size()) +
                             " descriptors, allowed: " + std::to_string(max_fds));
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      return ResourceExhaustedError(what +
                                    ": descriptors of a message were lost, since this "
                                    "process has too many open");
    }
    received.bytes.resize(static_cast<size_t>(n));
    return received;
  }
}

Result<PeerCred> PeerCredentials(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoError(errno, What("getsockopt(SO_PEERCRED)", FdName(fd)));
  }
  return PeerCred{.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
}

}  // namespace godwit
