#include "master/process/scheduler_client.h"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/log.h"

namespace godwit::master {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kCallTimeout = seconds(5);
constexpr Duration kPollWait = seconds(10);
constexpr Duration kFirstPause = milliseconds(100);
constexpr Duration kLongestPause = seconds(2);

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetMaxReceiveMessageSize(16 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

std::chrono::system_clock::time_point Deadline(Duration d) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::microseconds>(d);
}

// Not this master's job (any more): trying again will not help.
bool Disowns(grpc::StatusCode code) {
  return code == grpc::StatusCode::NOT_FOUND || code == grpc::StatusCode::FAILED_PRECONDITION ||
         code == grpc::StatusCode::ABORTED || code == grpc::StatusCode::PERMISSION_DENIED;
}

}  // namespace

SchedulerClient::SchedulerClient(Options options)
    : options_(std::move(options)),
      stub_(proto::Scheduler::NewStub(Connect(options_.scheduler))),
      poll_thread_("gw-poll", [this](StopToken stop) { Poll(stop); }),
      report_thread_("gw-report", [this](StopToken stop) { Report(stop); }) {}

SchedulerClient::~SchedulerClient() {
  poll_thread_.RequestStop();
  report_thread_.RequestStop();
  changed_.NotifyAll();
}

grpc::Status SchedulerClient::Call(const StopToken& stop, Duration timeout,
                                   const std::function<grpc::Status(grpc::ClientContext&)>& call) {
  grpc::ClientContext context;
  context.set_deadline(Deadline(timeout));
  std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
  return call(context);
}

void SchedulerClient::Pause(const StopToken& stop, Duration d) {
  const MonotonicTime until = SaturatingAdd(MonotonicClock::now(), d);
  MutexLock lock(mutex_);
  while (!stop.stop_requested() && changed_.WaitUntil(mutex_, until)) {
  }
}

void SchedulerClient::Disowned(const std::string& why) {
  bool finishing = false;
  {
    MutexLock lock(mutex_);
    if (std::exchange(disowned_, true)) return;
    finishing = finish_by_.has_value();
  }
  (void)options_.loop->Post([this, why, finishing] {
    options_.on_disowned(why);
    if (finishing) options_.on_outcome_delivered();  // nobody wants to hear it
  });
}

bool SchedulerClient::Register(const StopToken& stop) {
  Duration pause = kFirstPause;
  bool said = false;
  while (!stop.stop_requested()) {
    proto::RegisterMasterRequest request;
    request.set_job_id(options_.job_id);
    request.set_attempt(options_.attempt);
    request.set_address(options_.address);
    request.set_pid(getpid());
    proto::RegisterMasterReply reply;
    const grpc::Status status = Call(stop, kCallTimeout, [&](grpc::ClientContext& context) {
      return stub_->RegisterMaster(&context, request, &reply);
    });
    if (status.ok()) {
      {
        MutexLock lock(mutex_);
        registered_ = true;
      }
      if (said) LogInfo("the scheduler is back");
      (void)options_.loop->Post([this, reply] { options_.on_registered(reply); });
      return true;
    }
    if (Disowns(status.error_code())) {
      Disowned(status.error_message());
      return false;
    }
    if (!std::exchange(said, true)) {
      LogWarning("scheduler {}: {}; trying on", options_.scheduler, status.error_message());
    }
    {
      MutexLock lock(mutex_);
      if (finish_by_ && MonotonicClock::now() > *finish_by_) return false;
    }
    Pause(stop, pause);
    pause = std::min(pause * 2, kLongestPause);
  }
  return false;
}

void SchedulerClient::Poll(const StopToken& stop) {
  uint64_t after = 0;
  Duration pause = kFirstPause;
  while (!stop.stop_requested()) {
    {
      // Not before the journal's number is known and the scheduler has heard of this master.
      MutexLock lock(mutex_);
      if (disowned_) return;
      if (!ready_ || !registered_) {
        (void)changed_.WaitUntil(mutex_, SaturatingAdd(MonotonicClock::now(), seconds(1)));
        continue;
      }
      after = std::max(after, acknowledged_);
    }
    proto::PollDirectivesRequest request;
    request.set_job_id(options_.job_id);
    request.set_attempt(options_.attempt);
    request.set_after_number(after);
    request.set_wait_ms(static_cast<uint32_t>(kPollWait / milliseconds(1)));
    proto::PollDirectivesReply reply;
    const grpc::Status status =
        Call(stop, kPollWait + kCallTimeout, [&](grpc::ClientContext& context) {
          return stub_->PollDirectives(&context, request, &reply);
        });
    if (!status.ok()) {
      Pause(stop, pause);
      pause = std::min(pause * 2, kLongestPause);
      continue;
    }
    pause = kFirstPause;
    for (proto::Directive& directive : *reply.mutable_directives()) {
      if (directive.number() <= after) continue;
      after = directive.number();
      (void)options_.loop->Post(
          [this, directive = std::move(directive)] { options_.on_directive(directive); });
    }
  }
}

std::optional<proto::MasterStatus> SchedulerClient::Status(const StopToken& stop) {
  auto promise = std::make_shared<std::promise<proto::MasterStatus>>();
  auto future = promise->get_future();
  if (!options_.get_status(
          [promise](proto::MasterStatus status) { promise->set_value(std::move(status)); })) {
    return std::nullopt;
  }
  const MonotonicTime give_up = SaturatingAdd(MonotonicClock::now(), seconds(2));
  while (!stop.stop_requested() && MonotonicClock::now() < give_up) {
    if (future.wait_for(milliseconds(20)) == std::future_status::ready) return future.get();
  }
  return std::nullopt;
}

void SchedulerClient::Report(const StopToken& stop) {
  if (!Register(stop)) return;
  Duration pause = kFirstPause;
  MonotonicTime next = MonotonicClock::now();
  while (!stop.stop_requested()) {
    proto::MasterReport report;
    size_t taken = 0;
    bool finishing = false;
    {
      MutexLock lock(mutex_);
      while (!stop.stop_requested() && items_.empty() && !dirty_ && MonotonicClock::now() < next) {
        (void)changed_.WaitUntil(mutex_, next);
      }
      if (disowned_) return;
      dirty_ = false;
      // One thing at a time, except that plain events go together.
      while (taken < items_.size()) {
        const proto::MasterReport& item = items_[taken];
        const bool plain = item.events_size() > 0;
        if (taken > 0 && !plain) break;
        report.MergeFrom(item);
        ++taken;
        if (!plain) break;
      }
      finishing = report.has_outcome();
      report.set_acknowledged_number(acknowledged_);
    }
    if (stop.stop_requested()) return;
    if (auto status = Status(stop)) {
      if (!status->job_id().empty()) *report.mutable_status() = std::move(*status);
    }
    report.set_job_id(options_.job_id);
    report.set_attempt(options_.attempt);
    report.set_sequence(++sequence_);
    report.set_pid(getpid());
    proto::MasterReportReply reply;
    const grpc::Status status = Call(stop, kCallTimeout, [&](grpc::ClientContext& context) {
      return stub_->ReportMaster(&context, report, &reply);
    });
    if (status.ok()) {
      pause = kFirstPause;
      next = SaturatingAdd(MonotonicClock::now(), options_.report_every);
      if (reply.stale()) Disowned("another attempt of the job is newer");
      {
        MutexLock lock(mutex_);
        items_.erase(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(taken));
      }
      if (finishing) {
        (void)options_.loop->Post([this] { options_.on_outcome_delivered(); });
        return;
      }
      continue;
    }
    if (Disowns(status.error_code())) {
      Disowned(status.error_message());
      return;
    }
    {
      MutexLock lock(mutex_);
      if (finish_by_ && MonotonicClock::now() > *finish_by_) {
        LogError("the outcome could not be delivered to the scheduler: {}", status.error_message());
        (void)options_.loop->Post([this] { options_.on_outcome_delivered(); });
        return;
      }
      registered_ = false;
    }
    Pause(stop, pause);
    pause = std::min(pause * 2, kLongestPause);
    // A scheduler that was restarted has to hear again where this master listens.
    if (!Register(stop)) {
      (void)options_.loop->Post([this] { options_.on_outcome_delivered(); });
      return;
    }
    changed_.NotifyAll();
  }
}

void SchedulerClient::Keep(proto::MasterReport item) {
  {
    MutexLock lock(mutex_);
    if (items_.size() >= kMaxItems) {
      // Only plain events may be lost; the rest is bounded by the number of notices.
      const auto it = std::find_if(items_.begin(), items_.end(), [](const proto::MasterReport& r) {
        return r.events_size() > 0;
      });
      if (it != items_.end()) {
        items_.erase(it);
        if (++dropped_events_ == 1) LogWarning("the scheduler is away: events are being dropped");
      }
    }
    items_.push_back(std::move(item));
  }
  changed_.NotifyAll();
}

void SchedulerClient::Ack(const proto::NoticeReply& reply) {
  proto::MasterReport item;
  *item.mutable_ack() = reply;
  Keep(std::move(item));
}

void SchedulerClient::Released(const std::string& notice_id, bool node) {
  proto::MasterReport item;
  if (node) {
    item.set_released_node(notice_id);
  } else {
    item.set_released_gpu(notice_id);
  }
  Keep(std::move(item));
}

void SchedulerClient::Notice(const proto::NoticeRecord& record) {
  proto::MasterReport item;
  *item.mutable_notice_record() = record;
  Keep(std::move(item));
}

void SchedulerClient::Happened(const proto::Event& event) {
  proto::MasterReport item;
  *item.add_events() = event;
  Keep(std::move(item));
}

void SchedulerClient::Acknowledged(uint64_t number) {
  {
    MutexLock lock(mutex_);
    acknowledged_ = std::max(acknowledged_, number);
    ready_ = true;
    dirty_ = true;
  }
  changed_.NotifyAll();
}

void SchedulerClient::StatusChanged() {
  {
    MutexLock lock(mutex_);
    dirty_ = true;
  }
  changed_.NotifyAll();
}

void SchedulerClient::Finish(const proto::JobOutcome& outcome) {
  {
    MutexLock lock(mutex_);
    finish_by_ = SaturatingAdd(MonotonicClock::now(), options_.outcome_limit);
    if (disowned_) {
      (void)options_.loop->Post([this] { options_.on_outcome_delivered(); });
      return;
    }
  }
  proto::MasterReport item;
  *item.mutable_outcome() = outcome;
  Keep(std::move(item));
}

}  // namespace godwit::master
