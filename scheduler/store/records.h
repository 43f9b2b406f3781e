#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/scheduler.pb.h"

namespace godwit {

// What people see as a job's state; the names are those of the API.
enum class JobState {
  kQueuing,
  kPreparing,
  kRunning,
  kRestarting,
  kStopping,
  kSucceeded,
  kFailed,
  kStopped,
};
const char* JobStateName(JobState state);
std::optional<JobState> ParseJobState(const std::string& name);
inline bool HasEnded(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed || state == JobState::kStopped;
}

struct JobRecord {
  std::string id;
  uint64_t number = 0;  // 1, 2, ... in the order of submission; the seniority
  std::string idempotency_key;
  proto::JobSpec spec;
  JobState state = JobState::kQueuing;
  std::string reason;     // why it waits, left or ended
  uint32_t attempt = 0;   // starts so far
  uint32_t restarts = 0;  // failures charged
  uint32_t losses = 0;    // attempts whose processes were lost, not charged
  uint32_t preemptions = 0;
  uint64_t created_unix_ms = 0;
  uint64_t enqueued_unix_ms = 0;
  uint64_t started_unix_ms = 0;
  uint64_t ended_unix_ms = 0;
  std::optional<uint64_t> expected_step;  // the newest that was reported as committed
  proto::MasterStatus master;             // as last reported
  bool stop_requested = false;
  std::string explanation;       // of the last notice
  std::string certificate_json;  // of the last reclaim
};

// One start of a job on some nodes.
struct AttemptRecord {
  struct Worker {
    std::string node;
    bool guaranteed = false;
  };
  std::string job_id;
  uint32_t attempt = 0;
  std::vector<Worker> workers;
  bool running = false;  // its workers have made steps
  bool ended = false;    // nothing of it runs any more
  // Set once it was told to leave: policy::LeaveReasonName.
  std::string leave_reason;
  std::string preemptor;
  std::string notice_id;         // empty for a stop
  uint64_t deadline_ns = 0;      // monotonic, of the boot below
  std::string deadline_boot_id;  // of the host
  uint64_t leave_unix_ms = 0;
  std::string master_address;
  int32_t master_pid = 0;
  uint64_t master_sequence = 0;  // newest report of that process
  std::optional<proto::JobOutcome> outcome;
  uint64_t started_unix_ms = 0;
  uint64_t ended_unix_ms = 0;
};

// A process that the executor started. Pid, start time and boot id name it for ever.
struct ProcessRecord {
  std::string job_id;
  uint32_t attempt = 0;
  std::string role;  // "master" or "agent"
  std::string node;  // of an agent
  int32_t pid = 0;
  uint64_t start_time = 0;
  std::string boot_id;
  uint32_t starts = 0;  // how often it was started in this attempt
};

struct DirectiveRecord {
  std::string job_id;
  uint32_t attempt = 0;
  proto::Directive body;         // with its number; times left are filled in when it's sent
  uint64_t deadline_ns = 0;      // monotonic, of the boot below
  std::string deadline_boot_id;  // of the host
  bool acknowledged = false;
};

}  // namespace godwit
