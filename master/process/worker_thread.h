#pragma once

#include <deque>
#include <functional>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"

namespace godwit::master {

// One thread that runs what is posted, in order: for calls that block on storage. What has not
// begun when it is destroyed is not run; what has is waited for.
class WorkerThread {
 public:
  static constexpr size_t kMaxQueued = 64;

  explicit WorkerThread(const std::string& name);
  ~WorkerThread();

  // RESOURCE_EXHAUSTED when kMaxQueued wait.
  Status Post(std::function<void()> job);

 private:
  void Run(const StopToken& stop);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);
  Thread thread_;  // last: it uses the others
};

}  // namespace godwit::master
