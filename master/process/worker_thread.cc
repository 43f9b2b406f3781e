#include "master/process/worker_thread.h"

#include <utility>

namespace godwit::master {

WorkerThread::WorkerThread(const std::string& name)
    : thread_(name, [this](StopToken stop) { Run(stop); }) {}

WorkerThread::~WorkerThread() {
  thread_.RequestStop();
  {
    MutexLock lock(mutex_);
    queue_.clear();
  }
  changed_.NotifyAll();
  thread_.Join();
}

Status WorkerThread::Post(std::function<void()> job) {
  {
    MutexLock lock(mutex_);
    if (queue_.size() >= kMaxQueued) {
      return ResourceExhaustedError("too many calls wait for storage");
    }
    queue_.push_back(std::move(job));
  }
  changed_.NotifyAll();
  return OkStatus();
}

void WorkerThread::Run(const StopToken& stop) {
  for (;;) {
    std::function<void()> job;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stop.stop_requested()) changed_.Wait(mutex_);
      if (stop.stop_requested()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    job();
  }
}

}  // namespace godwit::master
