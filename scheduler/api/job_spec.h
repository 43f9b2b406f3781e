#pragma once

#include "base/status.h"
#include "proto/scheduler.pb.h"
#include "scheduler/config/cluster_config.h"

namespace godwit {

// Checks a submitted spec and fills in what it leaves open: name (of the program), the only quota,
// class (from the priority) and priority, idle "forbid", workers 1, slots_per_worker 1,
// max_restarts 3, auto_restart true. INVALID_ARGUMENT names the field, what was got and what is
// allowed.
Status CompleteSpec(const ClusterConfig& config, proto::JobSpec* spec);

}  // namespace godwit
