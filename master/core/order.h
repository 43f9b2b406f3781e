#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "ckpt/format/save_id.h"

// What the master tells an agent: proto/master.proto's MasterOrder without gRPC, so that decisions
// can be made, compared and tested as plain values. What each order means and how it is answered
// stands in the proto.
namespace godwit::master {

using SaveId = ckpt::SaveId;
// For people: "term 3, step 120, try 2".
std::string SaveName(const SaveId& save);

// From where the workers of an epoch restore. The numbers are those of the wire.
enum class ResumeKind : uint32_t {
  kPending = 0,
  kFresh = 1,
  kMemory = 2,
  kStorage = 3,
  kRefused = 4,
};

struct SlotRank {
  uint32_t slot = 0;
  uint32_t rank = 0;
  friend bool operator==(const SlotRank&, const SlotRank&) = default;
};

struct StartEpochOrder {
  uint64_t epoch = 0;
  uint32_t world_size = 0;
  std::vector<SlotRank> ranks;  // of this node
  uint32_t restart_count = 0;
};
struct ResumeOrder {
  uint64_t epoch = 0;
  uint64_t term = 0;  // the writer's, from now on
  ResumeKind kind = ResumeKind::kPending;
  SaveId save;  // kStorage: which; kMemory: only the step counts
  std::string message;
};
struct CloseGatesOrder {
  uint64_t epoch = 0;
};
struct SetLimitOrder {
  uint64_t epoch = 0;
  uint64_t step = 0;
};
struct OpenGatesOrder {
  uint64_t epoch = 0;
};
struct StageAtOrder {
  uint64_t epoch = 0;
  uint64_t step = 0;
};
struct PersistOrder {
  SaveId save;
  uint64_t snapshot_step = 0;
  uint64_t snapshot_epoch = 0;
  std::string directory;
  Duration time_left{0};  // 0: no deadline
  uint32_t world_size = 0;
};
struct CommittedOrder {
  SaveId save;
};
struct SnapshotName {
  uint64_t epoch = 0;
  uint64_t step = 0;
  friend auto operator<=>(const SnapshotName&, const SnapshotName&) = default;
};
struct FreeSnapshotsOrder {
  uint64_t below_step = 0;
  uint64_t epoch = 0;
  std::vector<SnapshotName> drop;
};
struct ParkWorkersOrder {
  uint64_t epoch = 0;
  Duration time_left{0};
};
struct StopWorkersOrder {
  uint64_t epoch = 0;
  Duration grace{0};
  std::string reason;
};
struct LeaveOrder {
  int exit_code = 0;
  std::string reason;
};

using Order = std::variant<StartEpochOrder, ResumeOrder, CloseGatesOrder, SetLimitOrder,
                           OpenGatesOrder, StageAtOrder, PersistOrder, CommittedOrder,
                           FreeSnapshotsOrder, ParkWorkersOrder, StopWorkersOrder, LeaveOrder>;

}  // namespace godwit::master
