#include "launcher/testing/fake_master.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <utility>

#include "base/mutex.h"
#include "base/thread.h"
#include "proto/master.grpc.pb.h"

namespace godwit::testing {

struct FakeMaster::Impl : public proto::Master::Service {
  using Stream = grpc::ServerReaderWriter<proto::MasterOrder, proto::AgentReport>;

  grpc::Status Attach(grpc::ServerContext*, Stream* stream) override {
    uint64_t number = 0;
    {
      MutexLock lock(mutex);
      number = ++streams;
      orders.clear();
    }
    Thread writer("fake-master-tx", [this, stream, number](StopToken) {
      MutexLock lock(mutex);
      while (true) {
        while (number == streams && !stopped && orders.empty()) changed.Wait(mutex);
        if (number != streams || stopped) return;
        const proto::MasterOrder order = std::move(orders.front());
        orders.pop_front();
        mutex.Unlock();
        stream->Write(order);
        mutex.Lock();
      }
    });
    proto::AgentReport report;
    while (stream->Read(&report)) {
      MutexLock lock(mutex);
      if (report.has_hello()) attached = number;
      reports.push_back(report);
      changed.NotifyAll();
    }
    {
      MutexLock lock(mutex);
      if (number == streams) ++streams;
      changed.NotifyAll();
    }
    writer.Join();
    return grpc::Status::OK;
  }
  grpc::Status Notify(grpc::ServerContext*, const proto::NoticeRequest* request,
                      proto::NoticeReply* reply) override {
    MutexLock lock(mutex);
    notices.push_back(*request);
    changed.NotifyAll();
    reply->set_id(request->id());
    reply->set_accepted(true);
    return grpc::Status::OK;
  }

  Mutex mutex;
  CondVar changed;
  bool stopped = false;
  uint64_t streams = 0;
  uint64_t attached = 0;  // the stream whose Hello came last
  std::deque<proto::MasterOrder> orders;
  std::deque<proto::AgentReport> reports;
  std::deque<proto::NoticeRequest> notices;
  std::unique_ptr<grpc::Server> server;
};

FakeMaster::FakeMaster() : impl_(std::make_unique<Impl>()) {}

FakeMaster::~FakeMaster() {
  {
    MutexLock lock(impl_->mutex);
    impl_->stopped = true;
    impl_->changed.NotifyAll();
  }
  if (impl_->server) impl_->server->Shutdown(std::chrono::system_clock::now());
}

Status FakeMaster::Listen(const std::string& address) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(impl_.get());
  impl_->server = builder.BuildAndStart();
  return impl_->server ? OkStatus() : UnavailableError("fake master: cannot listen at " + address);
}

bool FakeMaster::Say(const proto::MasterOrder& order) {
  MutexLock lock(impl_->mutex);
  if (impl_->attached == 0 || impl_->attached != impl_->streams) return false;
  impl_->orders.push_back(order);
  impl_->changed.NotifyAll();
  return true;
}

Result<proto::AgentReport> FakeMaster::Await(
    const std::function<bool(const proto::AgentReport&)>& wanted, MonotonicTime deadline) {
  MutexLock lock(impl_->mutex);
  while (true) {
    while (!impl_->reports.empty()) {
      proto::AgentReport report = std::move(impl_->reports.front());
      impl_->reports.pop_front();
      if (wanted(report)) return report;
    }
    if (!impl_->changed.WaitUntil(impl_->mutex, deadline)) {
      return DeadlineExceededError("fake master: no such report came");
    }
  }
}

bool FakeMaster::AwaitDetached(MonotonicTime deadline) {
  MutexLock lock(impl_->mutex);
  while (impl_->attached == impl_->streams) {
    if (!impl_->changed.WaitUntil(impl_->mutex, deadline)) return false;
  }
  return true;
}

Result<proto::NoticeRequest> FakeMaster::AwaitNotice(MonotonicTime deadline) {
  MutexLock lock(impl_->mutex);
  while (impl_->notices.empty()) {
    if (!impl_->changed.WaitUntil(impl_->mutex, deadline)) {
      return DeadlineExceededError("fake master: no notice came");
    }
  }
  proto::NoticeRequest notice = std::move(impl_->notices.front());
  impl_->notices.pop_front();
  return notice;
}

}  // namespace godwit::testing
