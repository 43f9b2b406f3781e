#pragma once

#include "base/clock.h"
#include "base/status.h"

namespace godwit {

// Waits until poll(2) reports one of `events` (POLLIN, POLLOUT), a hang-up or an error on fd, or
// until the deadline. True when it's ready. Blocks; goes on after signals.
Result<bool> WaitFd(int fd, short events, MonotonicTime deadline);

}  // namespace godwit
