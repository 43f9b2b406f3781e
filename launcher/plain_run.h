#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace godwit {

// `godwit run`: one node, no scheduler.
struct PlainRunOptions {
  uint32_t nproc_per_node = 1;    // workers, 1 to kMaxNodeSlots (agent.h)
  std::string dir;                // of checkpoints; overrides the program's; empty: its own
  uint32_t max_restarts = 0;      // in place, after failures
  std::vector<std::string> argv;  // the program and its arguments; not empty
  std::string run_id;             // name of the job; empty: one is made
  std::string log_dir;            // workers' output is kept there; empty: in run_dir
  // Sockets, journal, logs. Empty: a private directory under TMPDIR that is removed at the end
  // unless the run failed (its path is printed then).
  std::string run_dir;
  // Between the first SIGTERM or SIGINT and the end: time to save and leave.
  Duration shutdown_timeout = std::chrono::seconds(30);
  // The keeper's binary; empty: godwit-keeper beside this program, else in ../libexec.
  std::string keeper_program;
  bool quiet = false;  // workers' output goes to files only
};

// Runs `argv` with its workers to the end; blocks. This process is the node's agent; it starts a
// keeper, and as a child
//   <this program> master --standalone --job J --run-dir D --listen unix:D/master.sock --nodes 1
//                  --workers N --max-restarts R [--dir DIR] -- ARGV...
// which is started again when it is killed. Workers' output comes, line by line and whole, on
// stdout and stderr (with "[rank] " before it when there is more than one worker). SIGTERM and
// SIGINT are a notice with shutdown_timeout left; one more after a second ends the run at once.
// When this process is killed everything ends within 2 s.
//
// Exit code: 0 done; 1 the program failed; 75 left on a signal, nothing lost; 76 left, work was
// lost; 78 bad configuration. Call once, from the main thread, before other threads are started.
int RunPlain(const PlainRunOptions& options);

}  // namespace godwit
