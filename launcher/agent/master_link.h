#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"
#include "proto/master.pb.h"

namespace grpc {
class ClientContext;
}

namespace godwit {

// The agent's stream to the job's master, made again whenever it breaks: the master is looked up
// (the scheduler knows where it listens now, or its address is fixed), called, and called again
// after a pause that grows up to a second. Two threads; what they learn is posted to the loop.
class MasterLink {
 public:
  struct Options {
    std::string job_id;
    uint32_t attempt = 1;
    std::string scheduler;  // gRPC target to ask; or
    std::string master;     // the master's own
  };
  struct Callbacks {  // on the loop's thread
    // A new stream is there: the first report to send is Hello.
    std::function<void()> connected;
    std::function<void(const proto::MasterOrder&)> order;
    // After `connected`: that stream is gone. Otherwise: why there is none yet.
    std::function<void(const Status& why)> lost;
  };

  // Reports that may wait to be sent. One more breaks the stream: the Hello of the next says all.
  static constexpr size_t kMaxQueued = 4096;

  MasterLink(Options options, EventLoop* loop, Callbacks callbacks);
  ~MasterLink();  // cuts the stream; no callback comes after it

  void Start();
  // Queues a report on the stream that `connected` told of last; nothing is sent once it has
  // broken. Never blocks. False: it was not queued. Loop thread.
  bool Send(proto::AgentReport report);
  // The end: sends what is queued, takes leave of the master, and waits until the stream is closed
  // on both sides, at most until the deadline; then cuts it. No callback comes after it.
  void Close(MonotonicTime deadline);

 private:
  void Run(StopToken stop);
  Result<std::string> Locate();
  Status Serve(const std::string& target, StopToken stop);
  void Post(std::function<void()> fn);

  const Options options_;
  EventLoop* const loop_;
  const Callbacks callbacks_;
  // Posted functions outlive the link: they look here first, on the loop's thread.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  Mutex mutex_;
  CondVar changed_;
  bool open_ GUARDED_BY(mutex_) = false;  // a stream takes reports
  std::deque<proto::AgentReport> queue_ GUARDED_BY(mutex_);
  grpc::ClientContext* context_ GUARDED_BY(mutex_) = nullptr;  // of the call under way
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;   // the thread has nothing more to do
  uint64_t stream_ GUARDED_BY(mutex_) = 0;  // number of the newest stream
  uint64_t known_stream_ = 0;               // the loop's: the one that `connected` told of
  Thread thread_;
};

// Gives the master at `target` a notice; blocks until the deadline at most.
Result<proto::NoticeReply> NotifyMaster(const std::string& target,
                                        const proto::NoticeRequest& request,
                                        MonotonicTime deadline);

}  // namespace godwit
