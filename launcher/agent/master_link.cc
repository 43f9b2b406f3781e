#include "launcher/agent/master_link.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <stop_token>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/unique_fd.h"
#include "proto/master.grpc.pb.h"
#include "proto/scheduler.grpc.pb.h"

namespace godwit {

namespace {

constexpr Duration kLocateTimeout = std::chrono::seconds(2);
constexpr Duration kConnectTimeout = std::chrono::seconds(2);
constexpr Duration kConnectLook = std::chrono::milliseconds(50);
constexpr Duration kListenLook = std::chrono::milliseconds(2);
constexpr Duration kFirstPause = std::chrono::milliseconds(20);
constexpr Duration kLongestPause = std::chrono::seconds(1);
// A pack's tail travels in one report.
constexpr int kMaxMessageBytes = 64 << 20;

Status FromGrpc(const grpc::Status& status, const std::string& what) {
  if (status.ok()) return OkStatus();
  const int code = status.error_code();
  return Status(code > 0 && code <= 16 ? static_cast<StatusCode>(code) : StatusCode::kUnknown,
                what + ": " + status.error_message());
}

// gRPC's deadlines are points of the wall clock.
std::chrono::system_clock::time_point WallDeadline(MonotonicTime deadline) {
  const Duration left = std::max(deadline - MonotonicClock::now(), Duration(0));
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // By default a master that is just being started is tried again only after a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // A connection of its own, so that a new call never inherits a dead one's back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

// Whether somebody listens at the unix socket of a gRPC target; true for targets of other kinds.
bool Listening(const std::string& target) {
  constexpr std::string_view kScheme = "unix:";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!target.starts_with(kScheme)) return true;
  const std::string path = target.substr(kScheme.size());
  if (path.size() >= sizeof(address.sun_path)) return true;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

MasterLink::MasterLink(Options options, EventLoop* loop, Callbacks callbacks)
    : options_(std::move(options)), loop_(loop), callbacks_(std::move(callbacks)) {}

MasterLink::~MasterLink() { Close(MonotonicClock::now()); }

void MasterLink::Start() {
  thread_ = Thread("gw-master", [this](StopToken stop) {
    Run(stop);
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  });
}

void MasterLink::Close(MonotonicTime deadline) {
  *alive_ = false;
  thread_.RequestStop();
  {
    MutexLock lock(mutex_);
    stopped_ = true;  // the writer sends what is queued, then closes our side
    changed_.NotifyAll();
    while (open_ && !ended_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    open_ = false;
    if (context_ != nullptr) context_->TryCancel();
    changed_.NotifyAll();
  }
  thread_.Join();
}

void MasterLink::Post(std::function<void()> fn) {
  const Status posted = loop_->Post([alive = alive_, fn = std::move(fn)] {
    if (*alive) fn();
  });
  // The loop has not come round for 65536 functions: nothing that is said now would reach anyone.
  if (!posted.ok()) LogError("master link: {}", posted.message());
}

bool MasterLink::Send(proto::AgentReport report) {
  MutexLock lock(mutex_);
  if (!open_ || stream_ != known_stream_) return false;
  if (queue_.size() >= kMaxQueued) {
    LogError("{} reports wait for the master: the stream is given up", kMaxQueued);
    open_ = false;
    if (context_ != nullptr) context_->TryCancel();
    return false;
  }
  queue_.push_back(std::move(report));
  changed_.NotifyAll();
  return true;
}

void MasterLink::Run(StopToken stop) {
  Duration pause = kFirstPause;
  while (!stop.stop_requested()) {
    const MonotonicTime began = MonotonicClock::now();
    Status status;
    if (Result<std::string> target = Locate(); target.ok()) {
      status = Serve(*target, stop);
    } else {
      status = target.status();
    }
    Post([this, status] { callbacks_.lost(status); });
    // A stream that held for a while is worth being made again at once.
    if (MonotonicClock::now() - began > kLongestPause) pause = kFirstPause;
    const MonotonicTime until = SaturatingAdd(MonotonicClock::now(), pause);
    pause = std::min(pause * 2, kLongestPause);
    MutexLock lock(mutex_);
    while (!stopped_ && changed_.WaitUntil(mutex_, until)) {
    }
    if (stopped_) return;
  }
}

Result<std::string> MasterLink::Locate() {
  if (!options_.master.empty()) return options_.master;
  grpc::ClientContext context;
  context.set_deadline(WallDeadline(SaturatingAdd(MonotonicClock::now(), kLocateTimeout)));
  {
    MutexLock lock(mutex_);
    if (stopped_) return CancelledError("the agent ends");
    context_ = &context;
  }
  proto::LocateMasterRequest request;
  request.set_job_id(options_.job_id);
  request.set_attempt(options_.attempt);
  proto::LocateMasterReply reply;
  const grpc::Status status = proto::Scheduler::NewStub(MakeChannel(options_.scheduler))
                                  ->LocateMaster(&context, request, &reply);
  {
    MutexLock lock(mutex_);
    context_ = nullptr;
  }
  GODWIT_RETURN_IF_ERROR(FromGrpc(status, "asking the scheduler at " + options_.scheduler +
                                              " for the master of job " + options_.job_id));
  if (reply.address().empty()) {
    return UnavailableError("the scheduler knows no master of job " + options_.job_id);
  }
  return reply.address();
}

Status MasterLink::Serve(const std::string& target, StopToken stop) {
  const std::string what = "master at " + target;
  const MonotonicTime limit = SaturatingAdd(MonotonicClock::now(), kConnectTimeout);
  // A master that is just being started, next to us, mostly: gRPC would come back to it only after
  // 100 ms or so.
  while (!Listening(target)) {
    if (MonotonicClock::now() >= limit) return UnavailableError(what + ": nobody listens there");
    const MonotonicTime look = SaturatingAdd(MonotonicClock::now(), kListenLook);
    MutexLock lock(mutex_);
    while (!stopped_ && changed_.WaitUntil(mutex_, look)) {
    }
    if (stopped_) return CancelledError("the agent ends");
  }
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(target);
  // In short waits: nothing else can end one.
  while (!channel->WaitForConnected(
      WallDeadline(std::min(limit, SaturatingAdd(MonotonicClock::now(), kConnectLook))))) {
    if (stop.stop_requested()) return CancelledError("the agent ends");
    if (MonotonicClock::now() >= limit) return UnavailableError(what + ": no connection");
  }
  const std::unique_ptr<proto::Master::Stub> stub = proto::Master::NewStub(channel);
  grpc::ClientContext context;
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    if (stopped_) return CancelledError("the agent ends");
    context_ = &context;
    queue_.clear();
    open_ = true;
    number = ++stream_;
  }
  const auto stream = stub->Attach(&context);
  Post([this, number] {
    known_stream_ = number;
    callbacks_.connected();
  });

  Thread writer("gw-master-tx", [this, &stream](StopToken) {
    while (true) {
      proto::AgentReport report;
      {
        MutexLock lock(mutex_);
        while (open_ && queue_.empty() && !stopped_) changed_.Wait(mutex_);
        if (!open_) return;
        if (queue_.empty()) break;
        report = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!stream->Write(report)) {
        // The reader sees the end as well, and says why.
        MutexLock lock(mutex_);
        open_ = false;
        changed_.NotifyAll();
        return;
      }
    }
    stream->WritesDone();  // the master closes its side, which ends the reader
  });

  proto::MasterOrder order;
  while (stream->Read(&order)) {
    Post([this, number, order] {
      if (number == known_stream_) callbacks_.order(order);
    });
  }
  {
    MutexLock lock(mutex_);
    open_ = false;
    changed_.NotifyAll();
  }
  context.TryCancel();  // a Write that waits for room returns
  writer.Join();
  const grpc::Status finished = stream->Finish();
  MutexLock lock(mutex_);
  context_ = nullptr;
  const Status status = FromGrpc(finished, what);
  return status.ok() ? UnavailableError(what + ": it ended the stream") : status;
}

Result<proto::NoticeReply> NotifyMaster(const std::string& target,
                                        const proto::NoticeRequest& request,
                                        MonotonicTime deadline) {
  grpc::ClientContext context;
  context.set_deadline(WallDeadline(deadline));
  context.set_wait_for_ready(true);
  proto::NoticeReply reply;
  GODWIT_RETURN_IF_ERROR(
      FromGrpc(proto::Master::NewStub(MakeChannel(target))->Notify(&context, request, &reply),
               "notice to the master at " + target));
  return reply;
}

}  // namespace godwit
