#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace godwit {

// How a job's master is started. One master per job: a process of its own, which agents find and
// which the scheduler's executor (or the agent of a plain run) starts again when it was killed.
struct MasterOptions {
  std::string job_id;
  uint32_t attempt = 1;   // of the job's starts; reports of another attempt are refused
  std::string run_dir;    // created if missing; holds the journal and, standalone, the socket
  std::string scheduler;  // gRPC address; required unless standalone

  // Without a scheduler (a plain `godwit run`): the job comes from the options below, the master
  // listens on the unix socket <run_dir>/master.sock, and ends about a second after its last agent.
  bool standalone = false;
  uint32_t nodes = 1;    // agents to wait for
  uint32_t workers = 1;  // world size
  uint32_t max_restarts = 0;
  std::string directory;          // of checkpoints, absolute; empty: what the workers say
  std::vector<std::string> argv;  // of a worker; not empty
  std::vector<std::string> env;   // NAME=value, added to the agent's environment

  // Where to listen instead: "127.0.0.1:0" (a free port; what a scheduled job uses) or
  // "unix:<path>".
  std::string listen;
};

// The socket of a standalone master: "<run_dir>/master.sock". As a gRPC address it needs "unix:"
// before it, and must fit into sun_path (107 bytes): RunMaster refuses a longer one.
std::string StandaloneSocketPath(const std::string& run_dir);

// Runs the job's master until the job has ended or left; blocks. Returns the exit code of the job:
// 0 done, 1 failed, 2 options that can't be, 75 preempted without loss, 76 preempted with loss or
// told to end (SIGTERM, SIGINT), 78 a configuration that can't work. The process must have one
// thread when this is called. Started again with the same run_dir after a crash, it goes on with
// the job from its journal; once the job has ended, it only reports the outcome again.
//
// What it tells the scheduler by MasterReport.events (the rest has fields of its own): resumed,
// parked, committed, alarm, failure, restarted, finished.
int RunMaster(const MasterOptions& options);

}  // namespace godwit
