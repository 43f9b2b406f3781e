#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "master/core/order.h"

// All that can happen to a master: reports of agents (proto/master.proto's AgentReport without
// gRPC), answers of the storage, and what people and the scheduler ask. `node` is the 0-based place
// of the node in the job's allocation. Nothing in an event is trusted: a rank, slot or epoch that
// does not fit is refused.
namespace godwit::master {

// control/page.h's WorkerState, as far as the master looks at it. The numbers are those of the
// wire.
enum class WorkerState : uint32_t {
  kNone = 0,
  kInit = 1,
  kAtGate = 2,
  kRunning = 3,
  kStaging = 4,
  kStaged = 5,
  kParked = 6,
  kFinished = 7,
  kFailed = 8,
};

struct Claim {
  std::string directory;                    // absolute; empty: keeps no checkpoints
  uint64_t total_steps = 0;                 // 0: not known
  uint64_t persist_every = 0;               // steps; 0: off
  std::vector<uint32_t> legal_world_sizes;  // empty: any
  friend bool operator==(const Claim&, const Claim&) = default;
};
struct GateState {
  uint64_t entered = 0;
  uint64_t limit = 0;
  bool closed = false;
  bool finished = false;
};
struct Snapshot {
  uint64_t epoch = 0;  // in which it was taken
  uint64_t step = 0;
  uint32_t world_size = 0;
  uint64_t bytes = 0;
};
struct SlotReport {
  uint32_t slot = 0;
  int32_t pid = 0;  // 0: no worker runs
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  bool claimed = false;
  WorkerState state = WorkerState::kNone;
  uint64_t at_step = 0;
  std::optional<GateState> gate;
  std::optional<Claim> claim;
  std::vector<Snapshot> snapshots;
};

struct AgentAttached {
  uint32_t node = 0;
  std::string node_id;
  uint32_t slots = 0;
  int32_t keeper_pid = 0;
  std::vector<SlotReport> slot_reports;
};
// Its stream broke. Reports that were under way are lost; the agent attaches again if it lives.
struct AgentDetached {
  uint32_t node = 0;
};

struct RankProgress {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint64_t entered = 0;
  Duration step_last{0};
  Duration step_longest{0};
  Duration in_step{0};
  uint64_t snapshot_bytes = 0;
};
struct Heartbeat {
  uint32_t node = 0;
  std::vector<RankProgress> ranks;
};
struct WorkerStarted {
  uint32_t node = 0;
  uint64_t epoch = 0;
  uint32_t slot = 0;
  uint32_t rank = 0;
  int32_t pid = 0;
};
struct WorkerClaimed {
  uint32_t node = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  Claim claim;
};
struct WorkerExited {
  uint32_t node = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  int32_t exit_code = 0;
  int32_t signal = 0;
  std::string message;
  std::string log_tail;
  uint64_t entered = 0;
};
struct GateReplied {
  uint32_t node = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  GateState gate;
};
struct WorkerAtGate {
  uint32_t node = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint64_t step = 0;
};
struct SnapshotWhole {
  uint32_t node = 0;
  uint32_t rank = 0;
  Snapshot snapshot;
};
struct PackWritten {
  uint32_t node = 0;
  SaveId save;
  uint32_t rank = 0;
  std::string tail;
  uint64_t bytes = 0;
  Duration duration{0};
};
struct PackFailed {
  uint32_t node = 0;
  SaveId save;
  uint32_t rank = 0;
  Status status;
};
struct WorkerFinished {
  uint32_t node = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint64_t step = 0;
};
struct KeeperLost {
  uint32_t node = 0;
  std::string message;
};
struct WorkersGone {
  uint32_t node = 0;
  uint64_t epoch = 0;
};
struct OrderFailed {
  uint32_t node = 0;
  uint64_t epoch = 0;
  std::string order;
  uint32_t rank = 0;
  Status status;
};

// ---- storage ----

// The newest commit of the directory's lineage, read only.
struct Probed {
  Status status;
  std::optional<SaveId> newest;
  std::string rejected;           // newer ones that were not chosen, and why; for people
  std::optional<SaveId> damaged;  // the newest of them that is there, but can't be read
};
struct TermBegun {
  Status status;
  uint64_t term = 0;
  std::optional<SaveId> newest;  // the term's parent
  std::string rejected;
};
struct CommitDone {
  SaveId save;
  Status status;
  uint64_t bytes = 0;
  Duration duration{0};
};

// ---- people and the scheduler ----

struct NoticeReceived {
  std::string id;  // unique, not empty
  std::string reason;
  std::string preemptor;
  Duration time_left{0};
  uint64_t directive = 0;  // number of the scheduler's directive; 0: by hand
  bool stop = false;       // leave and don't queue again
};
struct RescindReceived {
  std::string id;
  uint64_t directive = 0;
};

// A timer of the state is due.
struct Tick {};

using Event = std::variant<AgentAttached, AgentDetached, Heartbeat, WorkerStarted, WorkerClaimed,
                           WorkerExited, GateReplied, WorkerAtGate, SnapshotWhole, PackWritten,
                           PackFailed, WorkerFinished, KeeperLost, WorkersGone, OrderFailed, Probed,
                           TermBegun, CommitDone, NoticeReceived, RescindReceived, Tick>;

}  // namespace godwit::master
