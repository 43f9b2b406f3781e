#include "ckpt/engine/arena.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <tuple>

#include "base/futex.h"
#include "base/random.h"
#include "base/strings.h"
#include "ckpt/engine/arena_rep.h"

namespace godwit::ckpt {
namespace {

constexpr uint64_t kArenaMagic = 0x3061'6e65'7261'7767;  // "gwarena0", little-endian
constexpr uint64_t kPage = 4096;
static_assert(sizeof(ArenaHeader) <= kPage && sizeof(SlotHeader) <= 64);
constexpr uint64_t kTableOffset = 64;

constexpr uint64_t Pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

struct Layout {
  uint64_t first_slot = 0;
  uint64_t slot_stride = 0;
  uint64_t data_offset = 0;
  uint64_t total = 0;
};

// No overflow: a plan's bytes, and so its chunks, are bounded by kMaxPlanBytes.
Layout LayoutOf(const Plan& plan, uint32_t slots) {
  Layout l;
  l.first_slot = kPage + Pages(plan.serialized().size());
  l.data_offset = Pages(kTableOffset + plan.chunks() * sizeof(ChunkMeta));
  l.slot_stride = l.data_offset + Pages(plan.data_bytes());
  l.total = l.first_slot + slots * l.slot_stride;
  return l;
}

Digest128 MetaDigest(const SlotInfo& info, std::span<const ChunkMeta> table) {
  ByteWriter head;
  head.U64(info.step);
  head.U64(info.epoch);
  head.U64(info.term);
  head.U32(info.rank);
  head.U32(info.world_size);
  DigestBuilder digest;
  digest.Update(head.bytes());
  digest.Update(std::as_bytes(table));
  return digest.Digest();
}

void Adopt(Arena::Rep& rep, std::span<std::byte> memory, uint32_t slots) {
  const Layout l = LayoutOf(rep.plan, slots);
  rep.slots = slots;
  rep.memory = memory;
  rep.first_slot = l.first_slot;
  rep.slot_stride = l.slot_stride;
  rep.data_offset = l.data_offset;
}

// Page faults now, not under the training loop. A hint: an old kernel says EINVAL.
void Populate(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  if (start % kPage == 0) madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
#else
  static_cast<void>(memory);
#endif
}

bool SlotsAllowed(uint32_t slots) { return slots >= kArenaSlots && slots <= kMaxArenaSlots; }

// What formatted memory says of itself, checked against its size.
Result<Plan> ReadPlan(std::span<std::byte> memory, uint32_t& slots) {
  if (memory.size() < kPage) {
    return DataLossError(
        fmt::format("snapshot memory: {} bytes, allowed are {} and more", memory.size(), kPage));
  }
  const auto& header = *reinterpret_cast<const ArenaHeader*>(memory.data());
  if (header.magic.load(std::memory_order_acquire) == 0) {
    return FailedPreconditionError("snapshot memory: not formatted yet");
  }
  if (header.magic.load(std::memory_order_relaxed) != kArenaMagic) {
    return DataLossError("snapshot memory: magic differs");
  }
  slots = header.slots.load();
  if (!SlotsAllowed(slots)) {
    return DataLossError(fmt::format("snapshot memory: slots is {}, allowed are {} to {}", slots,
                                     kArenaSlots, kMaxArenaSlots));
  }
  const uint64_t plan_bytes = header.plan_bytes.load();
  if (plan_bytes > memory.size() - kPage) {
    return DataLossError(fmt::format("snapshot memory: plan_bytes is {}, allowed are {}",
                                     plan_bytes, memory.size() - kPage));
  }
  // Copied, then checked: the peer may go on writing.
  const std::string copy(reinterpret_cast<const char*>(memory.data() + kPage), plan_bytes);
  const Digest128 hash{header.plan_hash_hi.load(), header.plan_hash_lo.load()};
  if (DigestOf(AsBytes(copy)) != hash) {
    return DataLossError(fmt::format("snapshot memory: plan has digest {}, the header says {}",
                                     DigestOf(AsBytes(copy)).ToHex(), hash.ToHex()));
  }
  GODWIT_ASSIGN_OR_RETURN(Plan plan, Plan::Parse(AsBytes(copy), "snapshot memory: plan"));
  if (const uint64_t need = LayoutOf(plan, slots).total; need > memory.size()) {
    return DataLossError(
        fmt::format("snapshot memory: {} bytes, its plan needs {}", memory.size(), need));
  }
  return plan;
}

}  // namespace

SlotPin::~SlotPin() {
  if (!rep_) return;
  bool free = false;
  {
    MutexLock lock(rep_->pin_mutex);
    if (--rep_->pins[slot_] == 0) free = std::exchange(rep_->free_later[slot_], false);
  }
  if (free) rep_->FreeIfWhole(slot_);
}

Arena::Rep::~Rep() {
  if (owns_memory) munmap(memory.data(), memory.size());
}

ChunkMeta* Arena::Rep::table(uint32_t i) const {
  return reinterpret_cast<ChunkMeta*>(memory.data() + SlotOffset(i) + kTableOffset);
}

std::byte* Arena::Rep::data(uint32_t i) const {
  return memory.data() + SlotOffset(i) + data_offset;
}

bool Arena::Rep::Current() const {
  return header().magic.load(std::memory_order_acquire) == kArenaMagic &&
         header().generation.load() == generation;
}

SlotInfo Arena::Rep::Info(uint32_t i) const {
  const SlotHeader& s = slot(i);
  SlotInfo info;
  info.index = i;
  const uint32_t state = s.state.load(std::memory_order_acquire);
  if (!Current() || state > static_cast<uint32_t>(SlotState::kWhole)) return info;
  info.state = static_cast<SlotState>(state);
  info.step = s.step.load(std::memory_order_relaxed);
  info.epoch = s.epoch.load(std::memory_order_relaxed);
  info.term = s.term.load(std::memory_order_relaxed);
  info.rank = s.rank.load(std::memory_order_relaxed);
  info.world_size = s.world_size.load(std::memory_order_relaxed);
  return info;
}

std::optional<uint32_t> Arena::Rep::TryTakeFree() {
  for (uint32_t i = 0; i < slots; ++i) {
    auto expected = static_cast<uint32_t>(SlotState::kFree);
    if (slot(i).state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kFilling),
                                              std::memory_order_acquire)) {
      return i;
    }
  }
  return std::nullopt;
}

void Arena::Rep::PublishWhole(const SlotInfo& info) {
  SlotHeader& s = slot(info.index);
  s.step.store(info.step, std::memory_order_relaxed);
  s.epoch.store(info.epoch, std::memory_order_relaxed);
  s.term.store(info.term, std::memory_order_relaxed);
  s.rank.store(info.rank, std::memory_order_relaxed);
  s.world_size.store(info.world_size, std::memory_order_relaxed);
  const Digest128 digest = MetaDigest(info, {table(info.index), plan.chunks()});
  s.meta_hi.store(digest.hi, std::memory_order_relaxed);
  s.meta_lo.store(digest.lo, std::memory_order_relaxed);
  s.state.store(static_cast<uint32_t>(SlotState::kWhole), std::memory_order_release);
}

void Arena::Rep::GiveUp(uint32_t i) {
  slot(i).state.store(static_cast<uint32_t>(SlotState::kFree), std::memory_order_release);
}

std::optional<SlotPin> Arena::Rep::Pin(const std::shared_ptr<Rep>& rep, uint64_t epoch,
                                       uint64_t step) {
  MutexLock lock(rep->pin_mutex);
  for (uint32_t i = 0; i < rep->slots; ++i) {
    const SlotInfo info = rep->Info(i);
    if (info.state != SlotState::kWhole || info.epoch != epoch || info.step != step) continue;
    ++rep->pins[i];
    return std::optional<SlotPin>(std::in_place, rep, i);
  }
  return std::nullopt;
}

void Arena::Rep::FreeIfWhole(uint32_t i) {
  {
    MutexLock lock(pin_mutex);
    if (!Current()) return;
    if (pins[i] > 0) {
      free_later[i] = true;
      return;
    }
    auto expected = static_cast<uint32_t>(SlotState::kWhole);
    if (!slot(i).state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kFree),
                                               std::memory_order_release)) {
      return;
    }
  }
  header().freed.fetch_add(1, std::memory_order_release);
  FutexWake(header().freed, FutexScope::kShared);
}

Result<std::vector<ChunkMeta>> Arena::Rep::CopyTable(const SlotInfo& info) const {
  std::vector<ChunkMeta> copy(plan.chunks());
  if (!copy.empty()) std::memcpy(copy.data(), table(info.index), copy.size() * sizeof(ChunkMeta));
  const SlotHeader& s = slot(info.index);
  const Digest128 said{s.meta_hi.load(), s.meta_lo.load()};
  if (const Digest128 is = MetaDigest(info, copy); is != said) {
    return DataLossError(
        fmt::format("snapshot memory: the table of step {} has digest {}, the slot says {}",
                    info.step, is.ToHex(), said.ToHex()));
  }
  for (uint64_t i = 0; i < copy.size(); ++i) {
    const Chunk chunk = plan.chunk(i);
    if (chunk.is_blob ? copy[i].bytes > chunk.bytes : copy[i].bytes != chunk.bytes) {
      return DataLossError(fmt::format("snapshot memory: {} of step {} has {} bytes, allowed {} {}",
                                       plan.Describe(chunk), info.step, copy[i].bytes,
                                       chunk.is_blob ? "are at most" : "are", chunk.bytes));
    }
  }
  return copy;
}

uint64_t Arena::BytesFor(const Plan& plan, uint32_t slots) { return LayoutOf(plan, slots).total; }

Result<Arena> Arena::Private(const Plan& plan, uint32_t slots) {
  const uint64_t bytes = BytesFor(plan, slots);
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    return ErrnoError(errno, fmt::format("snapshot memory: mmap of {} for {} snapshots",
                                         HumanBytes(bytes), slots));
  }
  madvise(p, bytes, MADV_HUGEPAGE);
  madvise(p, bytes, MADV_DONTFORK);
  const std::span<std::byte> memory(static_cast<std::byte*>(p), bytes);
  auto arena = Open(memory, plan, slots);
  if (arena.ok()) {
    arena->rep_->owns_memory = true;
  } else {
    munmap(p, bytes);
  }
  return arena;
}

Result<Arena> Arena::Open(std::span<std::byte> memory, const Plan& plan, uint32_t slots) {
  if (!SlotsAllowed(slots)) {
    return InvalidArgumentError(fmt::format("snapshot memory: {} slots, allowed are {} to {}",
                                            slots, kArenaSlots, kMaxArenaSlots));
  }
  const uint64_t need = BytesFor(plan, slots);
  if (memory.size() < need || reinterpret_cast<uintptr_t>(memory.data()) % 64 != 0) {
    return InvalidArgumentError(fmt::format(
        "snapshot memory: {} bytes, the plan needs {}, at a multiple of 64", memory.size(), need));
  }
  Populate(memory.first(need));
  auto rep = std::make_shared<Rep>(plan);
  Adopt(*rep, memory, slots);
  ArenaHeader& header = rep->header();
  uint32_t old_slots = 0;
  const auto old = ReadPlan(memory, old_slots);
  if (old.ok() && old->hash() == plan.hash() && old_slots == slots) {
    rep->generation = header.generation.load();
    for (uint32_t i = 0; i < slots; ++i) {
      auto& state = rep->slot(i).state;
      if (state.load() != static_cast<uint32_t>(SlotState::kWhole)) {
        state.store(static_cast<uint32_t>(SlotState::kFree));
      }
    }
    return Arena(std::move(rep));
  }
  header.magic.store(0, std::memory_order_seq_cst);
  for (uint32_t i = 0; i < slots; ++i) {
    rep->slot(i).state.store(static_cast<uint32_t>(SlotState::kFree));
  }
  rep->generation = SystemRandom64();
  header.generation.store(rep->generation);
  header.slots.store(slots);
  header.total_bytes.store(need);
  header.plan_bytes.store(plan.serialized().size());
  header.plan_hash_hi.store(plan.hash().hi);
  header.plan_hash_lo.store(plan.hash().lo);
  std::memcpy(memory.data() + kPage, plan.serialized().data(), plan.serialized().size());
  header.magic.store(kArenaMagic, std::memory_order_release);
  return Arena(std::move(rep));
}

Result<Arena> Arena::Attach(std::span<std::byte> memory) {
  if (reinterpret_cast<uintptr_t>(memory.data()) % 64 != 0) {
    return InvalidArgumentError("snapshot memory: not at a multiple of 64");
  }
  uint64_t generation = 0;
  if (memory.size() >= kPage) {
    generation = reinterpret_cast<const ArenaHeader*>(memory.data())->generation.load();
  }
  uint32_t slots = 0;
  GODWIT_ASSIGN_OR_RETURN(Plan plan, ReadPlan(memory, slots));
  auto rep = std::make_shared<Rep>(std::move(plan));
  rep->generation = generation;
  Adopt(*rep, memory, slots);
  if (!rep->Current()) return FailedPreconditionError("snapshot memory: being formatted");
  return Arena(std::move(rep));
}

const Plan& Arena::plan() const { return rep_->plan; }

std::vector<SlotInfo> Arena::slots() const {
  std::vector<SlotInfo> out;
  for (uint32_t i = 0; i < rep_->slots; ++i) out.push_back(rep_->Info(i));
  return out;
}

std::optional<SlotInfo> Arena::NewestWhole() const {
  std::optional<SlotInfo> newest;
  for (const SlotInfo& s : slots()) {
    if (s.state != SlotState::kWhole) continue;
    if (!newest || std::tie(s.epoch, s.step) > std::tie(newest->epoch, newest->step)) newest = s;
  }
  return newest;
}

std::optional<SlotInfo> Arena::WholeAt(uint64_t epoch, uint64_t step) const {
  for (const SlotInfo& s : slots()) {
    if (s.state == SlotState::kWhole && s.epoch == epoch && s.step == step) return s;
  }
  return std::nullopt;
}

void Arena::Free(uint32_t slot) {
  if (slot < rep_->slots) rep_->FreeIfWhole(slot);
}

void Arena::FreeOlder(uint64_t epoch, uint64_t step) {
  for (const SlotInfo& s : slots()) {
    if (s.state == SlotState::kWhole && std::tie(s.epoch, s.step) < std::tie(epoch, step)) {
      rep_->FreeIfWhole(s.index);
    }
  }
}

void Arena::FreeAllBut(uint64_t epoch, uint64_t step) {
  for (const SlotInfo& s : slots()) {
    if (s.state == SlotState::kWhole && std::tie(s.epoch, s.step) != std::tie(epoch, step)) {
      rep_->FreeIfWhole(s.index);
    }
  }
}

}  // namespace godwit::ckpt
