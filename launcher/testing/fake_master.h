#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "proto/master.pb.h"

namespace godwit::testing {

// A master that does nothing by itself: it keeps the reports of the agent that attached last, and
// says what the test says. In this process, over real gRPC. Thread-safe.
class FakeMaster {
 public:
  FakeMaster();
  ~FakeMaster();  // breaks the streams

  // Listens at a gRPC address, "unix:/path".
  Status Listen(const std::string& address);
  // False: no agent is attached.
  bool Say(const proto::MasterOrder& order);
  // The first report, of those not yet taken, for which it's true; earlier ones are thrown away.
  // DEADLINE_EXCEEDED when none comes. A second agent's reports follow the first's.
  Result<proto::AgentReport> Await(const std::function<bool(const proto::AgentReport&)>& wanted,
                                   MonotonicTime deadline);
  // False: an agent is still attached at the deadline.
  bool AwaitDetached(MonotonicTime deadline);
  // Notices that came by Notify.
  Result<proto::NoticeRequest> AwaitNotice(MonotonicTime deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace godwit::testing
