#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "ckpt/engine/arena.h"
#include "ckpt/include/godwit/ckpt/state.h"

namespace godwit::ckpt {

// Takes snapshots of a rank's state into its arena: volatile state on the training thread at the
// boundary, stable state on a background thread behind the next forward and backward. Digests of
// every chunk are taken in the same pass. The training thread calls everything but `on_whole`.
class Snapshotter {
 public:
  struct Options {
    uint32_t rank = 0;
    uint32_t world_size = 1;
    uint64_t term = 0;
    uint64_t epoch = 0;
    // Longest wait inside Fence; then the snapshot is given up and training goes on.
    Duration fence_budget = std::chrono::seconds(10);
    uint64_t volatile_budget_bytes = 64ull << 20;  // copied at the gate; more is refused at Open
    // Digest the source again at the end of the copy.
    bool verify_boundary = false;
    // On the snapshot thread, when a snapshot is whole: step and bytes.
    std::function<void(uint64_t step, uint64_t bytes)> on_whole;
    // On the snapshot thread, when one was given up; the message names the tensor or the reason.
    std::function<void(uint64_t step, const Status& why)> on_dropped;
    Clock* clock = nullptr;  // required
  };

  // The plan that the state gives; the arena must have been opened with it.
  static Result<Plan> MakePlan(const StateList& state, uint32_t rank, uint32_t world_size);
  static Result<std::unique_ptr<Snapshotter>> Open(const StateList& state, Arena arena,
                                                   Options options);
  ~Snapshotter();  // gives up what is under way, joins

  // At boundary `step` ("step updates done"). Copies volatile state, then returns; stable state
  // follows in the background. UNAVAILABLE when no slot is free or the previous copy is under way
  // (the snapshot is skipped: an expected outcome); FAILED_PRECONDITION naming the tensor when
  // storage moved or was resized since Open.
  Status Begin(uint64_t step);

  // Right before state is updated: returns when nothing of the current snapshot is left to copy.
  // Without one it costs one relaxed load. DEADLINE_EXCEEDED when the budget ran out: the snapshot
  // was dropped, and it is safe to update all the same.
  Status Fence();

  // Begin and wait until whole. For boundaries where the rank is held: the step S of a notice, the
  // end of the run. Waits for a snapshot under way; if that is of the same step, it is the one.
  // While no slot is free it waits for one, up to `budget`.
  Status StageNow(uint64_t step, Duration budget);

  bool busy() const;
  uint64_t last_whole_step() const;  // 0 if none; see has_whole
  bool has_whole() const;
  Duration fence_wait_total() const;

 private:
  struct Impl;
  explicit Snapshotter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace godwit::ckpt
