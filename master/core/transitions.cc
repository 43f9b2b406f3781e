#include "master/core/transitions.h"

#include <iterator>

namespace godwit::master {
namespace {

using enum Phase;

constexpr Transition kTransitions[] = {
    {kWaiting, kStarting, "all agents attached; a new epoch, or workers that have not all claimed"},
    {kWaiting, kRestoring, "adopted: all claimed, gates never opened"},
    {kWaiting, kRunning, "adopted: gates were open"},
    {kWaiting, kRestarting, "adopted in the middle of a restart"},
    {kWaiting, kParking, "adopted after workers were told to park"},
    {kWaiting, kAbandoning, "a notice is active and an earlier master gave up S"},
    {kWaiting, kFailing, "an agent did not attach in time, or the job can't run on these nodes"},
    {kWaiting, kLeaving, "the outcome is known already, or a notice came before any worker"},
    {kStarting, kRestoring, "all claimed, source of the state decided"},
    {kStarting, kRestarting, "a worker failed, budget left"},
    {kStarting, kAbandoning, "notice"},
    {kStarting, kFailing,
     "a worker failed, no budget left; a worker can't be started; claims differ"},
    {kStarting, kLeaving, "a program without the library: all exited with 0"},
    {kRestoring, kRunning, "all ranks stand at the same boundary"},
    {kRestoring, kFinishing, "all ranks restored the last boundary of the run"},
    {kRestoring, kRestarting, "a worker failed, budget left"},
    {kRestoring, kAbandoning, "notice"},
    {kRestoring, kFailing, "a worker failed, no budget left; boundaries differ"},
    {kRunning, kClosing, "notice"},
    {kRunning, kFinishing, "all ranks finished the run's last step"},
    {kRunning, kAbandoning, "adopted with a notice, and a worker has died"},
    {kRunning, kRestarting, "a worker or keeper failed, budget left"},
    {kRunning, kFailing, "a worker or keeper failed, no budget left; a node is lost; superseded"},
    {kRestarting, kStarting, "all workers gone: next epoch"},
    {kRestarting, kAbandoning, "notice"},
    {kRestarting, kFailing, "a node is lost"},
    {kClosing, kRunning, "all notices rescinded and all replies in"},
    {kClosing, kLimiting, "a full set of replies: S = max(entered)"},
    {kClosing, kAbandoning, "S can't be reached in time, or a worker died"},
    {kClosing, kFinishing, "all ranks finished"},
    {kClosing, kRestarting, "rescinded, and a worker failed before all replies were in"},
    {kClosing, kFailing, "a rank finished before S; a node is lost; superseded"},
    {kClosing, kLeaving, "the notice's time is up"},
    {kLimiting, kRunning, "all notices rescinded"},
    {kLimiting, kStaging, "all ranks stand at S"},
    {kLimiting, kAbandoning, "S can't be reached in time, or a worker died"},
    {kLimiting, kFinishing, "S is the last step: all ranks finished"},
    {kLimiting, kFailing, "a rank finished before S; a node is lost; superseded"},
    {kLimiting, kLeaving, "the notice's time is up"},
    {kStaging, kRunning, "all notices rescinded"},
    {kStaging, kParking, "S is whole on all ranks"},
    {kStaging, kAbandoning, "S can't be staged in time, or a worker died"},
    {kStaging, kFailing, "a node is lost; superseded"},
    {kStaging, kLeaving, "the notice's time is up"},
    {kParking, kCommitting, "workers gone, save not committed"},
    {kParking, kLeaving, "workers gone and save committed or given up; or the time is up"},
    {kParking, kStarting, "all notices rescinded and workers gone: in place, from memory"},
    {kCommitting, kLeaving, "save committed or given up; or the time is up"},
    {kCommitting, kStarting, "all notices rescinded: in place, from memory"},
    {kAbandoning, kLeaving, "workers gone and save committed or given up; or the time is up"},
    {kAbandoning, kStarting, "all notices rescinded and workers gone: in place"},
    {kFinishing, kLeaving, "final save committed and workers gone; or a notice's time is up"},
    {kFinishing, kAbandoning, "notice, and a worker died before the final snapshot was whole"},
    {kFinishing, kRestarting, "a worker died before the final snapshot was whole, budget left"},
    {kFinishing, kFailing, "the same without budget; the final save can't be made; superseded"},
    {kFailing, kLeaving, "workers gone and save committed or given up; or a bound"},
    {kLeaving, kEnded, "all agents detached, or a bound"},
};

}  // namespace

std::span<const Transition> Transitions() { return {kTransitions, std::size(kTransitions)}; }

bool IsTransition(Phase from, Phase to) {
  for (const Transition& t : kTransitions) {
    if (t.from == from && t.to == to) return true;
  }
  return false;
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case kWaiting:
      return "Waiting";
    case kStarting:
      return "Starting";
    case kRestoring:
      return "Restoring";
    case kRunning:
      return "Running";
    case kRestarting:
      return "Restarting";
    case kClosing:
      return "Closing";
    case kLimiting:
      return "Limiting";
    case kStaging:
      return "Staging";
    case kParking:
      return "Parking";
    case kCommitting:
      return "Committing";
    case kAbandoning:
      return "Abandoning";
    case kFinishing:
      return "Finishing";
    case kFailing:
      return "Failing";
    case kLeaving:
      return "Leaving";
    case kEnded:
      return "Ended";
  }
  return "?";
}

}  // namespace godwit::master
