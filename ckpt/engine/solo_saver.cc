#include "ckpt/engine/solo_saver.h"

#include <fmt/core.h>

#include <atomic>
#include <optional>

#include "base/log.h"
#include "base/mutex.h"
#include "base/strings.h"
#include "base/thread.h"
#include "ckpt/engine/arena_rep.h"
#include "ckpt/engine/pack_writer.h"

namespace godwit::ckpt {

struct SoloSaver::Impl {
  Impl(FileSystem& f, Clock& c, Options o, Arena a, NewTerm t)
      : fs(f),
        clock(c),
        options(std::move(o)),
        arena(std::move(a)),
        begun(std::move(t)),
        history(options.base) {}

  // A snapshot that waits, held in memory.
  struct Job {
    uint64_t step = 0;
    uint64_t epoch = 0;
    SlotPin pin;
  };

  void PersistLoop() EXCLUDES_LOCK(mutex);
  // One save: pack, commit, retention.
  Status Save(const Job& job, uint32_t attempt, std::optional<MonotonicTime> deadline);

  FileSystem& fs;
  Clock& clock;
  const Options options;
  Arena arena;
  const NewTerm begun;
  PackHistory history;

  mutable Mutex mutex;
  CondVar changed;
  std::optional<Job> waiting GUARDED_BY(mutex);
  bool writing GUARDED_BY(mutex) = false;
  bool stop GUARDED_BY(mutex) = false;
  std::optional<MonotonicTime> drain_until GUARDED_BY(mutex);
  Status last GUARDED_BY(mutex);
  uint64_t committed GUARDED_BY(mutex) = 0;
  std::atomic<bool> cancel{false};  // what is being written

  Thread thread;
};

Status SoloSaver::Impl::Save(const Job& job, uint32_t attempt,
                             std::optional<MonotonicTime> deadline) {
  WritePackOptions write;
  write.directory = options.dir;
  write.save = {begun.record.term, job.step, attempt};
  write.snapshot_epoch = job.epoch;
  write.snapshot_step = job.step;
  write.rank = 0;
  write.world_size = 1;
  write.deadline = deadline;
  write.history = &history;
  write.cancel = &cancel;
  GODWIT_ASSIGN_OR_RETURN(const WrittenPack pack, WritePack(fs, clock, arena, write));
  GODWIT_ASSIGN_OR_RETURN(const Commit commit,
                          CommitSave(fs, options.dir, write.save, {pack.tail}));
  history.Committed(commit.save);
  {
    MutexLock lock(mutex);
    committed = commit.save.step;
  }
  // The save is safe, whatever becomes of older ones.
  if (const Status s = Retain(fs, options.dir, begun.record.term, options.keep); !s.ok()) {
    LogWarning("checkpoints: old ones were not removed: {}", s.ToString());
  }
  return OkStatus();
}

void SoloSaver::Impl::PersistLoop() {
  for (uint32_t attempt = 1;; ++attempt) {
    std::optional<Job> job;
    std::optional<MonotonicTime> deadline;
    {
      MutexLock lock(mutex);
      while (!stop && !waiting) changed.Wait(mutex);
      if (stop) return;
      job.emplace(std::move(*waiting));
      waiting.reset();
      writing = true;
      cancel.store(false);
      deadline = drain_until;
    }
    const Status status = Save(*job, attempt, deadline);
    if (!status.ok() && status.code() != StatusCode::kCancelled) {
      LogError("checkpoint of step {} was not saved: {}", job->step, status.ToString());
    }
    MutexLock lock(mutex);
    writing = false;
    if (status.code() == StatusCode::kCancelled && !stop) {
      // Drain wants it at normal priority; unless a newer one came meanwhile.
      if (!waiting) waiting.emplace(std::move(*job));
    } else {
      last = status;
    }
    changed.NotifyAll();
  }
}

SoloSaver::SoloSaver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<SoloSaver>> SoloSaver::Open(FileSystem& fs, Clock& clock, Options options,
                                                   Arena arena) {
  GODWIT_RETURN_IF_ERROR(OpenCheckpointDir(fs, options.dir, /*create=*/true));
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(clock.WallUnix());
  GODWIT_ASSIGN_OR_RETURN(
      NewTerm begun, BeginTerm(fs, options.dir, options.job_id, static_cast<uint64_t>(now.count()),
                               options.distrusted));
  auto impl =
      std::make_unique<Impl>(fs, clock, std::move(options), std::move(arena), std::move(begun));
  Impl* const raw = impl.get();
  impl->thread = Thread("gw-persist", [raw](StopToken) { raw->PersistLoop(); });
  return std::unique_ptr<SoloSaver>(new SoloSaver(std::move(impl)));
}

SoloSaver::~SoloSaver() {
  {
    MutexLock lock(impl_->mutex);
    impl_->stop = true;
    impl_->cancel.store(true);
    impl_->changed.NotifyAll();
  }
  impl_->thread.Join();
}

uint64_t SoloSaver::term() const { return impl_->begun.record.term; }
const Found& SoloSaver::found() const { return impl_->begun.found; }

void SoloSaver::Whole(uint64_t step, uint64_t epoch) { impl_->arena.FreeOlder(epoch, step); }

void SoloSaver::Offer(uint64_t step, uint64_t epoch) {
  auto pin = Arena::Rep::Pin(impl_->arena.rep(), epoch, step);
  if (pin) {
    // Released outside the lock: unpinning frees.
    std::optional<Impl::Job> replaced;
    MutexLock lock(impl_->mutex);
    if (impl_->waiting) replaced.emplace(std::move(*impl_->waiting));
    impl_->waiting.reset();
    impl_->waiting.emplace(Impl::Job{step, epoch, std::move(*pin)});
    impl_->changed.NotifyAll();
  }
  Whole(step, epoch);
}

Status SoloSaver::Drain(Duration budget) {
  Impl& m = *impl_;
  const MonotonicTime deadline = SaturatingAdd(m.clock.Monotonic(), budget);
  MutexLock lock(m.mutex);
  m.drain_until = deadline;
  // What is written at idle priority may get no processor at all: it starts again at a normal one.
  if (m.writing) m.cancel.store(true);
  while (m.writing || m.waiting) {
    if (m.clock.Monotonic() >= deadline) {
      m.drain_until.reset();
      return DeadlineExceededError(
          fmt::format("saves under way are not done after {}", HumanDuration(budget)));
    }
    m.changed.WaitUntil(m.mutex, deadline);
  }
  m.drain_until.reset();
  return m.last;
}

Status SoloSaver::last_error() const {
  MutexLock lock(impl_->mutex);
  return impl_->last;
}

uint64_t SoloSaver::committed_step() const {
  MutexLock lock(impl_->mutex);
  return impl_->committed;
}

}  // namespace godwit::ckpt
