#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/status.h"

namespace godwit::ckpt {

// The version of everything that this build reads and writes. Version 0 is not kept up: later ones
// refuse it by name, as this one refuses them.
inline constexpr uint32_t kFormatVersion = 0;

// All bytes of the file FORMAT in a directory of checkpoints.
inline constexpr std::string_view kFormatFileText = "godwit checkpoint v0\n";

// FAILED_PRECONDITION "<what> says v<got>, this build reads v0", unless `got` is that version.
Status CheckVersion(std::string_view what, uint32_t got);

// The same for the bytes of FORMAT; DATA_LOSS when they are no version line at all.
Status CheckFormatFile(std::string_view path, std::string_view bytes);

// Most structures of version 0 begin with 8 bytes of magic and a u32 version, and end with the
// XXH3-128 (hi, lo) of all before it.
inline constexpr uint64_t kSealBytes = 16;

// Appends that digest.
void Seal(ByteWriter& out);

// Checks magic, version and digest. A version field that was hit by a flipped bit, while all the
// rest is version 0, is damage (DATA_LOSS), not another version (FAILED_PRECONDITION).
Status CheckSealed(ByteSpan bytes, std::string_view magic, std::string_view what);

}  // namespace godwit::ckpt
