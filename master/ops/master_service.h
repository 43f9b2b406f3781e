#pragma once

#include <grpcpp/grpcpp.h>

#include "master/process/engine.h"
#include "proto/master.grpc.pb.h"

namespace godwit::master {

// proto.Master, in gRPC's callback style: no thread waits for anybody. One RPC per file in
// master/ops. The engine outlives the server.
class MasterService : public proto::Master::CallbackService {
 public:
  explicit MasterService(Engine& engine) : engine_(engine) {}

  grpc::ServerBidiReactor<proto::AgentReport, proto::MasterOrder>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Notify(grpc::CallbackServerContext* context,
                                   const proto::NoticeRequest* request,
                                   proto::NoticeReply* reply) override;
  grpc::ServerUnaryReactor* Rescind(grpc::CallbackServerContext* context,
                                    const proto::RescindRequest* request,
                                    proto::RescindReply* reply) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const proto::MasterStatusRequest* request,
                                      proto::MasterStatus* reply) override;

 private:
  Engine& engine_;
};

}  // namespace godwit::master
