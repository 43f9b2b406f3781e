#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace godwit {

// The agent of one node of a scheduled job: `godwit agent`.
struct AgentOptions {
  std::string job_id;
  uint32_t attempt = 1;
  std::string node_id;
  uint32_t node_index = 0;  // 0-based place of the node in the job's allocation
  uint32_t slots = 1;       // worker slots of the node, 1 to kMaxNodeSlots
  // Where to ask for the master (Scheduler.LocateMaster): a gRPC target, "unix:/path" or
  // "127.0.0.1:4711".
  std::string scheduler;
  // Instead of `scheduler`: the master's own gRPC target, which never changes.
  std::string master;
  // The node's directory, absolute; made if it is missing. Socket, logs of keeper and workers lie
  // in it. A second agent on the same directory adopts the keeper that is there.
  std::string run_dir;
  // A keeper that has not answered for so long, and does nothing, is killed.
  Duration keeper_silence_limit = std::chrono::seconds(10);
  // How long the keeper keeps the workers when the agent is gone; 0: it ends with the agent.
  Duration adopt_window = std::chrono::seconds(60);
  // The keeper's binary; empty: godwit-keeper beside this program, else in ../libexec.
  std::string keeper_program;
  // How long the agent looks for a lost master; then it ends the workers and itself with 76.
  Duration master_lost_limit = std::chrono::seconds(120);
};

inline constexpr uint32_t kMaxNodeSlots = 64;

// Runs the node's part of a job to its end; blocks. Returns the exit code that the master gave with
// Leave (0, 1, 75, 76, ...); 76 when no master was found for master_lost_limit; 78 when the options
// or the master's refusal say that this agent can't work, after one line on stderr. When it returns
// keeper and workers have ended. SIGTERM and SIGINT end workers, keeper and agent (code 76): what
// should be saved first is told to the master, not to the agent. Call once, from the main thread,
// before other threads are started.
int RunAgent(const AgentOptions& options);

}  // namespace godwit
