#include "master/core/decide.h"

#include <utility>
#include <variant>

#include "master/core/machine.h"

namespace godwit::master {

Decision Decide(State state, const Event& event, MonotonicTime now, uint64_t wall_unix_ms) {
  Decision decision;
  decision.state = std::move(state);
  Machine machine(decision.state, now, wall_unix_ms, decision);
  std::visit([&](const auto& e) { machine.On(e); }, event);
  machine.Settle();
  return decision;
}

}  // namespace godwit::master
