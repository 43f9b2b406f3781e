#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/status.h"
#include "ckpt/format/plan.h"
#include "ckpt/format/save_id.h"

namespace godwit::ckpt {

// A pack: header, chunk frames side by side, plan, sources, index, tail
// (docs/formats/checkpoint-v1.md).

inline constexpr uint64_t kPackHeaderBytes = 64;
inline constexpr uint64_t kPackTailBytes = 256;
inline constexpr uint64_t kPackIndexEntryBytes = 64;
inline constexpr uint64_t kPackSourceBytes = 40;
inline constexpr uint32_t kMaxWorldSize = 65536;
inline constexpr uint32_t kMaxPackSources = 4096;
inline constexpr uint8_t kMaxDeltaDepth = 16;  // a chain's length from its full chunk

struct PackHeader {
  SaveId save;
  uint32_t rank = 0;
  uint32_t world_size = 0;
};

// Another pack that this one's chunks refer to.
struct PackSource {
  SaveId save;
  uint32_t rank = 0;
  Digest128 tail_digest;  // the seal of that pack's tail: no other pack of the name will do

  friend bool operator==(const PackSource&, const PackSource&) = default;
};

enum class ChunkKind : uint8_t {
  kStored = 0,     // its frames are here and hold all of it
  kReference = 1,  // its bytes are those of another chunk, which is not a reference itself
  kDelta = 2,      // its frames are here and hold the difference to another chunk
};

// PackIndexEntry::source of a chunk in the same pack.
inline constexpr uint32_t kThisPack = 0xffffffff;

// One chunk. Chunks ascend; frames lie side by side from kPackHeaderBytes on, in the order of the
// chunks that have any.
struct PackIndexEntry {
  uint64_t chunk = 0;
  uint64_t raw_bytes = 0;
  ChunkKind kind = ChunkKind::kStored;
  // How the frames' bytes are the chunk's (ckpt/codec); 0, 0: as they are. The codec refuses what
  // it doesn't know.
  uint8_t transform = 0;
  uint8_t width = 0;
  // Differences between here and a stored chunk: 0 for kStored, at most kMaxDeltaDepth. Of a
  // reference: that of what it refers to.
  uint8_t depth = 0;
  uint32_t source = kThisPack;  // of a reference or a delta: index of the sources, or kThisPack
  uint64_t source_chunk = 0;    // of a reference or a delta
  uint64_t frame_offset = 0;    // of a reference: 0, as frame_bytes
  uint64_t frame_bytes = 0;
  Digest128 digest;  // of the raw bytes, taken at staging

  friend bool operator==(const PackIndexEntry&, const PackIndexEntry&) = default;
};

// The end of a pack says what it is. It is written when all before it is durable.
struct PackTail {
  SaveId save;
  uint64_t must_understand = 0;  // kFeature...
  uint64_t may_ignore = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t snapshot_epoch = 0;  // of the membership that took the snapshot
  uint64_t snapshot_step = 0;
  Digest128 plan_hash;    // of this rank
  Digest128 shared_hash;  // of the replicated part: equal in all packs of a save
  uint64_t plan_offset = 0;
  uint64_t plan_bytes = 0;
  uint32_t sources = 0;    // they follow the plan
  uint32_t max_depth = 0;  // of all chunks
  // Saves since the last one that refers to no other: what a damaged byte can reach.
  uint32_t generation = 0;
  uint64_t index_offset = 0;
  uint64_t chunks = 0;
  Digest128 sources_digest;
  Digest128 index_digest;
  uint64_t raw_bytes = 0;  // of all chunks in it
  uint64_t file_bytes = 0;

  friend bool operator==(const PackTail&, const PackTail&) = default;
};

std::string EncodePackHeader(const PackHeader& header);
std::string EncodePackSources(const std::vector<PackSource>& sources);
std::string EncodePackIndex(const std::vector<PackIndexEntry>& index);
std::string EncodePackTail(const PackTail& tail);

// `what` names the file in errors: DATA_LOSS with the field, or FAILED_PRECONDITION for another
// version or a feature that must be understood. Offsets and sizes of a tail that is OK fit each
// other and file_bytes.
Result<PackHeader> ParsePackHeader(ByteSpan bytes, std::string_view what);
Result<PackTail> ParsePackTail(ByteSpan bytes, std::string_view what);
// The sources of `tail`, checked against its digest: each older than the pack, none twice.
Result<std::vector<PackSource>> ParsePackSources(ByteSpan bytes, const PackTail& tail,
                                                 std::string_view what);
// What names the pack in another one's sources: the seal of its tail. `tail` as written.
Digest128 TailDigest(std::string_view tail);

// The index of `tail`, checked against its digest and against the plan: exactly the rank's share,
// each chunk's size, frames side by side, sources that are there.
Result<std::vector<PackIndexEntry>> ParsePackIndex(ByteSpan bytes, const PackTail& tail,
                                                   const Plan& plan, std::string_view what);

}  // namespace godwit::ckpt
