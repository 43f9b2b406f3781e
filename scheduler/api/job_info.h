#pragma once

#include "proto/scheduler.pb.h"
#include "scheduler/controller.h"

namespace godwit {

// A job as people see it, without the records of notices and failures.
proto::JobInfo MakeJobInfo(const Controller& controller, const Controller::Job& job);

// What a job runs on: "in quota: ordinary", "out of quota: idle shared", "mixed"; "" when it isn't
// placed.
std::string ResourceName(const Controller::Job& job);

}  // namespace godwit
