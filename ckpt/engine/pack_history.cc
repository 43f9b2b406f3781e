#include "ckpt/engine/pack_history.h"

#include <utility>

namespace godwit::ckpt {

void PackHistory::Written(KeptPack pack) {
  // Released outside the lock: unpinning frees a slot.
  std::shared_ptr<const KeptPack> forgotten;
  MutexLock lock(mutex_);
  if (waiting_.size() == kMostKept) {
    forgotten = std::move(waiting_.front());
    waiting_.pop_front();
  }
  waiting_.push_back(std::make_shared<const KeptPack>(std::move(pack)));
}

void PackHistory::Committed(const SaveId& save) {
  std::deque<std::shared_ptr<const KeptPack>> released;
  MutexLock lock(mutex_);
  for (const auto& pack : waiting_) {
    if (pack->contents.pack.save != save) continue;
    released.push_back(std::move(base_));
    base_ = pack;
    while (waiting_.front() != base_) {
      released.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    waiting_.pop_front();
    return;
  }
}

bool PackHistory::Encoding() {
  MutexLock lock(mutex_);
  encoding_ = WorthEncoding(rates_, encoding_);
  if (encoding_ || ++stored_saves_ >= kTryAgain) {
    stored_saves_ = 0;
    return true;
  }
  return false;
}

void PackHistory::Measured(const SaveRates& rates) {
  MutexLock lock(mutex_);
  // A save that was stored says nothing about encoding.
  if (rates.encode_bytes_per_s > 0) {
    rates_.encode_bytes_per_s = rates.encode_bytes_per_s;
    rates_.ratio = rates.ratio;
  }
  if (rates.storage_bytes_per_s > 0) rates_.storage_bytes_per_s = rates.storage_bytes_per_s;
}

std::shared_ptr<const KeptPack> PackHistory::Base(uint64_t term) const {
  MutexLock lock(mutex_);
  if (!base_ || base_->contents.pack.save.term != term) return nullptr;
  return base_;
}

}  // namespace godwit::ckpt
