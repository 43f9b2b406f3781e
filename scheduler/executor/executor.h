#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "scheduler/store/records.h"

namespace godwit {

// One start of a job: a master, and an agent on each node.
struct AttemptPlan {
  struct Node {
    std::string name;
    uint32_t index = 0;    // place in the job's allocation
    uint32_t workers = 0;  // on this node
  };
  std::string job_id;
  uint32_t attempt = 0;
  std::string run_dir;  // absolute; of this attempt
  std::string cwd;      // of agents, and so of workers; empty: the scheduler's
  std::vector<Node> nodes;
};

// What an executor tells, on the scheduler's thread, from its loop or from within a call.
class ExecutorListener {
 public:
  virtual ~ExecutorListener() = default;
  // A process was started, first or again. Should be remembered: Adopt wants it back.
  virtual void OnProcess(const ProcessRecord& process) = 0;
  // Something for people: kinds master-exited, agent-exited, deadline, leftover.
  virtual void OnExecutorEvent(const std::string& job_id, const std::string& kind,
                               const std::string& message) = 0;
  // The attempt can't go on: a process could not be started, or died too often. The executor ends
  // what is left; OnAttemptGone follows. `permanent`: another attempt would fail in the same way.
  virtual void OnAttemptLost(const std::string& job_id, uint32_t attempt, const std::string& reason,
                             bool permanent) = 0;
  // No process of the attempt exists any more: its nodes are free.
  virtual void OnAttemptGone(const std::string& job_id, uint32_t attempt) = 0;
};

// Runs attempts somewhere. Used by the scheduler's thread only; calls return soon. Destroying one
// leaves the processes alone.
class Executor {
 public:
  virtual ~Executor() = default;
  // Starts the processes, and starts those again that die (bounded, with back-off) until the
  // attempt is told to end.
  virtual void Start(const AttemptPlan& plan) = 0;
  // The same for an attempt of an earlier scheduler: processes that still live are kept.
  virtual void Adopt(const AttemptPlan& plan, const std::vector<ProcessRecord>& processes) = 0;
  // From `deadline` on the attempt is ended by force: SIGTERM, kKillAfter later SIGKILL. The
  // earliest deadline counts.
  virtual void SetDeadline(const std::string& job_id, uint32_t attempt, MonotonicTime deadline) = 0;
  // The job's outcome is known: nothing is started again, and what has not ended after `grace` is
  // ended by force.
  virtual void Finish(const std::string& job_id, uint32_t attempt, Duration grace) = 0;

  static constexpr Duration kKillAfter = std::chrono::seconds(5);
};

}  // namespace godwit
