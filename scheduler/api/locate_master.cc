#include "scheduler/api/handlers.h"

namespace godwit::api {

Status LocateMaster(Controller& controller, const proto::LocateMasterRequest& request,
                    proto::LocateMasterReply* reply) {
  GODWIT_ASSIGN_OR_RETURN(std::string address,
                          controller.LocateMaster(request.job_id(), request.attempt()));
  reply->set_address(std::move(address));
  return OkStatus();
}

}  // namespace godwit::api
