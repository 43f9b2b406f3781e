#include "scheduler/api/handlers.h"

#include "scheduler/api/job_info.h"

namespace godwit::api {

Status ListJobs(Controller& controller, const proto::ListJobsRequest& request,
                proto::ListJobsReply* reply) {
  for (const auto& [number, job] : controller.jobs()) {
    if (!request.all() && HasEnded(job.record.state)) continue;
    *reply->add_jobs() = MakeJobInfo(controller, job);
  }
  return OkStatus();
}

}  // namespace godwit::api
