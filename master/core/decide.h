#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "master/core/action.h"
#include "master/core/event.h"
#include "master/core/state.h"

namespace godwit::master {

struct Decision {
  State state;
  std::vector<Action> actions;
  std::string reason;  // one line: what was decided and why; empty when nothing changed
};

// The in-job master, as a pure function: what is done about `event`, which happened at `now`. No
// I/O, no clock, no threads. Events may come late, twice, and in any order between nodes; those of
// one node's stream come in the order they were sent in. `wall_unix_ms` only dates records.
Decision Decide(State state, const Event& event, MonotonicTime now, uint64_t wall_unix_ms = 0);

}  // namespace godwit::master
