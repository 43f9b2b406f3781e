#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

// What the policy knows of a cluster. Plain values: no I/O, no threads, no clock.
namespace godwit::policy {

// What a held slot stands on: the own quota's guarantee, or capacity lent by whoever does not use
// it now.
enum class Claim { kGuaranteed, kIdle };

// Whether a job uses idle capacity (PAI: ForbiddenQuotaOverSold, AcceptQuotaOverSold,
// ForceQuotaOverSold).
enum class IdleUse {
  kForbid,  // guaranteed slots only
  kAccept,  // guaranteed while they fit now, idle ones for the rest
  kOnly,    // idle ones only, also of its own quota
};

enum class JobClass { kLow = 0, kMedium = 1, kHigh = 2 };

enum class QueueStrategy {
  kRoundRobin,  // a job that can't be placed is skipped
  kStrictFifo,  // the head is never skipped
};

struct Quota {
  std::string name;
  uint32_t guaranteed = 0;      // slots
  std::optional<uint32_t> max;  // the quota borrows nothing beyond it; unset: no bound
  bool lendable = true;         // others may use what it doesn't
  QueueStrategy queue = QueueStrategy::kRoundRobin;
};

struct Node {
  std::string name;
  uint32_t slots = 0;
};

// A worker of a placed job: it holds the job's slots_per_worker on one node.
struct WorkerPlace {
  uint32_t node = 0;  // index into ClusterState::nodes
  Claim claim = Claim::kGuaranteed;
  friend bool operator==(const WorkerPlace&, const WorkerPlace&) = default;
};

enum class Phase {
  kWaiting,
  kStarting,  // placed
  kRunning,   // its workers make steps
  kLeaving,   // has been told to go; holds its slots until it's released
};

enum class LeaveReason {
  kReclaim,   // the owner of the idle capacity wants it
  kGrow,      // to come back on more workers
  kOperator,  // by hand: comes back
  kStop,      // by hand: does not come back
};
const char* LeaveReasonName(LeaveReason reason);  // "reclaim", "grow", "operator", "stop"

// Why a waiting job waits.
enum class WaitKind {
  kNone,
  kQuota,     // its quota's guarantee is in use
  kCapacity,  // not enough free slots that it may use
  kRelease,   // capacity is being released for it
  kBehind,    // the head of its strict queue waits
};
struct Wait {
  WaitKind kind = WaitKind::kNone;
  std::string text;
  friend bool operator==(const Wait&, const Wait&) = default;
};

struct Job {
  // Constant.
  std::string id;
  uint32_t quota = 0;  // index into ClusterState::quotas
  JobClass job_class = JobClass::kMedium;
  IdleUse idle = IdleUse::kForbid;
  uint32_t min_workers = 1;  // a gang: it holds none, or at least as many
  uint32_t max_workers = 1;
  uint32_t slots_per_worker = 1;
  uint64_t seniority = 0;  // place in the order of first enqueueing; kept through preemption

  Phase phase = Phase::kWaiting;
  std::vector<WorkerPlace> workers;            // empty exactly while waiting
  LeaveReason leave = LeaveReason::kOperator;  // while leaving
  std::string preemptor;  // while leaving for a reclaim: the job it makes room for
  // While waiting: jobs were told to leave for it. What they release is for it before all others,
  // else those who come back could take it, and would be told to leave again.
  bool planned = false;
  MonotonicTime grow_not_before{};
  uint32_t moved_from = 0;     // workers before the move for growth that it's on, or just had
  uint32_t grow_failures = 0;  // moves in a row that brought no more workers
  Wait wait;

  uint32_t Slots() const { return static_cast<uint32_t>(workers.size()) * slots_per_worker; }
  uint32_t Slots(Claim claim) const;
  bool Holds() const { return phase != Phase::kWaiting; }
};

struct ClusterState {
  std::vector<Node> nodes;
  std::vector<Quota> quotas;
  // A job that makes steps on fewer workers than it could have is moved when it has run for as
  // long; twice as long after each move that brought nothing.
  Duration grow_after = std::chrono::seconds(5);
  std::map<std::string, Job> jobs;  // those that have not ended

  uint32_t Capacity() const;
  // Held by the quota's jobs, also leaving ones.
  uint32_t Used(uint32_t quota, Claim claim) const;
};

}  // namespace godwit::policy
