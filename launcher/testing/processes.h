#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/clock.h"

namespace godwit::testing {

// Against hangs only: no test waits this long when all is well.
inline constexpr Duration kHang = std::chrono::seconds(30);
inline constexpr MonotonicTime kNow = MonotonicTime::min();
inline MonotonicTime Soon() { return SaturatingAdd(MonotonicClock::now(), kHang); }

// True when the process (anybody's) has ended, or does before the deadline.
bool WaitGone(pid_t pid, MonotonicTime deadline = Soon());
// Looks again and again until it's true; false at the deadline. For what has no descriptor to wait
// on: files that another process makes.
bool WaitUntil(const std::function<bool()>& condition, MonotonicTime deadline = Soon());

// The file's text; "" while there is none.
std::string ReadText(const std::string& path);

}  // namespace godwit::testing
