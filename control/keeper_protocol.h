#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace godwit {

// The keeper's socket: SOCK_SEQPACKET, one message a packet (at most kMaxKeeperMessageBytes), file
// descriptors beside it. Two kinds of client, told apart by their first message; both must have
// the keeper's uid (SO_PEERCRED). An unknown type, a wrong version or a malformed message closes
// the connection with an ErrorReply.
inline constexpr uint32_t kKeeperProtocolVersion = 2;
inline constexpr size_t kMaxKeeperMessageBytes = 128 * 1024;
// Of a message in memory (LargeRequest): more than Linux lets a program's arguments and environment
// have (6 MiB, execve(2)), so that it's the kernel's limit which is met.
inline constexpr size_t kMaxLargeMessageBytes = 16 * 1024 * 1024;

// Environment of a worker.
inline constexpr const char* kEnvKeeperSocket = "GODWIT_KEEPER_SOCKET";
inline constexpr const char* kEnvSlot = "GODWIT_SLOT";
inline constexpr const char* kEnvEpoch = "GODWIT_EPOCH";
inline constexpr const char* kEnvJob = "GODWIT_JOB";
inline constexpr const char* kEnvDir =
    "GODWIT_DIR";  // overrides the program's checkpoint directory

// ---- worker -> keeper ----

// First message of a worker. One claim per slot and epoch. Reply: ClaimReply with two descriptors
// (control page, doorbell eventfd), a third (snapshot memory) when the slot already has some.
struct ClaimRequest {
  uint32_t version = kKeeperProtocolVersion;
  uint32_t slot = 0;
  uint64_t epoch = 0;
  int32_t pid = 0;
  std::string directory;  // of checkpoints, absolute; empty: the program keeps none
  uint64_t total_steps = 0;
  uint64_t persist_every = 0;               // steps
  std::vector<uint32_t> legal_world_sizes;  // empty: any
};
struct ClaimReply {
  uint64_t snapshot_bytes = 0;  // size of the snapshot memory passed along; 0: none
};

// Makes the slot's snapshot memory: memfd, allocated up front, sealed. Replaces an older one of
// another size. Reply: SnapshotReply with one descriptor; RESOURCE_EXHAUSTED names the need.
struct ReserveRequest {
  uint64_t bytes = 0;
};
struct SnapshotReply {
  uint64_t bytes = 0;
};

// ---- agent -> keeper ----

// First message of an agent. A second agent replaces the first (its connection is closed).
// Reply: AttachReply, then one SlotState message with descriptors for each slot.
struct AttachRequest {
  uint32_t version = kKeeperProtocolVersion;
};
struct AttachReply {
  uint32_t slots = 0;
  int32_t keeper_pid = 0;
};
// Descriptors: control page, doorbell, then the snapshot memory if snapshot_bytes > 0. Sent at
// attach and again when a slot's snapshot memory changed.
struct SlotState {
  uint32_t slot = 0;
  int32_t pid = 0;     // 0: no worker
  uint64_t epoch = 0;  // of that worker
  uint8_t claimed = 0;
  uint64_t snapshot_bytes = 0;
  ClaimRequest claim;  // when claimed
};
struct StartWorkerRequest {
  uint32_t slot = 0;
  uint64_t epoch = 0;
  std::vector<std::string> argv;
  std::vector<std::string> env;  // NAME=value, complete
  std::string cwd;
  std::string stdout_path;  // appended to; created 0644
  std::string stderr_path;
};
struct StartWorkerReply {  // errors come as ErrorReply with the slot
  uint32_t slot = 0;
  int32_t pid = 0;
};
struct SignalRequest {  // to the worker's process group
  uint32_t slot = 0;
  int32_t signal = 0;
};
struct ShutdownRequest {};  // ends all workers (KILL), frees everything, exits 0

// A StartWorkerRequest that is too large for a packet: its bytes are in the memory (memfd, sealed
// against shrinking) whose descriptor comes along.
struct LargeRequest {
  uint64_t bytes = 0;  // at most kMaxLargeMessageBytes
};
// Whether the keeper is there: it answers at once with the same number.
struct PingRequest {
  uint32_t number = 0;
};

// ---- keeper -> agent ----
struct PongReply {
  uint32_t number = 0;
};
struct ClaimedEvent {
  ClaimRequest claim;
};
struct ExitedEvent {
  uint32_t slot = 0;
  int32_t pid = 0;
  uint64_t epoch = 0;
  int32_t exit_code = -1;  // >= 0: exited; else
  int32_t signal = 0;      // ended by this signal
};

struct ErrorReply {
  uint32_t slot = 0;
  int32_t code = 0;  // StatusCode
  std::string message;
};

using KeeperMessage = std::variant<ClaimRequest, ClaimReply, ReserveRequest, SnapshotReply,
                                   AttachRequest, AttachReply, SlotState, StartWorkerRequest,
                                   StartWorkerReply, SignalRequest, ShutdownRequest, ClaimedEvent,
                                   ExitedEvent, ErrorReply, LargeRequest, PingRequest, PongReply>;

// Bytes of one packet: type (the variant's index, u8), then the fields, little-endian, strings and
// lists with a u32 count before them.
std::string EncodeKeeperMessage(const KeeperMessage& message);

// INVALID_ARGUMENT for anything that EncodeKeeperMessage cannot have written, and for more than
// `max_bytes`; allocates no more than the packet's size.
Result<KeeperMessage> DecodeKeeperMessage(std::span<const std::byte> packet,
                                          size_t max_bytes = kMaxKeeperMessageBytes);

}  // namespace godwit
