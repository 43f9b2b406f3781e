#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "ckpt/format/pack.h"
#include "ckpt/format/plan.h"

namespace godwit::ckpt {

// What a committed pack holds, for the next pack of the same rank, plan and world size to refer to.
struct PackContents {
  PackSource pack;  // as the next one names it
  Digest128 plan_hash;
  uint32_t world_size = 0;
  uint32_t generation = 0;
  std::vector<PackSource> sources;
  std::vector<PackIndexEntry> index;
};

// What was staged of one chunk of a rank's share.
struct StagedChunk {
  uint64_t chunk = 0;
  uint64_t bytes = 0;
  Digest128 digest;
};

struct BaseLimits {
  // After this many saves that refer to older ones comes one that doesn't: it bounds what one
  // damaged byte reaches, what retention must keep and how long a restore follows chains.
  uint32_t full_every = 8;
  // A pack that less than this share of the bytes would refer to is not kept alive for them.
  double least_share = 0.05;
  bool deltas = false;  // the base's bytes are at hand
  uint8_t max_depth = 8;
};

// How a chunk may be written, and why the pack is as it is.
struct ChunkChoice {
  // kDelta: if its difference turns out smaller than the chunk itself.
  ChunkKind kind = ChunkKind::kStored;
  uint32_t source = kThisPack;  // index of BaseChoice::sources
  uint64_t source_chunk = 0;
  uint8_t depth = 0;

  friend bool operator==(const ChunkChoice&, const ChunkChoice&) = default;
};

struct BaseChoice {
  std::vector<ChunkChoice> chunks;  // as in `staged`
  std::vector<PackSource> sources;
  uint64_t referred_bytes = 0;  // raw; not written again
  std::string reason;           // "unchanged: 1.2 GiB in 2 packs", "full: every 8th save", ...
};

// Pure. `staged` ascends by chunk. `base`: the newest commit's pack, or null; one of another rank,
// plan or world size is not used. References are flat: to the pack that holds the bytes. A chunk
// whose bytes are those of an earlier one of the same pack (tied weights) refers to that.
BaseChoice ChooseBase(const Plan& plan, uint32_t rank, uint32_t world_size,
                      const std::vector<StagedChunk>& staged, const PackContents* base,
                      const BaseLimits& limits);

}  // namespace godwit::ckpt
