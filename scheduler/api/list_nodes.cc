#include "scheduler/api/handlers.h"

namespace godwit::api {

Status ListNodes(Controller& controller, const proto::ListNodesRequest&,
                 proto::ListNodesReply* reply) {
  const policy::ClusterState& cluster = controller.cluster();
  for (uint32_t i = 0; i < cluster.nodes.size(); ++i) {
    proto::NodeInfo* info = reply->add_nodes();
    info->set_name(cluster.nodes[i].name);
    info->set_slots(cluster.nodes[i].slots);
    uint32_t used = 0;
    bool leaving = false;
    for (const auto& [id, job] : cluster.jobs) {
      bool here = false;
      for (const policy::WorkerPlace& worker : job.workers) {
        if (worker.node != i) continue;
        here = true;
        used += job.slots_per_worker;
      }
      if (!here) continue;
      info->add_job_ids(id);
      leaving |= job.phase == policy::Phase::kLeaving;
    }
    info->set_used(used);
    info->set_state(used == 0 ? "free" : leaving ? "releasing" : "used");
  }
  return OkStatus();
}

}  // namespace godwit::api
