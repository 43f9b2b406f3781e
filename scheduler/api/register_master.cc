#include "scheduler/api/handlers.h"

namespace godwit::api {

Status RegisterMaster(Controller& controller, const proto::RegisterMasterRequest& request,
                      proto::RegisterMasterReply* reply) {
  if (request.address().empty() || request.pid() <= 0) {
    return InvalidArgumentError("RegisterMaster: address and pid must be set");
  }
  return controller.RegisterMaster(request, reply);
}

}  // namespace godwit::api
