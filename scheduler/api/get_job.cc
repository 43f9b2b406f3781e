#include "scheduler/api/handlers.h"

#include "scheduler/api/job_info.h"

namespace godwit::api {

Status GetJob(Controller& controller, const proto::GetJobRequest& request, proto::JobInfo* reply) {
  GODWIT_ASSIGN_OR_RETURN(const Controller::Job* job, controller.Find(request.job_id()));
  *reply = MakeJobInfo(controller, *job);
  GODWIT_ASSIGN_OR_RETURN(const auto notices, controller.store().Notices(request.job_id()));
  for (const proto::NoticeRecord& notice : notices) *reply->add_notices() = notice;
  GODWIT_ASSIGN_OR_RETURN(const auto failures, controller.store().Failures(request.job_id()));
  for (const proto::FailureRecord& failure : failures) *reply->add_failures() = failure;
  return OkStatus();
}

}  // namespace godwit::api
