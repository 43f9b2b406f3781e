#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "ckpt/format/plan.h"

namespace godwit::ckpt {

// Snapshot memory of one rank: a header with the serialized plan, then slots that each
// hold one whole snapshot (data, blob lengths, chunk digests). It is either private memory of the
// process (no launcher) or a memfd shared with the node's agent, which then outlives the worker.
//
// The worker fills (kFree -> kFilling -> kWhole); the agent, or the persisting thread, frees
// (kWhole -> kFree). Slot states are atomics in the memory itself; a slot left kFilling by a dead
// worker is dropped at the next Open.
inline constexpr uint32_t kArenaSlots = 2;  // unless said otherwise: one whole, one being filled
inline constexpr uint32_t kMaxArenaSlots = 8;

enum class SlotState : uint32_t { kFree = 0, kFilling = 1, kWhole = 2 };

struct SlotInfo {
  uint32_t index = 0;
  SlotState state = SlotState::kFree;
  uint64_t step = 0;
  uint64_t epoch = 0;
  uint64_t term = 0;  // of the worker's start
  uint32_t rank = 0;
  uint32_t world_size = 0;
};

class Arena {
 public:
  // Bytes that the plan needs, header and all slots.
  static uint64_t BytesFor(const Plan& plan, uint32_t slots = kArenaSlots);

  // Memory of this process, taken now, owned by the arena: for a process without a launcher.
  // RESOURCE_EXHAUSTED names the need.
  // `slots`: 2 to kMaxArenaSlots. One more lets differences be taken (PackHistory).
  static Result<Arena> Private(const Plan& plan, uint32_t slots = kArenaSlots);

  // Worker: takes memory of at least BytesFor(plan, slots) bytes. If it already holds whole
  // snapshots of the same plan (hash) and number of slots they are kept, anything else is cleared.
  // `memory` must stay mapped for the arena's life.
  static Result<Arena> Open(std::span<std::byte> memory, const Plan& plan,
                            uint32_t slots = kArenaSlots);

  // Agent: looks at memory that a worker formatted and may still write to, or may have filled with
  // nonsense: the header is copied, then checked, before anything is believed. FAILED_PRECONDITION
  // when nothing is there yet; DATA_LOSS naming the field otherwise.
  static Result<Arena> Attach(std::span<std::byte> memory);

  const Plan& plan() const;
  std::vector<SlotInfo> slots() const;          // one for each
  std::optional<SlotInfo> NewestWhole() const;  // by (epoch, step)
  std::optional<SlotInfo> WholeAt(uint64_t epoch, uint64_t step) const;

  // Agent or persisting thread. Freeing a slot that is not whole does nothing; one that this
  // process is writing to storage (a SlotPin) is freed when that ends.
  void Free(uint32_t slot);
  // Frees every whole slot older than (epoch, step).
  void FreeOlder(uint64_t epoch, uint64_t step);
  // Frees every whole slot but (epoch, step): once all ranks go on from that one, those behind it
  // belong to a future that won't happen.
  void FreeAllBut(uint64_t epoch, uint64_t step);

  // The rest is for the engine (see arena_rep.h).
  struct Rep;
  const std::shared_ptr<Rep>& rep() const { return rep_; }

 private:
  explicit Arena(std::shared_ptr<Rep> rep) : rep_(std::move(rep)) {}
  std::shared_ptr<Rep> rep_;
};

}  // namespace godwit::ckpt
