#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "proto/scheduler.pb.h"

namespace godwit::cli {

// "3" or "1:3" into min_workers and max_workers: at least 1, not falling.
Status SetWorkers(std::string_view text, proto::JobSpec* spec);
// "NAME=value" into env; the last of a name counts.
Status SetEnv(std::string_view text, proto::JobSpec* spec);
Status SetIdle(std::string_view text, proto::JobSpec* spec);      // forbid, accept, only
Status SetJobClass(std::string_view text, proto::JobSpec* spec);  // high, medium, low
Status SetPriority(uint64_t priority, proto::JobSpec* spec);      // 1 to 9
Status SetGrace(std::string_view text, proto::JobSpec* spec);     // a duration above 0

// Reads a job from JSON: an object with the keys name, quota, class, priority, idle, workers (3 or
// "1:3"), slots_per_worker, max_restarts, max_job_restarts, grace ("30s"), auto_restart, command
// (a list), env (an object), dir, cwd. All are optional. An unknown key, a wrong type or value is
// INVALID_ARGUMENT naming `source`, the key, what was got and what is allowed.
Status ReadJobJson(std::string_view json, std::string_view source, proto::JobSpec* spec);

}  // namespace godwit::cli
