#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace godwit {

// What one gate word says. Boundary k means "k updates are done"; `entered` counts the steps that
// were entered since step 0 of the run, so a rank with entered == k is inside step k or waits at
// boundary k.
struct GateView {
  uint32_t entered = 0;
  uint32_t limit = 0;  // while closed: steps may still be entered up to this count
  bool closed = false;
  bool finished = false;  // the rank's step loop has ended, at `entered`
};

inline constexpr uint32_t kMaxGateStep = (1u << 31) - 1;

// The step gate of one worker: a single 64-bit word, so that entering and closing are one atomic
// operation each and their order is total. Publishing "closed" and then reading a separate
// progress counter would miss a step that is being entered (measured: in 19 % of notices).
//
// Bits: 0-30 entered, 31-61 limit, 62 closed, 63 finished. While open, limit is 0.
// Lives in shared memory: the worker enters, the agent closes, limits and opens. Lock-free; any
// thread of either process.
class StepGate {
 public:
  // `word` must outlive the gate.
  explicit StepGate(std::atomic<uint64_t>* word) : word_(word) {}

  static uint64_t Pack(const GateView& view);
  static GateView Unpack(uint64_t word);

  // Worker, before the first step: closed, entered = `step`. A new epoch always starts closed.
  void Reset(uint32_t step);

  // Worker, once per step. True: the step is entered. False: the gate is closed at this boundary.
  bool TryEnter() {
    return TryEnter([] {});
  }
  // The same, with a call between looking at the word and changing it: tests hold a rank there.
  template <typename BeforeExchange>
  bool TryEnter(BeforeExchange&& before_exchange) {
    uint64_t word = word_->load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t entered = word & kEnteredMask;
      if ((word & kClosedBit) != 0 && entered >= ((word >> kLimitShift) & kEnteredMask)) {
        return false;
      }
      if (entered == kEnteredMask) return false;
      before_exchange();
      if (word_->compare_exchange_weak(word, word + 1, std::memory_order_acq_rel,
                                       std::memory_order_relaxed)) {
        return true;
      }
    }
  }

  // Worker: its step loop ended. Later closes see it in their reply.
  void Finish() { word_->fetch_or(kFinishedBit, std::memory_order_acq_rel); }

  // Agent: no step beyond the limit is entered from now on. Returns the exact state at that
  // moment. Idempotent: closing a closed gate keeps its limit.
  GateView Close();

  // Agent: lets a closed gate's rank run up to `step` and no further. FAILED_PRECONDITION when the
  // gate is open, OUT_OF_RANGE when the rank is already past `step` (naming both).
  Status SetLimit(uint32_t step);

  // Agent: opens the gate.
  void Open();

  GateView Load() const { return Unpack(word_->load(std::memory_order_acquire)); }

 private:
  static constexpr int kLimitShift = 31;
  static constexpr uint64_t kEnteredMask = kMaxGateStep;
  static constexpr uint64_t kClosedBit = 1ull << 62;
  static constexpr uint64_t kFinishedBit = 1ull << 63;

  std::atomic<uint64_t>* word_;
};

}  // namespace godwit
