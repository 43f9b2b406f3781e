#pragma once

#include "base/file_system.h"
#include "master/core/state.h"
#include "master/master.h"
#include "master/process/storage.h"
#include "proto/scheduler.pb.h"

namespace godwit::master {

// What RunMaster does, with what it touches passed in.
struct ProcessEnvironment {
  FileSystem* fs = nullptr;    // of the run directory
  Storage* storage = nullptr;  // of checkpoint directories
  Clock* clock = nullptr;
  Timeouts timeouts;
  bool handle_signals = true;  // false in tests, whose process has threads
};
int RunMasterIn(const ProcessEnvironment& environment, const MasterOptions& options);

// The job as the options (standalone) or the scheduler's answer describe it.
Config ConfigOf(const MasterOptions& options);
Config ConfigOf(const MasterOptions& options, const proto::RegisterMasterReply& reply);

}  // namespace godwit::master
