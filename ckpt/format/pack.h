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

// A pack: header, chunk frames side by side, plan, index, tail (docs/formats/checkpoint-v0.md).

inline constexpr uint64_t kPackHeaderBytes = 64;
inline constexpr uint64_t kPackTailBytes = 208;
inline constexpr uint64_t kPackIndexEntryBytes = 48;
inline constexpr uint32_t kMaxWorldSize = 65536;

struct PackHeader {
  SaveId save;
  uint32_t rank = 0;
  uint32_t world_size = 0;
};

// One chunk's frame. Chunks ascend, frames lie side by side from kPackHeaderBytes on.
struct PackIndexEntry {
  uint64_t chunk = 0;
  uint64_t raw_bytes = 0;
  uint64_t frame_offset = 0;
  uint64_t frame_bytes = 0;
  Digest128 digest;  // of the raw bytes, taken at staging

  friend bool operator==(const PackIndexEntry&, const PackIndexEntry&) = default;
};

// The end of a pack says what it is. It is written when all before it is durable.
struct PackTail {
  SaveId save;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t snapshot_epoch = 0;  // of the membership that took the snapshot
  uint64_t snapshot_step = 0;
  Digest128 plan_hash;    // of this rank
  Digest128 shared_hash;  // of the replicated part: equal in all packs of a save
  uint64_t plan_offset = 0;
  uint64_t plan_bytes = 0;
  uint64_t index_offset = 0;
  uint64_t chunks = 0;
  Digest128 index_digest;
  uint64_t raw_bytes = 0;  // of all chunks in it
  uint64_t file_bytes = 0;

  friend bool operator==(const PackTail&, const PackTail&) = default;
};

std::string EncodePackHeader(const PackHeader& header);
std::string EncodePackIndex(const std::vector<PackIndexEntry>& index);
std::string EncodePackTail(const PackTail& tail);

// `what` names the file in errors: DATA_LOSS with the field, or FAILED_PRECONDITION for another
// version or a feature that must be understood. Offsets and sizes of a tail that is OK fit each
// other and file_bytes.
Result<PackHeader> ParsePackHeader(ByteSpan bytes, std::string_view what);
Result<PackTail> ParsePackTail(ByteSpan bytes, std::string_view what);
// The index of `tail`, checked against its digest and against the plan: exactly the rank's share,
// each chunk's size, frames side by side.
Result<std::vector<PackIndexEntry>> ParsePackIndex(ByteSpan bytes, const PackTail& tail,
                                                   const Plan& plan, std::string_view what);

}  // namespace godwit::ckpt
