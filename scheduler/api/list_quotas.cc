#include "scheduler/api/handlers.h"

#include <algorithm>

namespace godwit::api {

Status ListQuotas(Controller& controller, const proto::ListQuotasRequest&,
                  proto::ListQuotasReply* reply) {
  const policy::ClusterState& cluster = controller.cluster();
  uint32_t idle_in_all = 0;
  for (uint32_t i = 0; i < cluster.quotas.size(); ++i) {
    idle_in_all += cluster.Used(i, policy::Claim::kIdle);
  }
  // Slots that belong to no quota are borrowed first.
  uint32_t guaranteed_in_all = 0;
  for (const policy::Quota& quota : cluster.quotas) guaranteed_in_all += quota.guaranteed;
  const uint32_t unowned = cluster.Capacity() - guaranteed_in_all;
  uint32_t borrowed = idle_in_all - std::min(idle_in_all, unowned);
  for (uint32_t i = 0; i < cluster.quotas.size(); ++i) {
    const policy::Quota& quota = cluster.quotas[i];
    proto::QuotaInfo* info = reply->add_quotas();
    info->set_name(quota.name);
    info->set_guaranteed(quota.guaranteed);
    info->set_max(quota.max.value_or(0));
    info->set_lendable(quota.lendable);
    info->set_queue(quota.queue == policy::QueueStrategy::kStrictFifo ? "strict-fifo"
                                                                      : "round-robin");
    const uint32_t used = cluster.Used(i, policy::Claim::kGuaranteed);
    info->set_used_guaranteed(used);
    info->set_used_idle(cluster.Used(i, policy::Claim::kIdle));
    if (quota.lendable) {
      const uint32_t unused = quota.guaranteed - std::min(quota.guaranteed, used);
      info->set_lent(std::min(unused, borrowed));
      borrowed -= info->lent();
    }
    uint32_t waiting = 0;
    for (const auto& [id, job] : cluster.jobs) {
      if (!job.Holds() && job.quota == i) ++waiting;
    }
    info->set_waiting(waiting);
  }
  return OkStatus();
}

}  // namespace godwit::api
