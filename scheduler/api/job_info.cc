#include "scheduler/api/job_info.h"

#include <algorithm>
#include <tuple>

namespace godwit {
namespace {

uint32_t Guaranteed(const Controller::Job& job) {
  return static_cast<uint32_t>(
      std::count_if(job.attempt->workers.begin(), job.attempt->workers.end(),
                    [](const AttemptRecord::Worker& w) { return w.guaranteed; }));
}

// 1 for the first of those that wait in the same quota.
uint32_t WaitingPosition(const policy::ClusterState& cluster, const policy::Job& job) {
  const auto rank = [](const policy::Job& j) {
    return std::tuple(-static_cast<int>(j.job_class), j.seniority);
  };
  uint32_t position = 1;
  for (const auto& [id, other] : cluster.jobs) {
    if (!other.Holds() && other.quota == job.quota && rank(other) < rank(job)) ++position;
  }
  return position;
}

}  // namespace

std::string ResourceName(const Controller::Job& job) {
  if (!job.Placed()) return "";
  const uint32_t guaranteed = Guaranteed(job);
  if (guaranteed == job.attempt->workers.size()) return "in quota: ordinary";
  return guaranteed == 0 ? "out of quota: idle shared" : "mixed";
}

proto::JobInfo MakeJobInfo(const Controller& controller, const Controller::Job& job) {
  const JobRecord& record = job.record;
  proto::JobInfo info;
  info.set_job_id(record.id);
  *info.mutable_spec() = record.spec;
  info.set_state(JobStateName(record.state));
  info.set_reason(record.reason);
  info.set_resource(ResourceName(job));
  if (job.Placed()) {
    const auto workers = static_cast<uint32_t>(job.attempt->workers.size());
    info.set_workers(workers);
    info.set_guaranteed_workers(Guaranteed(job));
    info.set_idle_workers(workers - Guaranteed(job));
    for (const AttemptRecord::Worker& worker : job.attempt->workers) {
      if (info.nodes().empty() || info.nodes(info.nodes_size() - 1) != worker.node) {
        info.add_nodes(worker.node);
      }
    }
  } else if (const auto it = controller.cluster().jobs.find(record.id);
             it != controller.cluster().jobs.end()) {
    info.set_waiting_position(WaitingPosition(controller.cluster(), it->second));
  }
  info.set_attempt(record.attempt);
  info.set_job_restarts(record.restarts);
  info.set_preemptions(record.preemptions);
  info.set_created_unix_ms(record.created_unix_ms);
  info.set_enqueued_unix_ms(record.enqueued_unix_ms);
  info.set_started_unix_ms(record.started_unix_ms);
  info.set_ended_unix_ms(record.ended_unix_ms);
  *info.mutable_master() = record.master;
  info.set_run_directory(controller.RunDirectory(record.id));
  return info;
}

}  // namespace godwit
