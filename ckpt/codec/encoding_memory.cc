#include "ckpt/codec/encoding_memory.h"

#include <algorithm>
#include <cmath>

namespace godwit::ckpt {

std::optional<ChunkEncoding> EncodingMemory::Get(uint32_t tensor, bool delta) const {
  MutexLock lock(mutex_);
  const auto it = entries_.find({tensor, delta});
  if (it == entries_.end()) return std::nullopt;
  return it->second.encoding;
}

void EncodingMemory::Chosen(uint32_t tensor, bool delta, const ChunkEncoding& encoding) {
  MutexLock lock(mutex_);
  // Another thread may have been faster; both measured the same tensor.
  entries_.try_emplace({tensor, delta}).first->second.encoding = encoding;
}

void EncodingMemory::Achieved(uint32_t tensor, bool delta, uint64_t raw_bytes,
                              uint64_t encoded_bytes) {
  MutexLock lock(mutex_);
  const auto it = entries_.find({tensor, delta});
  if (it == entries_.end()) return;
  it->second.raw_bytes += raw_bytes;
  it->second.encoded_bytes += encoded_bytes;
}

void EncodingMemory::EndSave() {
  MutexLock lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& e = it->second;
    bool again = false;
    if (e.raw_bytes > 0) {
      const double ratio = static_cast<double>(e.encoded_bytes) / static_cast<double>(e.raw_bytes);
      if (e.first_ratio == 0) e.first_ratio = ratio;
      again = ++e.saves >= kRecheckSaves || std::abs(ratio - e.first_ratio) > kDrift;
    }
    e.raw_bytes = 0;
    e.encoded_bytes = 0;
    it = again ? entries_.erase(it) : std::next(it);
  }
}

bool WorthEncoding(const SaveRates& rates, bool now_encoding) {
  // Not known yet: try it.
  if (rates.encode_bytes_per_s <= 0 || rates.storage_bytes_per_s <= 0) return true;
  const double stored_s = 1 / rates.storage_bytes_per_s;
  const double encoded_s =
      std::max(1 / rates.encode_bytes_per_s, rates.ratio / rates.storage_bytes_per_s);
  constexpr double kBetterBy = 0.9;
  return now_encoding ? encoded_s <= stored_s : encoded_s < stored_s * kBetterBy;
}

}  // namespace godwit::ckpt
