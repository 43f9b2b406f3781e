#include "scheduler/api/handlers.h"

#include "scheduler/api/job_spec.h"

namespace godwit::api {

Status Submit(Controller& controller, const proto::SubmitRequest& request,
              proto::SubmitReply* reply) {
  if (request.idempotency_key().size() > 256) {
    return InvalidArgumentError("idempotency_key: got more than 256 bytes, allowed: at most 256");
  }
  proto::JobSpec spec = request.spec();
  GODWIT_RETURN_IF_ERROR(CompleteSpec(controller.config(), &spec));
  GODWIT_ASSIGN_OR_RETURN(std::string job_id,
                          controller.Submit(std::move(spec), request.idempotency_key()));
  reply->set_job_id(std::move(job_id));
  return OkStatus();
}

}  // namespace godwit::api
