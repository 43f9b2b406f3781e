#include "launcher/agent/persister.h"

#include <algorithm>
#include <utility>

namespace godwit {

Persister::Persister(FileSystem* fs, Clock* clock, std::function<void(PersistResult)> done)
    : fs_(fs), clock_(clock), done_(std::move(done)) {
  thread_ = Thread("gw-persist", [this](StopToken stop) { Run(stop); });
}

Persister::~Persister() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    cancel_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

Status Persister::Add(PersistJob job) {
  MutexLock lock(mutex_);
  if (queue_.size() >= kMaxQueued) {
    return ResourceExhaustedError("save " + ckpt::ToString(job.options.save) + ": " +
                                  std::to_string(kMaxQueued) + " packs wait to be written already");
  }
  if (!job.options.deadline) {
    queue_.push_back(std::move(job));
  } else {
    const auto after = std::find_if(queue_.begin(), queue_.end(),
                                    [](const PersistJob& j) { return !j.options.deadline; });
    queue_.insert(after, std::move(job));
    if (patient_) cancel_ = true;
  }
  changed_.NotifyAll();
  return OkStatus();
}

void Persister::Run(StopToken) {
  while (true) {
    PersistJob job;
    bool stopped;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopped_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      stopped = stopped_;
      patient_ = !job.options.deadline;
      if (!stopped) cancel_ = false;
    }
    job.options.cancel = &cancel_;
    PersistResult result;
    result.slot = job.slot;
    result.save = job.options.save;
    result.rank = job.options.rank;
    result.snapshot_epoch = job.options.snapshot_epoch;
    result.snapshot_step = job.options.snapshot_step;
    const MonotonicTime began = clock_->Monotonic();
    result.pack = stopped ? Result<ckpt::WrittenPack>(CancelledError("the agent ends"))
                          : ckpt::WritePack(*fs_, *clock_, *job.arena, job.options);
    result.duration = clock_->Monotonic() - began;
    {
      MutexLock lock(mutex_);
      patient_ = false;
    }
    done_(std::move(result));
  }
}

}  // namespace godwit
