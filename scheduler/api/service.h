#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/status.h"
#include "scheduler/controller.h"

namespace grpc {
class Server;
}

namespace godwit {

// proto/scheduler.proto on a gRPC server. Requests are handed to the loop, whose thread answers
// them; one that waits (PollDirectives, ListEvents) costs no thread.
class SchedulerServer {
 public:
  // Binds `address` ("unix:<path>" or "<host>:<port>") and begins to take requests, which are
  // answered once the loop runs. UNAVAILABLE when the address can't be bound.
  static Result<std::unique_ptr<SchedulerServer>> Open(const std::string& address,
                                                       Controller& controller, EventLoop& loop,
                                                       Clock& clock);
  // Ends: what waits is answered with UNAVAILABLE. Runs the loop meanwhile. REQUIRES that nobody
  // else runs it.
  ~SchedulerServer();

  // With the port that was chosen for port 0.
  const std::string& address() const { return address_; }

 private:
  class Service;
  SchedulerServer(std::unique_ptr<Service> service, EventLoop& loop);

  std::unique_ptr<Service> service_;
  EventLoop& loop_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace godwit
