#include "scheduler/api/handlers.h"

namespace godwit::api {

Status PollDirectives(Controller& controller, const proto::PollDirectivesRequest& request,
                      proto::PollDirectivesReply* reply) {
  GODWIT_ASSIGN_OR_RETURN(
      const auto directives,
      controller.Directives(request.job_id(), request.attempt(), request.after_number()));
  for (const proto::Directive& directive : directives) *reply->add_directives() = directive;
  return OkStatus();
}

}  // namespace godwit::api
