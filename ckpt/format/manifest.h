#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/status.h"
#include "ckpt/format/pack.h"
#include "ckpt/format/save_id.h"

namespace godwit::ckpt {

inline constexpr uint64_t kMaxManifestBytes = 128 + uint64_t{kMaxWorldSize} * kPackTailBytes;

// The commit of a save: the tails of all its packs, by rank. Its bytes are a pure function of the
// tails, so that whoever commits writes the same.
struct Manifest {
  SaveId save;
  uint32_t world_size = 0;
  std::vector<PackTail> tails;  // by rank
  std::string encoded;          // the file
  Digest128 digest;             // of `encoded`

  uint64_t bytes() const;  // of all packs
};

// DATA_LOSS naming which tail, when they don't belong together: save id, world size, shared plan,
// snapshot, or the set of ranks. `tails` are as written, in any order.
Result<Manifest> MakeManifest(const SaveId& save, const std::vector<std::string>& tails);

// DATA_LOSS naming the field; FAILED_PRECONDITION for another version.
Result<Manifest> ParseManifest(ByteSpan bytes, std::string_view what);

}  // namespace godwit::ckpt
