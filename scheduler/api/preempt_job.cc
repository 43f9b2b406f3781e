#include "scheduler/api/handlers.h"

namespace godwit::api {

Status PreemptJob(Controller& controller, const proto::PreemptJobRequest& request,
                  proto::PreemptJobReply* reply) {
  if (request.grace_ns() > static_cast<uint64_t>(INT64_MAX)) {
    return InvalidArgumentError("grace_ns: got more than 63 bits, allowed: at most max_notice_s");
  }
  GODWIT_ASSIGN_OR_RETURN(
      std::string id,
      controller.Preempt(request.job_id(), Duration(static_cast<int64_t>(request.grace_ns())),
                         request.reason()));
  reply->set_notice_id(std::move(id));
  return OkStatus();
}

}  // namespace godwit::api
