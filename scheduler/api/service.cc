#include "scheduler/api/service.h"

#include <fmt/core.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "proto/scheduler.grpc.pb.h"
#include "scheduler/api/handlers.h"

namespace godwit {
namespace {

constexpr uint32_t kMaxWaitMs = 30'000;
constexpr size_t kMaxWaiters = 1024;
constexpr Duration kShutdownGrace = std::chrono::seconds(1);
// gRPC's own threads; requests don't occupy them.
constexpr int kMaxThreads = 16;
constexpr int kMaxMessageBytes = 4 << 20;

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

grpc::Status Stopping() { return {grpc::StatusCode::UNAVAILABLE, "the scheduler is stopping"}; }

}  // namespace

class SchedulerServer::Service : public proto::Scheduler::CallbackService {
 public:
  Service(Controller& controller, EventLoop& loop, Clock& clock)
      : controller_(controller), loop_(loop), clock_(clock) {
    controller_.SetOnChange([this] { LookAgain(); });
  }
  ~Service() override { controller_.SetOnChange(nullptr); }

  // On the loop's thread: nobody waits any longer.
  void Close() {
    closing_ = true;
    while (!waiters_.empty()) {
      Waiter waiter = std::move(waiters_.front());
      waiters_.pop_front();
      loop_.CancelTimer(waiter.timer);
      waiter.reactor->Finish(Stopping());
    }
  }

 private:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  // Tries to answer; nullopt: there is nothing yet.
  using Attempt = std::function<std::optional<Status>()>;
  struct Waiter {
    Reactor* reactor;
    Attempt attempt;
    EventLoop::TimerId timer;
  };

  // Answers by `handler`, on the loop's thread. Request and reply live until the call is finished.
  Reactor* Answer(Context* context, std::function<Status()> handler) {
    Reactor* reactor = context->DefaultReactor();
    if (closing_) {
      reactor->Finish(Stopping());
      return reactor;
    }
    const Status posted = loop_.Post([this, reactor, handler = std::move(handler)] {
      reactor->Finish(closing_ ? Stopping() : ToGrpc(handler()));
    });
    if (!posted.ok()) reactor->Finish(ToGrpc(posted));
    return reactor;
  }

  Reactor* AnswerWhenThereIsSomething(Context* context, uint32_t wait_ms, Attempt attempt) {
    Reactor* reactor = context->DefaultReactor();
    if (closing_) {
      reactor->Finish(Stopping());
      return reactor;
    }
    const Status posted = loop_.Post([this, reactor, wait_ms, attempt = std::move(attempt)] {
      if (closing_) return reactor->Finish(Stopping());
      if (const std::optional<Status> status = attempt()) return reactor->Finish(ToGrpc(*status));
      if (wait_ms == 0) return reactor->Finish(grpc::Status::OK);
      if (waiters_.size() >= kMaxWaiters) {
        return reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
                                fmt::format("{} calls wait already", kMaxWaiters)});
      }
      const auto wait = std::chrono::milliseconds(std::min(wait_ms, kMaxWaitMs));
      const auto it = waiters_.insert(waiters_.end(), {reactor, attempt, 0});
      it->timer = loop_.AddTimer(SaturatingAdd(clock_.Monotonic(), wait), [this, it] {
        Reactor* waiting = it->reactor;
        waiters_.erase(it);
        waiting->Finish(grpc::Status::OK);
      });
    });
    if (!posted.ok()) reactor->Finish(ToGrpc(posted));
    return reactor;
  }

  void LookAgain() {
    for (auto it = waiters_.begin(); it != waiters_.end();) {
      const std::optional<Status> status = it->attempt();
      if (!status) {
        ++it;
        continue;
      }
      loop_.CancelTimer(it->timer);
      Reactor* reactor = it->reactor;
      it = waiters_.erase(it);
      reactor->Finish(ToGrpc(*status));
    }
  }

#define GODWIT_UNARY_(method, Request, Reply)                                                      \
  Reactor* method(Context* context, const proto::Request* request, proto::Reply* reply) override { \
    return Answer(context,                                                                         \
                  [this, request, reply] { return api::method(controller_, *request, reply); });   \
  }
  GODWIT_UNARY_(Submit, SubmitRequest, SubmitReply)
  GODWIT_UNARY_(ListJobs, ListJobsRequest, ListJobsReply)
  GODWIT_UNARY_(GetJob, GetJobRequest, JobInfo)
  GODWIT_UNARY_(StopJob, StopJobRequest, StopJobReply)
  GODWIT_UNARY_(PreemptJob, PreemptJobRequest, PreemptJobReply)
  GODWIT_UNARY_(Explain, GetJobRequest, ExplainReply)
  GODWIT_UNARY_(ListQuotas, ListQuotasRequest, ListQuotasReply)
  GODWIT_UNARY_(ListNodes, ListNodesRequest, ListNodesReply)
  GODWIT_UNARY_(RegisterMaster, RegisterMasterRequest, RegisterMasterReply)
  GODWIT_UNARY_(ReportMaster, MasterReport, MasterReportReply)
  GODWIT_UNARY_(LocateMaster, LocateMasterRequest, LocateMasterReply)
#undef GODWIT_UNARY_

  Reactor* ListEvents(Context* context, const proto::ListEventsRequest* request,
                      proto::ListEventsReply* reply) override {
    return AnswerWhenThereIsSomething(
        context, request->wait_ms(), [this, request, reply]() -> std::optional<Status> {
          const Status status = api::ListEvents(controller_, *request, reply);
          if (status.ok() && reply->events().empty()) return std::nullopt;
          return status;
        });
  }
  Reactor* PollDirectives(Context* context, const proto::PollDirectivesRequest* request,
                          proto::PollDirectivesReply* reply) override {
    return AnswerWhenThereIsSomething(
        context, request->wait_ms(), [this, request, reply]() -> std::optional<Status> {
          const Status status = api::PollDirectives(controller_, *request, reply);
          if (status.ok() && reply->directives().empty()) return std::nullopt;
          return status;
        });
  }

  Controller& controller_;
  EventLoop& loop_;
  Clock& clock_;
  std::atomic<bool> closing_{false};
  std::list<Waiter> waiters_;  // the loop's thread only
};

SchedulerServer::SchedulerServer(std::unique_ptr<Service> service, EventLoop& loop)
    : service_(std::move(service)), loop_(loop) {}

Result<std::unique_ptr<SchedulerServer>> SchedulerServer::Open(const std::string& address,
                                                               Controller& controller,
                                                               EventLoop& loop, Clock& clock) {
  std::unique_ptr<SchedulerServer> server(
      new SchedulerServer(std::make_unique<Service>(controller, loop, clock), loop));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  grpc::ResourceQuota quota("scheduler");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  builder.RegisterService(server->service_.get());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return UnavailableError(fmt::format(
        "can't listen at {}, allowed: an address that is free and this machine's own", address));
  }
  server->address_ = address;
  if (address.rfind("unix:", 0) != 0) {
    server->address_ = address.substr(0, address.rfind(':') + 1) + std::to_string(port);
  }
  return server;
}

SchedulerServer::~SchedulerServer() {
  if (server_ == nullptr) return;
  // Calls that came before are still in the loop's queue; each must be finished before the server
  // can end.
  service_->Close();
  std::atomic<bool> done{false};
  Thread shutdown("gw-shutdown", [&](StopToken) {
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    server_->Wait();
    done = true;
    // Only to wake the loop; when its queue is full it is awake.
    (void)loop_.Post([] {}).ok();
  });
  while (!done) {
    const MonotonicTime deadline =
        SaturatingAdd(RealClock().Monotonic(), std::chrono::milliseconds(100));
    if (Status status = loop_.RunOnce(deadline); !status.ok()) {
      LogError("{}", status.message());
      break;
    }
  }
  shutdown.Join();
}

}  // namespace godwit
