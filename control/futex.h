#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace godwit {

// Futexes between processes (futex(2), not private): the word lies in memory that both map.

// Waits while *word == expected, for at most `timeout`. Comes back early for no reason at times:
// call in a loop that looks at the word and the clock.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Duration timeout);

// Wakes all who wait on the word.
void FutexWakeAll(std::atomic<uint32_t>& word);

}  // namespace godwit
