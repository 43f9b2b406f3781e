#include "control/step_gate.h"

namespace godwit {

uint64_t StepGate::Pack(const GateView& view) {
  return (view.entered & kEnteredMask) |
         (static_cast<uint64_t>(view.limit & kMaxGateStep) << kLimitShift) |
         (view.closed ? kClosedBit : 0) | (view.finished ? kFinishedBit : 0);
}

GateView StepGate::Unpack(uint64_t word) {
  GateView view;
  view.entered = static_cast<uint32_t>(word & kEnteredMask);
  view.limit = static_cast<uint32_t>((word >> kLimitShift) & kEnteredMask);
  view.closed = (word & kClosedBit) != 0;
  view.finished = (word & kFinishedBit) != 0;
  return view;
}

void StepGate::Reset(uint32_t step) {
  word_->store(Pack({.entered = step, .closed = true}), std::memory_order_release);
}

GateView StepGate::Close() {
  // A limit of 0 is below every count, so the bit alone closes the gate: the answer is the exact
  // count at that moment, and there is no retry that a busy worker could starve.
  return Unpack(word_->fetch_or(kClosedBit, std::memory_order_acq_rel) | kClosedBit);
}

Status StepGate::SetLimit(uint32_t step) {
  if (step > kMaxGateStep) {
    return OutOfRangeError("step gate: limit " + std::to_string(step) + ", allowed: at most " +
                           std::to_string(kMaxGateStep));
  }
  uint64_t word = word_->load(std::memory_order_acquire);
  for (;;) {
    GateView view = Unpack(word);
    if (!view.closed) return FailedPreconditionError("step gate: open, a limit needs a closed one");
    if (view.entered > step) {
      return OutOfRangeError("step gate: limit " + std::to_string(step) + ", but step count is " +
                             std::to_string(view.entered) + " already");
    }
    view.limit = step;
    if (word_->compare_exchange_weak(word, Pack(view), std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      return OkStatus();
    }
  }
}

void StepGate::Open() { word_->fetch_and(kEnteredMask | kFinishedBit, std::memory_order_acq_rel); }

}  // namespace godwit
