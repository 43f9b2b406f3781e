#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "ckpt/codec/chunk_codec.h"

namespace godwit::ckpt {

// Which encoding each tensor got, so that samples are measured once and not for each chunk of each
// save. As training goes on what is best may change: a choice is made anew after kRecheckSaves
// saves, and when the size that it gives has drifted by more than kDrift. Thread-safe.
class EncodingMemory {
 public:
  static constexpr uint64_t kRecheckSaves = 16;
  static constexpr double kDrift = 0.02;

  // `tensor` is any number that the caller gives it. `delta`: a base is at hand. Empty: measure,
  // and call Chosen.
  std::optional<ChunkEncoding> Get(uint32_t tensor, bool delta) const;
  void Chosen(uint32_t tensor, bool delta, const ChunkEncoding& encoding);
  // What became of a chunk.
  void Achieved(uint32_t tensor, bool delta, uint64_t raw_bytes, uint64_t encoded_bytes);
  // A save is done: sizes are looked at.
  void EndSave();

 private:
  struct Entry {
    ChunkEncoding encoding;
    uint64_t saves = 0;
    uint64_t raw_bytes = 0;  // of this save
    uint64_t encoded_bytes = 0;
    double first_ratio = 0;  // of the first save with this choice; 0: none yet
  };

  mutable Mutex mutex_;
  std::map<std::pair<uint32_t, bool>, Entry> entries_ GUARDED_BY(mutex_);
};

// What a writer has seen of this machine and state.
struct SaveRates {
  double encode_bytes_per_s = 0;   // raw bytes, on all its threads; 0: not measured yet
  double storage_bytes_per_s = 0;  // what the storage takes, synced; 0: not measured yet
  double ratio = 1;                // encoded by raw bytes
};

// Whether a save is done no later with encoding than without: pure. Encoding and writing overlap.
// Once it stores, it goes back to encoding for a tenth less time only.
bool WorthEncoding(const SaveRates& rates, bool now_encoding);

}  // namespace godwit::ckpt
