#pragma once

#include <string>

#include "cli/scheduler_client.h"
#include "cli/worker_logs.h"

namespace godwit::cli {

struct FollowOptions {
  bool output = false;  // print what the workers print
  bool prefix = false;  // before each line: "[a1 e2 r0] " (attempt, epoch, rank)
  bool json = false;    // each line as an object
  LogFilter filter;
};

// Waits until the job has ended, for as long as that takes; a scheduler that is away for less than
// a minute is waited for. Returns 0 for Succeeded, 1 for Failed and 3 for Stopped, the last two
// with the reason as one line on stderr.
int FollowJob(SchedulerClient& client, const std::string& job_id, const FollowOptions& options);

// Prints what the workers have printed so far.
int PrintJobOutput(const proto::JobInfo& job, const FollowOptions& options);

}  // namespace godwit::cli
