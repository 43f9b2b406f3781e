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
#include "ckpt/engine/pack_history.h"
#include "ckpt/engine/pack_writer.h"

namespace godwit {

// One pack to write. Holds the memory that it is read from.
struct PersistJob {
  uint32_t slot = 0;
  std::shared_ptr<const SharedMapping> memory;
  std::optional<ckpt::Arena> arena;
  std::shared_ptr<ckpt::PackHistory> history;
  ckpt::WritePackOptions options;  // `cancel` and `history` are set by the persister
  bool alone = false;              // gives up jobs without a deadline, to have disk and memory
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

// Writes packs in two lanes, each with a thread that takes one after the other: gw-persist for
// those without a deadline, which are written at idle priority, and gw-persist-now for the others,
// which must not wait until the first gets a processor to notice that it is cancelled. Thread-safe.
class Persister {
 public:
  static constexpr size_t kMaxQueued = 256;  // in each lane

  // `done` is called on one of the persister's threads, once for each job.
  Persister(FileSystem* fs, Clock* clock, std::function<void(PersistResult)> done);
  // Cancels what is under way and waits for it; the rest gets CANCELLED.
  ~Persister();

  // RESOURCE_EXHAUSTED when kMaxQueued wait.
  Status Add(PersistJob job);

 private:
  struct Lane {
    std::deque<PersistJob> queue;     // guarded by mutex_
    bool giving_up = false;           // guarded by mutex_: all that waits is cancelled
    std::atomic<bool> cancel{false};  // the job under way
    Thread thread;
  };
  void Run(Lane* lane);

  FileSystem* const fs_;
  Clock* const clock_;
  const std::function<void(PersistResult)> done_;
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  Lane patient_;
  Lane urgent_;
};

}  // namespace godwit
