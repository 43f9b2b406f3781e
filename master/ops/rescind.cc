#include "master/ops/master_service.h"

namespace godwit::master {

grpc::ServerUnaryReactor* MasterService::Rescind(grpc::CallbackServerContext* context,
                                                 const proto::RescindRequest* request,
                                                 proto::RescindReply* reply) {
  auto* reactor = context->DefaultReactor();
  const bool posted =
      engine_.PostRescind(request->id(), 0, [reactor, reply](const proto::RescindReply& answer) {
        *reply = answer;
        reactor->Finish(grpc::Status::OK);
      });
  if (!posted) {
    reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "the master has too much to do"});
  }
  return reactor;
}

}  // namespace godwit::master
