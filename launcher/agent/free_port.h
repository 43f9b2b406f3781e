#pragma once

#include <cstdint>

#include "base/status.h"

namespace godwit {

// A TCP port of 127.0.0.1 that nobody listens at now. Somebody may before it is used: for programs
// that must be told a port before they bind it.
Result<uint16_t> FreeLoopbackPort();

}  // namespace godwit
