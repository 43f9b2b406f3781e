#include "ckpt/engine/base_choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/strings.h"

namespace godwit::ckpt {
namespace {

// Smaller chunks than this cost less than their index entry's trouble.
constexpr uint64_t kLeastTiedBytes = 4096;

bool IsFloat(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

// Where the bytes of a base's chunk are: never a reference.
struct Place {
  PackSource pack;
  uint64_t chunk = 0;
};

Place PlaceOf(const PackContents& base, const PackIndexEntry& e) {
  if (e.kind != ChunkKind::kReference) return {base.pack, e.chunk};
  return {e.source == kThisPack ? base.pack : base.sources[e.source], e.source_chunk};
}

// The sources of the pack that is being chosen for, each once.
class Sources {
 public:
  uint32_t IndexOf(const PackSource& pack) {
    const auto [it, added] = index_.try_emplace({pack.save, pack.rank}, list_.size());
    if (added) list_.push_back(pack);
    return static_cast<uint32_t>(it->second);
  }
  std::vector<PackSource> Take() { return std::move(list_); }

 private:
  std::map<std::pair<SaveId, uint32_t>, size_t> index_;
  std::vector<PackSource> list_;
};

}  // namespace

BaseChoice ChooseBase(const Plan& plan, uint32_t rank, uint32_t world_size,
                      const std::vector<StagedChunk>& staged, const PackContents* base,
                      const BaseLimits& limits) {
  BaseChoice out;
  out.chunks.resize(staged.size());
  if (!base) {
    out.reason = "full: no committed save to refer to";
  } else if (base->pack.rank != rank || base->world_size != world_size ||
             base->plan_hash != plan.hash()) {
    out.reason = "full: the last save was of another membership or plan";
    base = nullptr;
  } else if (base->generation + 1 >= limits.full_every) {
    out.reason = fmt::format("full: each {}th save is", limits.full_every);
    base = nullptr;
  }

  // By chunk, the entry of the base.
  std::vector<const PackIndexEntry*> before(staged.size(), nullptr);
  std::map<std::pair<SaveId, uint32_t>, uint64_t> unchanged_bytes;  // by the pack that holds them
  uint64_t total = 0;
  size_t next = 0;
  for (size_t i = 0; i < staged.size(); ++i) {
    total += staged[i].bytes;
    if (!base) continue;
    while (next < base->index.size() && base->index[next].chunk < staged[i].chunk) ++next;
    if (next == base->index.size() || base->index[next].chunk != staged[i].chunk) continue;
    before[i] = &base->index[next];
    if (before[i]->digest == staged[i].digest && before[i]->raw_bytes == staged[i].bytes) {
      const Place place = PlaceOf(*base, *before[i]);
      unchanged_bytes[{place.pack.save, place.pack.rank}] += staged[i].bytes;
    }
  }

  Sources sources;
  std::map<std::pair<Digest128, uint64_t>, size_t> seen;  // of large chunks, the first
  uint64_t delta_bytes = 0;
  for (size_t i = 0; i < staged.size(); ++i) {
    ChunkChoice& choice = out.chunks[i];
    const PackIndexEntry* e = before[i];
    if (e && e->digest == staged[i].digest && e->raw_bytes == staged[i].bytes) {
      const Place place = PlaceOf(*base, *e);
      const uint64_t bytes = unchanged_bytes[{place.pack.save, place.pack.rank}];
      if (static_cast<double>(bytes) >= limits.least_share * static_cast<double>(total)) {
        choice = {ChunkKind::kReference, sources.IndexOf(place.pack), place.chunk, e->depth};
        out.referred_bytes += staged[i].bytes;
        continue;
      }
    }
    if (staged[i].bytes >= kLeastTiedBytes) {
      const auto [it, first] = seen.try_emplace({staged[i].digest, staged[i].bytes}, i);
      if (!first) {
        choice = {ChunkKind::kReference, kThisPack, staged[it->second].chunk,
                  out.chunks[it->second].depth};
        out.referred_bytes += staged[i].bytes;
        continue;
      }
    }
    if (!e || !limits.deltas || e->raw_bytes != staged[i].bytes || e->depth >= limits.max_depth) {
      continue;
    }
    const Chunk chunk = plan.chunk(staged[i].chunk);
    if (chunk.is_blob || chunk.stability != Stability::kStable || !IsFloat(chunk.dtype)) continue;
    const Place place = PlaceOf(*base, *e);
    choice = {ChunkKind::kDelta, sources.IndexOf(place.pack), place.chunk,
              static_cast<uint8_t>(e->depth + 1)};
    delta_bytes += staged[i].bytes;
  }
  out.sources = sources.Take();
  if (base) {
    out.reason = fmt::format("unchanged {}, differences of {}, of {}; {} older packs",
                             HumanBytes(out.referred_bytes), HumanBytes(delta_bytes),
                             HumanBytes(total), out.sources.size());
  }
  return out;
}

}  // namespace godwit::ckpt
