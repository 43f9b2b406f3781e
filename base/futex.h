#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace godwit {

enum class FutexScope { kPrivate, kShared };

// futex(2) on a 32-bit atomic; kShared when other processes map the word, too. Returns when woken,
// when the word isn't `expected` (any more), when `timeout` has passed, or for no reason: call in a
// loop that looks at the condition.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Duration timeout,
               FutexScope scope = FutexScope::kPrivate);
// Wakes all waiters.
void FutexWake(const std::atomic<uint32_t>& word, FutexScope scope = FutexScope::kPrivate);

}  // namespace godwit
