#pragma once

#include <string_view>

namespace godwit::internal {
// Prints "CHECK failed: <file>:<line>: <what>" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, std::string_view what);
}  // namespace godwit::internal

// For our own bugs only: nothing from disk, network, a peer or a flag may trip it. On in all
// builds.
#define GODWIT_CHECK(condition)       \
  ((condition) ? static_cast<void>(0) \
               : ::godwit::internal::CheckFailed(__FILE__, __LINE__, #condition))
