#pragma once

#include <cstdint>
#include <span>

namespace godwit::master {

// What the master is busy with. docs/protocols/preemption.md explains each.
enum class Phase : uint8_t {
  kWaiting = 0,  // for agents: of a new job, or of one that is adopted again
  kStarting,     // an epoch's workers are started and claim their slots
  kRestoring,    // they restore; none steps until all stand at one boundary
  kRunning,
  kRestarting,  // after a failure: the epoch's workers are stopped
  kClosing,     // a notice: gates close, replies come in
  kLimiting,    // ranks short of S run up to it
  kStaging,     // S becomes whole in snapshot memory
  kParking,     // workers exit; packs are written
  kCommitting,  // workers are gone; packs and manifest are not done yet
  kAbandoning,  // a notice without S: workers are stopped, the newest whole snapshot is saved
  kFinishing,   // all steps are done: the final save
  kFailing,     // the job ends: workers are stopped, the newest whole snapshot is saved
  kLeaving,     // agents end
  kEnded,
};
const char* PhaseName(Phase phase);

struct Transition {
  Phase from;
  Phase to;
  const char* condition;
};

// Every transition that there is. The state machine checks each one that it makes against this
// table, and a test compares it with the one in docs/protocols/preemption.md.
std::span<const Transition> Transitions();
bool IsTransition(Phase from, Phase to);

}  // namespace godwit::master
