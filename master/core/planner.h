#pragma once

#include <cstdint>

#include "base/clock.h"

namespace godwit::master {

// What this run has measured so far; a zero means "not measured", and the planner then takes a
// cautious figure. All are upper ends (the worst of the recent ones), because the plan is a
// promise.
struct Measured {
  Duration longest_step{0};     // of any rank of this run
  uint64_t snapshot_bytes = 0;  // largest of any rank
  double pack_ns_per_byte = 0;  // of the slowest rank: writing a pack ÷ bytes of its snapshot
  Duration commit{0};           // CommitSave
  Duration stage{0};            // StageAt ordered -> whole on all ranks
  Duration exit{0};             // ParkWorkers ordered -> workers gone on all nodes
};

enum class PlanFrom : uint8_t {
  kRunning,  // ranks are in steps: agree, stage, park, save
  kStaged,   // all stand at S with a whole snapshot
  kStopped,  // nothing to agree on: stop what runs, save the newest whole snapshot
};

struct PlanInput {
  Measured measured;
  PlanFrom from = PlanFrom::kRunning;
  bool needs_save = true;  // false: what is to be kept is committed already
};

struct Plan {
  Duration agree{0};    // until all ranks stand at S
  Duration stage{0};    // then until S is whole on all
  Duration exit{0};     // then until the devices are free
  Duration write{0};    // beside `exit`: all packs
  Duration commit{0};   // after `write`
  Duration to_gpu{0};   // sum until released(gpu)
  Duration to_node{0};  // sum until released(node)
};

// Pure. Times count from now.
Plan PlanLeave(const PlanInput& input);

// How long before the deadline the choice falls between S and the newest whole snapshot: what
// writing and committing the latter takes, and a margin.
Duration FallbackLead(const Measured& measured);

}  // namespace godwit::master
