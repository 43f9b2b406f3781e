#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace godwit {

// Unix sockets that keep the bounds of messages (SOCK_SEQPACKET). All descriptors are non-blocking
// and close-on-exec. Paths may be longer than sun_path: they are reached through
// /proc/self/fd/<directory>.
//
// Codes: UNAVAILABLE: would block (try again once the descriptor is ready); ABORTED: the peer is
// gone (end of file, EPIPE, ECONNRESET).

// For a deadline: try once, don't wait.
inline constexpr MonotonicTime kNoWait = MonotonicTime::min();

// Listens at a new path, whose mode is `mode` from the moment it exists. ALREADY_EXISTS when the
// path is taken, by a dead socket too: the caller knows whether it may be removed.
Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode = 0600);
// The next connection; UNAVAILABLE when there is none by the deadline.
Result<UniqueFd> AcceptUnix(int listener, MonotonicTime deadline = kNoWait);
// Tries until the deadline while the path is missing or nobody listens there (a server that is
// just starting), then returns the last error: NOT_FOUND, or UNAVAILABLE for a dead socket.
Result<UniqueFd> ConnectUnix(const std::string& path, MonotonicTime deadline = kNoWait);
// Two sockets connected with each other.
Result<std::pair<UniqueFd, UniqueFd>> UnixSocketPair();

// Sends one message, whole, with copies of `fds`; INVALID_ARGUMENT for an empty message.
Status SendMessage(int fd, ByteSpan bytes, std::span<const int> fds = {},
                   MonotonicTime deadline = kNoWait);

struct ReceivedMessage {
  std::string bytes;
  std::vector<UniqueFd> fds;  // close-on-exec
};
// Receives one message. One that is larger than `max_bytes` or carries more than `max_fds`
// descriptors is thrown away, its descriptors closed: OUT_OF_RANGE; the next can still be received.
Result<ReceivedMessage> RecvMessage(int fd, size_t max_bytes, size_t max_fds,
                                    MonotonicTime deadline = kNoWait);

struct PeerCred {
  pid_t pid;  // of the process that connected or listened; may have ended since
  uid_t uid;
  gid_t gid;
};
// Who is at the other end, as the kernel noted it at connect time (SO_PEERCRED).
Result<PeerCred> PeerCredentials(int fd);

}  // namespace godwit
