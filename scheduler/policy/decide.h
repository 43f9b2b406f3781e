#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "scheduler/policy/cluster.h"
#include "scheduler/policy/reclaim.h"

namespace godwit::policy {

// What happened. Events about a job that isn't in the state, or not in a fitting phase, change
// nothing: reports of the outside may come late.
struct JobSubmitted {
  Job job;  // waiting; REQUIRES: !NeverFits
};
struct JobRunning {  // its workers make steps
  std::string job;
};
struct JobLeaving {  // was told to go by hand
  std::string job;
  LeaveReason reason = LeaveReason::kOperator;
};
struct JobReleased {  // all its slots are free; a waiting job that is withdrawn, too
  std::string job;
  bool requeue = false;  // false: it has ended
};
struct Tick {};
using Event = std::variant<JobSubmitted, JobRunning, JobLeaving, JobReleased, Tick>;

// What is to be done now. The state already says that it's done.
struct StartJob {
  std::string job;
  std::vector<WorkerPlace> workers;
};
struct NotifyJob {
  std::string job;
  LeaveReason reason = LeaveReason::kReclaim;
  std::string preemptor;                   // the job it makes room for; empty for growth
  std::string text;                        // why, for people
  std::optional<Certificate> certificate;  // of a reclaim
};
// Idle claims that have become guaranteed ones; nothing moves.
struct PromoteJob {
  std::string job;
  uint32_t workers = 0;
};
using Action = std::variant<StartJob, NotifyJob, PromoteJob>;

struct Decision {
  std::vector<Action> actions;
  std::optional<MonotonicTime> wake_at;  // a Tick then may bring more
};

// Applies the event, then the rules of idle quota (waiting jobs by class, then seniority, idle ones
// by class, smallest borrowed share, seniority):
//  1. a job that may use guaranteed slots gets min_workers of them when its quota has room and
//     they are free;
//  2. one that forbids idle capacity, fits its quota and lacks slots has jobs on lent slots told to
//     leave (PlanReclaim), and what is released is reserved for it;
//  3. jobs that accept idle capacity get min_workers of mixed claims, or of idle ones;
//  4. who was placed gets up to max_workers of what is left;
//  5. idle claims of running jobs become guaranteed where there's room and nobody waits for it;
//  6. when nobody waits for capacity and nothing is being moved, one running job that could have
//     more workers is told to move.
// Deterministic; each job's `wait` says what it waits for.
Decision Decide(ClusterState& state, const Event& event, MonotonicTime now);

}  // namespace godwit::policy
