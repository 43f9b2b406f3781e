#include "launcher/agent/persister.h"

#include <utility>

namespace godwit {

Persister::Persister(FileSystem* fs, Clock* clock, std::function<void(PersistResult)> done)
    : fs_(fs), clock_(clock), done_(std::move(done)) {
  patient_.thread = Thread("gw-persist", [this](StopToken) { Run(&patient_); });
  urgent_.thread = Thread("gw-persist-now", [this](StopToken) { Run(&urgent_); });
}

Persister::~Persister() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    patient_.cancel = true;
    urgent_.cancel = true;
    changed_.NotifyAll();
  }
  patient_.thread.Join();
  urgent_.thread.Join();
}

Status Persister::Add(PersistJob job) {
  MutexLock lock(mutex_);
  Lane& lane = job.options.deadline ? urgent_ : patient_;
  if (lane.queue.size() >= kMaxQueued) {
    return ResourceExhaustedError("save " + ckpt::ToString(job.options.save) + ": " +
                                  std::to_string(kMaxQueued) + " packs wait to be written already");
  }
  if (job.alone) {
    patient_.cancel = true;
    patient_.giving_up = !patient_.queue.empty();
  }
  lane.queue.push_back(std::move(job));
  changed_.NotifyAll();
  return OkStatus();
}

void Persister::Run(Lane* lane) {
  while (true) {
    PersistJob job;
    bool give_up = false;
    {
      MutexLock lock(mutex_);
      while (lane->queue.empty() && !stopped_) changed_.Wait(mutex_);
      if (lane->queue.empty()) return;
      job = std::move(lane->queue.front());
      lane->queue.pop_front();
      give_up = stopped_ || lane->giving_up;
      if (lane->queue.empty()) lane->giving_up = false;
      if (!give_up) lane->cancel = false;
    }
    job.options.cancel = &lane->cancel;
    job.options.history = job.history.get();
    PersistResult result;
    result.slot = job.slot;
    result.save = job.options.save;
    result.rank = job.options.rank;
    result.snapshot_epoch = job.options.snapshot_epoch;
    result.snapshot_step = job.options.snapshot_step;
    const MonotonicTime began = clock_->Monotonic();
    if (give_up) {
      result.pack = CancelledError("save " + ckpt::ToString(job.options.save) +
                                   ": given up for one with a deadline, or for the agent's end");
    } else {
      result.pack = ckpt::WritePack(*fs_, *clock_, *job.arena, job.options);
    }
    result.duration = clock_->Monotonic() - began;
    done_(std::move(result));
  }
}

}  // namespace godwit
