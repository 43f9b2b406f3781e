#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "base/thread.h"
#include "ckpt/engine/arena.h"
#include "ckpt/engine/pack_writer.h"

namespace godwit {

// One pack to write. Holds the memory that it is read from.
struct PersistJob {
  uint32_t slot = 0;
  std::shared_ptr<const SharedMapping> memory;
  std::optional<ckpt::Arena> arena;
  ckpt::WritePackOptions options;  // `cancel` is set by the persister
};

struct PersistResult {
  uint32_t slot = 0;
  ckpt::SaveId save;
  uint32_t rank = 0;
  uint64_t snapshot_epoch = 0;
  uint64_t snapshot_step = 0;
  Result<ckpt::WrittenPack> pack = UnknownError("not run");
  Duration duration{0};  // of the write alone
};

// Writes packs, one after the other, on a thread named gw-persist. Thread-safe.
class Persister {
 public:
  static constexpr size_t kMaxQueued = 256;

  // `done` is called on the persister's thread, once for each job.
  Persister(FileSystem* fs, Clock* clock, std::function<void(PersistResult)> done);
  // Cancels what is under way and waits for it; the rest gets CANCELLED.
  ~Persister();

  // RESOURCE_EXHAUSTED when kMaxQueued wait. A job with a deadline comes before those without one
  // and cancels the one under way if that has none.
  Status Add(PersistJob job);

 private:
  void Run(StopToken stop);

  FileSystem* const fs_;
  Clock* const clock_;
  const std::function<void(PersistResult)> done_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<PersistJob> queue_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool patient_ GUARDED_BY(mutex_) = false;  // the job under way has no deadline
  std::atomic<bool> cancel_{false};
  Thread thread_;
};

}  // namespace godwit
