#include <deque>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "master/ops/master_service.h"

namespace godwit::master {
namespace {

// An agent that does not read what it is told is cut off, and attaches again.
constexpr size_t kMaxQueuedOrders = 4096;

// One stream. gRPC ends its life (OnDone); the engine may hold the part that sends for longer.
class AttachReactor : public grpc::ServerBidiReactor<proto::AgentReport, proto::MasterOrder> {
 public:
  explicit AttachReactor(Engine& engine) : engine_(engine), sender_(new Sender(this)) {
    StartRead(&report_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      sender_->End(grpc::Status::OK);
      return;
    }
    if (!engine_.PostReport(sender_, std::move(report_))) {
      sender_->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                "the master has more reports than it can take"));
      return;
    }
    report_.Clear();
    StartRead(&report_);
  }
  void OnWriteDone(bool ok) override { sender_->Written(ok); }
  void OnDone() override {
    sender_->Forget();
    engine_.PostDetached(sender_);
    delete this;
  }

 private:
  class Sender : public AgentStream {
   public:
    explicit Sender(AttachReactor* reactor) : reactor_(reactor) {}

    void Send(proto::MasterOrder order) override {
      MutexLock lock(mutex_);
      if (reactor_ == nullptr || closing_) return;
      queue_.push_back(std::move(order));
      if (queue_.size() > kMaxQueuedOrders) {
        queue_.resize(1);  // the one being written
        FinishLocked(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                  "the agent does not read its orders"));
        return;
      }
      if (queue_.size() == 1) reactor_->StartWrite(&queue_.front());
    }
    void Close() override {
      MutexLock lock(mutex_);
      if (reactor_ == nullptr) return;
      closing_ = true;
      if (queue_.empty()) FinishLocked(grpc::Status::OK);
    }
    void Written(bool ok) {
      MutexLock lock(mutex_);
      if (reactor_ == nullptr) return;
      if (!queue_.empty()) queue_.pop_front();
      if (!ok || finished_) return;  // reading ends too, and ends the stream
      if (!queue_.empty()) {
        reactor_->StartWrite(&queue_.front());
      } else if (closing_) {
        FinishLocked(grpc::Status::OK);
      }
    }
    void End(const grpc::Status& status) {
      MutexLock lock(mutex_);
      if (reactor_ != nullptr) FinishLocked(status);
    }
    void Forget() {
      MutexLock lock(mutex_);
      reactor_ = nullptr;
    }

   private:
    void FinishLocked(const grpc::Status& status) REQUIRES_LOCK(mutex_) {
      closing_ = true;
      if (std::exchange(finished_, true)) return;
      reactor_->Finish(status);
    }

    Mutex mutex_;
    AttachReactor* reactor_ GUARDED_BY(mutex_);
    std::deque<proto::MasterOrder> queue_ GUARDED_BY(mutex_);  // the first is being written
    bool closing_ GUARDED_BY(mutex_) = false;
    bool finished_ GUARDED_BY(mutex_) = false;
  };

  Engine& engine_;
  const std::shared_ptr<Sender> sender_;
  proto::AgentReport report_;
};

}  // namespace

grpc::ServerBidiReactor<proto::AgentReport, proto::MasterOrder>* MasterService::Attach(
    grpc::CallbackServerContext*) {
  return new AttachReactor(engine_);
}

}  // namespace godwit::master
