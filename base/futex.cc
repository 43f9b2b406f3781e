#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace godwit {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Duration timeout,
               FutexScope scope) {
  if (timeout <= Duration::zero()) return;
  timespec ts{};
  ts.tv_sec = timeout.count() / 1'000'000'000;
  ts.tv_nsec = timeout.count() % 1'000'000'000;
  const int op = scope == FutexScope::kPrivate ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT;
  syscall(SYS_futex, &word, op, expected, &ts, nullptr, 0);
}

void FutexWake(const std::atomic<uint32_t>& word, FutexScope scope) {
  const int op = scope == FutexScope::kPrivate ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE;
  syscall(SYS_futex, &word, op, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace godwit
