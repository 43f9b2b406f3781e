#include "scheduler/policy/cluster.h"

#include <algorithm>

namespace godwit::policy {

const char* LeaveReasonName(LeaveReason reason) {
  switch (reason) {
    case LeaveReason::kReclaim:
      return "reclaim";
    case LeaveReason::kGrow:
      return "grow";
    case LeaveReason::kOperator:
      return "operator";
    case LeaveReason::kStop:
      return "stop";
  }
  return "unknown";
}

uint32_t Job::Slots(Claim claim) const {
  const auto n = std::count_if(workers.begin(), workers.end(),
                               [&](const WorkerPlace& w) { return w.claim == claim; });
  return static_cast<uint32_t>(n) * slots_per_worker;
}

uint32_t ClusterState::Capacity() const {
  uint32_t slots = 0;
  for (const Node& node : nodes) slots += node.slots;
  return slots;
}

uint32_t ClusterState::Used(uint32_t quota, Claim claim) const {
  uint32_t slots = 0;
  for (const auto& [id, job] : jobs) {
    if (job.quota == quota) slots += job.Slots(claim);
  }
  return slots;
}

}  // namespace godwit::policy
