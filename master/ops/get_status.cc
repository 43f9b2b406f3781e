#include <utility>

#include "master/ops/master_service.h"

namespace godwit::master {

grpc::ServerUnaryReactor* MasterService::GetStatus(grpc::CallbackServerContext* context,
                                                   const proto::MasterStatusRequest*,
                                                   proto::MasterStatus* reply) {
  auto* reactor = context->DefaultReactor();
  const bool posted = engine_.PostStatus([reactor, reply](proto::MasterStatus status) {
    *reply = std::move(status);
    reactor->Finish(grpc::Status::OK);
  });
  if (!posted) {
    reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "the master has too much to do"});
  }
  return reactor;
}

}  // namespace godwit::master
