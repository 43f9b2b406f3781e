#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace godwit {

struct SchedulerOptions {
  // The virtual nodes of this machine, "3x1": three nodes with one slot each. Nodes are named
  // node-0, node-1, ...
  std::string nodes = "1x1";
  // Quotas and defaults (scheduler/config/cluster_config.h). Empty: one quota "default" that
  // guarantees all slots.
  std::string config_path;
  // The store, its lock and the jobs' run directories; made when missing. Empty:
  // $XDG_STATE_HOME/godwit/scheduler, else $HOME/.local/state/godwit/scheduler.
  std::string state_dir;
  // "unix:<absolute path>" or "<ip>:<port>"; port 0: any free one. Empty:
  // DefaultSchedulerAddress().
  std::string listen;
  // The program that is started as `<program> master ...` and `<program> agent ...`. Empty: this
  // process's own executable.
  std::string program;
  // Called once with the address that clients use, when it answers. It's also printed to stdout as
  // one line, "godwit scheduler: listening at ADDRESS".
  std::function<void(const std::string& address)> on_listening;
  // Readable: stop, as for SIGTERM. -1: none. Borrowed. For tests, which can't signal themselves.
  int stop_fd = -1;
  // False: the signals stay as they are, only stop_fd stops the scheduler.
  bool handle_signals = true;
};

// Runs the cluster's scheduler in the calling thread until SIGTERM, SIGINT or an error, and returns
// the process's exit code: 0 when it was told to stop, 1 after an error, of which one line
// ("godwit: what, where, allowed") stands on stderr. Jobs outlive it: their masters, agents and
// keepers go on, and a scheduler that is started on the same state directory finds them again. A
// second scheduler on a state directory in use ends with an error that names the first one's pid.
//
// Call while the process has one thread (signals are blocked for all).
int RunScheduler(const SchedulerOptions& options);

// Where a scheduler listens, and clients look for it, when nothing is said:
// "unix:$XDG_RUNTIME_DIR/godwit/scheduler.sock", else
// "unix:<TMPDIR or /tmp>/godwit-<uid>/scheduler.sock". Makes no folder.
std::string DefaultSchedulerAddress();

// OK for "unix:<absolute path of at most 107 bytes>" and "<host>:<port>"; else INVALID_ARGUMENT
// that says what is allowed.
Status CheckSchedulerAddress(const std::string& address);

}  // namespace godwit
