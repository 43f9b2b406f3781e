#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "ckpt/codec/encoding_memory.h"
#include "ckpt/engine/arena_rep.h"
#include "ckpt/engine/base_choice.h"

namespace godwit::ckpt {

// A pack that was written, and the snapshot that it was made of.
struct KeptPack {
  PackContents contents;
  // Held while differences to it may be wanted: a slot of the arena.
  std::optional<SlotPin> snapshot;
};

// What one rank's writer keeps from save to save: what it has learned about encoding the state, and
// the last save that counts, so that the next one can refer to it. Only a committed save of the
// same term is ever referred to: what is not committed may never be, and a new term may have gone
// back behind the save. Thread-safe.
class PackHistory {
 public:
  explicit PackHistory(BaseLimits limits) : limits_(limits) {}

  // `deltas` says that snapshots are to be held: one more slot of memory.
  const BaseLimits& limits() const { return limits_; }

  // A pack that is durable. At most kMostKept wait to be committed; the oldest is forgotten first.
  void Written(KeptPack pack);
  // The save is committed: if its pack is here it becomes the base, and older ones are released.
  void Committed(const SaveId& save);

  // Null: none of that term.
  std::shared_ptr<const KeptPack> Base(uint64_t term) const;

  EncodingMemory& encodings() { return encodings_; }
  // Whether the next save is to be encoded, by what earlier ones measured. Each kTryAgain-th save
  // after those that were only stored is encoded all the same: nothing else would tell that it pays
  // by now.
  bool Encoding();
  void Measured(const SaveRates& rates);

 private:
  static constexpr size_t kMostKept = 2;
  static constexpr uint32_t kTryAgain = 16;

  const BaseLimits limits_;
  EncodingMemory encodings_;
  mutable Mutex mutex_;
  SaveRates rates_ GUARDED_BY(mutex_);
  bool encoding_ GUARDED_BY(mutex_) = true;
  uint32_t stored_saves_ GUARDED_BY(mutex_) = 0;  // since one was encoded
  std::shared_ptr<const KeptPack> base_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<const KeptPack>> waiting_ GUARDED_BY(mutex_);
};

}  // namespace godwit::ckpt
