#include "master/core/state.h"

#include <algorithm>
#include <utility>

namespace godwit::master {

MonotonicTime Notice::deadline() const {
  MonotonicTime earliest = MonotonicTime::max();
  for (const NoticePart& part : parts) earliest = std::min(earliest, part.deadline);
  return earliest;
}

bool Notice::stop() const {
  return std::any_of(parts.begin(), parts.end(), [](const NoticePart& p) { return p.stop; });
}

const char* OutcomeName(OutcomeState state) {
  switch (state) {
    case OutcomeState::kSucceeded:
      return "Succeeded";
    case OutcomeState::kFailed:
      return "Failed";
    case OutcomeState::kPreempted:
      return "Preempted";
    case OutcomeState::kStopped:
      return "Stopped";
  }
  return "?";
}

State InitialState(const Config& config, const Durable& durable, MonotonicTime now) {
  State state;
  state.config = config;
  state.durable = durable;
  state.nodes.resize(config.nodes);
  state.timers[static_cast<size_t>(TimerId::kPhase)] = SaturatingAdd(now, config.timeouts.attach);
  if (durable.notice) {
    const MonotonicTime give_up = durable.notice->deadline() - config.timeouts.give_up_lead;
    state.timers[static_cast<size_t>(TimerId::kGiveUp)] = std::max(give_up, now);
  }
  return state;
}

std::optional<MonotonicTime> NextTimer(const State& state) {
  std::optional<MonotonicTime> next;
  for (const auto& timer : state.timers) {
    if (timer && (!next || *timer < *next)) next = timer;
  }
  return next;
}

std::string StatusWord(const State& state) {
  using enum Phase;
  if (state.phase == kLeaving || state.phase == kEnded) {
    return OutcomeName(state.durable.outcome->state);
  }
  switch (state.phase) {
    case kWaiting:
      return state.durable.epoch == 0 ? "Preparing" : "Running";
    case kStarting: {
      // A program without the library never claims: it runs once it is started.
      const bool runs = !state.ranks.empty() &&
                        std::all_of(state.ranks.begin(), state.ranks.end(),
                                    [](const RankInfo& r) { return r.started && !r.claim; });
      if (runs) return "Running";
      return state.durable.restarts_used > 0 ? "Restarting" : "Preparing";
    }
    case kRestoring:
      return state.durable.restarts_used > 0 ? "Restarting" : "Preparing";
    case kRestarting:
      return "Restarting";
    case kRunning:
      return "Running";
    default:
      return "Stopping";
  }
}

bool WholeOnAll(const State& state, uint64_t epoch, uint64_t step) {
  return !state.ranks.empty() &&
         std::all_of(state.ranks.begin(), state.ranks.end(), [&](const RankInfo& r) {
           return std::any_of(r.snapshots.begin(), r.snapshots.end(), [&](const WholeSnapshot& s) {
             return s.epoch == epoch && s.step == step;
           });
         });
}

std::optional<GlobalSnapshot> NewestWhole(const State& state, bool restorable) {
  std::optional<GlobalSnapshot> newest;
  if (state.ranks.empty()) return newest;
  for (const WholeSnapshot& candidate : state.ranks.front().snapshots) {
    if (newest &&
        std::pair(candidate.epoch, candidate.step) <= std::pair(newest->epoch, newest->step)) {
      continue;
    }
    uint64_t bytes = 0;
    const bool whole = std::all_of(state.ranks.begin(), state.ranks.end(), [&](const RankInfo& r) {
      return std::any_of(r.snapshots.begin(), r.snapshots.end(), [&](const WholeSnapshot& s) {
        if (s.epoch != candidate.epoch || s.step != candidate.step) return false;
        if (restorable && !s.restorable) return false;
        bytes = std::max(bytes, s.bytes);
        return true;
      });
    });
    if (whole) newest = GlobalSnapshot{candidate.epoch, candidate.step, bytes};
  }
  return newest;
}

}  // namespace godwit::master
