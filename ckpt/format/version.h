#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/status.h"

namespace godwit::ckpt {

// The version of everything that this build reads and writes. Version 0 was a draft and is refused
// by name, as are later ones. Within a version, structures have two sets of feature bits: a reader
// refuses a `must_understand` bit that it does not know, and passes over `may_ignore` bits.
inline constexpr uint32_t kFormatVersion = 1;

// Of must_understand, in packs.
inline constexpr uint64_t kFeatureReferences = 1 << 0;  // chunks that lie in another pack
inline constexpr uint64_t kFeatureDeltas = 1 << 1;      // chunks that are differences to others
inline constexpr uint64_t kKnownFeatures = kFeatureReferences | kFeatureDeltas;

// FAILED_PRECONDITION naming the bits, unless all are known.
Status CheckFeatures(std::string_view what, uint64_t must_understand, uint64_t known);

// All bytes of the file FORMAT in a directory of checkpoints.
inline constexpr std::string_view kFormatFileText = "godwit checkpoint v1\n";

// FAILED_PRECONDITION "<what> says v<got>, this build reads v0", unless `got` is that version.
Status CheckVersion(std::string_view what, uint32_t got);

// The same for the bytes of FORMAT; DATA_LOSS when they are no version line at all.
Status CheckFormatFile(std::string_view path, std::string_view bytes);

// Most structures begin with 8 bytes of magic and a u32 version, and end with the
// XXH3-128 (hi, lo) of all before it.
inline constexpr uint64_t kSealBytes = 16;

// Appends that digest.
void Seal(ByteWriter& out);

// Checks magic, version and digest. A version field that was hit by a flipped bit, while all the
// rest is this version, is damage (DATA_LOSS), not another version (FAILED_PRECONDITION).
Status CheckSealed(ByteSpan bytes, std::string_view magic, std::string_view what);

}  // namespace godwit::ckpt
