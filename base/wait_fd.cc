#include "base/wait_fd.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace godwit {

Result<bool> WaitFd(int fd, short events, MonotonicTime deadline) {
  while (true) {
    // A far deadline is cut to an hour per call, which any time_t holds.
    const MonotonicTime now = MonotonicClock::now();
    const Duration left =
        deadline <= now ? Duration(0) : std::min<Duration>(deadline - now, std::chrono::hours(1));
    const timespec timeout = {.tv_sec = left.count() / 1'000'000'000,
                              .tv_nsec = left.count() % 1'000'000'000};
    pollfd p = {.fd = fd, .events = events, .revents = 0};
    const int n = ppoll(&p, 1, &timeout, nullptr);
    if (n > 0) {
      if ((p.revents & POLLNVAL) != 0) {
        return ErrnoError(EBADF, "poll(descriptor " + std::to_string(fd) + ")");
      }
      return true;
    }
    if (n < 0 && errno != EINTR) {
      return ErrnoError(errno, "poll(descriptor " + std::to_string(fd) + ")");
    }
    if (n == 0 && MonotonicClock::now() >= deadline) return false;
  }
}

}  // namespace godwit
