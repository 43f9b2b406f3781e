#include "master/ops/master_service.h"

namespace godwit::master {

grpc::ServerUnaryReactor* MasterService::Notify(grpc::CallbackServerContext* context,
                                                const proto::NoticeRequest* request,
                                                proto::NoticeReply* reply) {
  auto* reactor = context->DefaultReactor();
  if (request->time_left_ns() == 0) {
    reactor->Finish({grpc::StatusCode::INVALID_ARGUMENT,
                     "notice: time_left_ns is 0; it must say how long the job may still run"});
    return reactor;
  }
  const bool posted =
      engine_.PostNotice(*request, 0, [reactor, reply](const proto::NoticeReply& answer) {
        *reply = answer;
        reactor->Finish(grpc::Status::OK);
      });
  if (!posted) {
    reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "the master has too much to do"});
  }
  return reactor;
}

}  // namespace godwit::master
