#include "scheduler/store/records.h"

namespace godwit {

const char* JobStateName(JobState state) {
  switch (state) {
    case JobState::kQueuing:
      return "Queuing";
    case JobState::kPreparing:
      return "Preparing";
    case JobState::kRunning:
      return "Running";
    case JobState::kRestarting:
      return "Restarting";
    case JobState::kStopping:
      return "Stopping";
    case JobState::kSucceeded:
      return "Succeeded";
    case JobState::kFailed:
      return "Failed";
    case JobState::kStopped:
      return "Stopped";
  }
  return "Unknown";
}

std::optional<JobState> ParseJobState(const std::string& name) {
  for (const JobState state :
       {JobState::kQueuing, JobState::kPreparing, JobState::kRunning, JobState::kRestarting,
        JobState::kStopping, JobState::kSucceeded, JobState::kFailed, JobState::kStopped}) {
    if (name == JobStateName(state)) return state;
  }
  return std::nullopt;
}

}  // namespace godwit
