#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/mutex.h"
#include "ckpt/engine/arena.h"

namespace godwit::ckpt {

// The memory's layout; multiples of 4096 bytes from the start:
//   ArenaHeader | serialized plan | slot 0: SlotHeader, ChunkMeta[chunks] | data | slot 1: ...
// Both sides are the same build on one host, so native structs do.
struct ArenaHeader {
  std::atomic<uint64_t> magic;       // kArenaMagic when all below is valid
  std::atomic<uint64_t> generation;  // another one after each clearing
  std::atomic<uint64_t> plan_bytes;
  std::atomic<uint64_t> total_bytes;
  std::atomic<uint64_t> plan_hash_hi;
  std::atomic<uint64_t> plan_hash_lo;
  std::atomic<uint32_t> slots;
  std::atomic<uint32_t> freed;  // counts freed slots; a shared futex
};

struct SlotHeader {
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> rank;
  std::atomic<uint32_t> world_size;
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> epoch;
  std::atomic<uint64_t> term;
  std::atomic<uint64_t> meta_hi;  // digest of the fields above and of the table
  std::atomic<uint64_t> meta_lo;
};

struct ChunkMeta {
  uint64_t bytes = 0;
  Digest128 digest;
};
static_assert(sizeof(ChunkMeta) == 24);

// A whole slot that can't be freed while this lives: Free waits for its end.
class SlotPin {
 public:
  SlotPin(std::shared_ptr<Arena::Rep> rep, uint32_t slot) : rep_(std::move(rep)), slot_(slot) {}
  SlotPin(SlotPin&&) noexcept = default;
  SlotPin& operator=(SlotPin&&) = delete;
  ~SlotPin();
  uint32_t slot() const { return slot_; }

 private:
  std::shared_ptr<Arena::Rep> rep_;
  uint32_t slot_;
};

struct Arena::Rep {
  explicit Rep(Plan p) : plan(std::move(p)) {}
  ~Rep();

  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(memory.data()); }
  SlotHeader& slot(uint32_t i) const {
    return *reinterpret_cast<SlotHeader*>(memory.data() + SlotOffset(i));
  }
  ChunkMeta* table(uint32_t i) const;
  std::byte* data(uint32_t i) const;
  uint64_t SlotOffset(uint32_t i) const { return first_slot + i * slot_stride; }

  // False once a worker has formatted the memory anew.
  bool Current() const;
  SlotInfo Info(uint32_t i) const;

  // Worker: takes a free slot, if there is one; no lock.
  std::optional<uint32_t> TryTakeFree();
  // Worker: ends what TryTakeFree began.
  void PublishWhole(const SlotInfo& info);
  void GiveUp(uint32_t i);

  // nullopt when the slot isn't whole with that epoch and step (any more).
  static std::optional<SlotPin> Pin(const std::shared_ptr<Rep>& rep, uint64_t epoch, uint64_t step);
  void FreeIfWhole(uint32_t i) EXCLUDES_LOCK(pin_mutex);

  // A private copy of a whole slot's table, checked: DATA_LOSS naming the field.
  Result<std::vector<ChunkMeta>> CopyTable(const SlotInfo& info) const;

  Plan plan;
  std::span<std::byte> memory;
  bool owns_memory = false;
  uint32_t slots = kArenaSlots;
  uint64_t generation = 0;
  uint64_t first_slot = 0;
  uint64_t slot_stride = 0;
  uint64_t data_offset = 0;  // in a slot

  Mutex pin_mutex;
  std::array<uint32_t, kMaxArenaSlots> pins GUARDED_BY(pin_mutex){};
  std::array<bool, kMaxArenaSlots> free_later GUARDED_BY(pin_mutex){};
};

}  // namespace godwit::ckpt
