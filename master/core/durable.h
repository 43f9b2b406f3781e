#pragma once

#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "master/core/state.h"

namespace godwit::master {

// The durable part of the state as bytes, for the journal. Little-endian, no pointers, a version at
// the front. Texts longer than kMaxText are cut.
inline constexpr uint32_t kDurableVersion = 1;
inline constexpr size_t kMaxText = 8192;

std::string EncodeDurable(const Durable& durable);
// DATA_LOSS for bytes that EncodeDurable did not write, FAILED_PRECONDITION for another version,
// naming both. Never reads or allocates beyond what `bytes` holds.
Result<Durable> DecodeDurable(ByteSpan bytes);

}  // namespace godwit::master
