#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "scheduler/policy/capacity.h"
#include "scheduler/policy/cluster.h"

namespace godwit::policy {

// Why these jobs and no others were told to leave: enough to check it again.
struct Certificate {
  struct Victim {
    std::string job;
    uint32_t idle_slots = 0;        // lent to it
    uint32_t guaranteed_slots = 0;  // its own: stay its own, nobody is placed on them
    // Slots that the preemptor could have if this one stayed and the others left.
    uint32_t slots_without = 0;
  };
  std::string rule;  // "idle-quota/2"
  std::string preemptor;
  std::string quota;        // the preemptor's, whose lent slots are reclaimed
  uint32_t need_slots = 0;  // all of them inside its quota's guarantee
  uint32_t have_slots = 0;  // that it could have without any victim
  std::vector<Victim> victims;
  std::vector<std::string> considered;  // all jobs that might have been told to, first choice first
};

// The fewest-reaching set of jobs on lent capacity whose leaving lets the job have min_workers
// guaranteed workers: the state's running and starting jobs that hold idle slots, in the order most
// over-borrowed quota, fewest slots, youngest, id (of the job's own quota not those that accept
// idle capacity and come before it: they would take the guarantee themselves); then without whoever
// isn't needed, so that no part of the set would do. Slots that a victim holds by its own guarantee
// are not given to the job. `released` is the state's capacity once what leaves already is gone,
// less what is reserved. An empty set of victims never comes back; the string says why no set would
// do.
std::variant<Certificate, std::string> PlanReclaim(const ClusterState& state, const Job& job,
                                                   const Capacity& released);

// Checks a certificate against the state that it was made in, with nothing reserved for others:
// FAILED_PRECONDITION names the first claim of it that does not hold.
Status CheckCertificate(const ClusterState& state, const Certificate& certificate);

}  // namespace godwit::policy
