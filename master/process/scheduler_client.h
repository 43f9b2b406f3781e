#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "master/process/scheduler_link.h"
#include "proto/scheduler.grpc.pb.h"

namespace godwit::master {

// The master's line to the scheduler: registers, polls directives and reports, on two threads. A
// scheduler that is away is tried again, with a growing pause, for as long as the job runs; what
// was to be said is kept meanwhile (of plain events the newest kMaxItems).
class SchedulerClient : public SchedulerLink {
 public:
  static constexpr size_t kMaxItems = 1024;

  struct Options {
    std::string scheduler;  // gRPC address
    std::string job_id;
    uint32_t attempt = 1;
    std::string address;  // where this master listens
    EventLoop* loop = nullptr;
    // All on the loop's thread. The first registration and, after a restart of the scheduler, later
    // ones.
    std::function<void(const proto::RegisterMasterReply&)> on_registered;
    std::function<void(const proto::Directive&)> on_directive;
    // The scheduler knows no such job or attempt: somebody else owns it, or nobody.
    std::function<void(const std::string&)> on_disowned;
    std::function<void()> on_outcome_delivered;
    // Calls back, on the loop's thread, with the status to report.
    std::function<bool(std::function<void(proto::MasterStatus)>)> get_status;
    Duration report_every{std::chrono::seconds(1)};
    Duration outcome_limit{std::chrono::minutes(10)};  // tries to deliver the outcome for that long
  };
  explicit SchedulerClient(Options options);
  ~SchedulerClient() override;

  void Ack(const proto::NoticeReply& reply) override;
  void Released(const std::string& notice_id, bool node) override;
  void Notice(const proto::NoticeRecord& record) override;
  void Happened(const proto::Event& event) override;
  void Acknowledged(uint64_t number) override;
  void StatusChanged() override;
  void Finish(const proto::JobOutcome& outcome) override;

 private:
  void Poll(const StopToken& stop);
  void Report(const StopToken& stop);
  bool Register(const StopToken& stop);
  std::optional<proto::MasterStatus> Status(const StopToken& stop);
  // A call with a deadline that a stop cuts short.
  grpc::Status Call(const StopToken& stop, Duration timeout,
                    const std::function<grpc::Status(grpc::ClientContext&)>& call);
  void Pause(const StopToken& stop, Duration d);
  void Keep(proto::MasterReport item);
  void Disowned(const std::string& why);

  const Options options_;
  const std::unique_ptr<proto::Scheduler::Stub> stub_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<proto::MasterReport> items_ GUARDED_BY(mutex_);  // each with one thing to say
  uint64_t dropped_events_ GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_ GUARDED_BY(mutex_) = 0;
  bool ready_ GUARDED_BY(mutex_) = false;  // Acknowledged was called: the journal was read
  bool dirty_ GUARDED_BY(mutex_) = false;
  bool registered_ GUARDED_BY(mutex_) = false;
  bool disowned_ GUARDED_BY(mutex_) = false;
  std::optional<MonotonicTime> finish_by_ GUARDED_BY(mutex_);
  uint64_t sequence_ = 0;  // the report thread's

  // Last: they use the rest.
  Thread poll_thread_;
  Thread report_thread_;
};

}  // namespace godwit::master
