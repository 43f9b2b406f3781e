#include "base/clock.h"

#include <ctime>

#include "base/check.h"

namespace godwit {

namespace {
Duration Read(clockid_t id) {
  timespec ts;
  GODWIT_CHECK(clock_gettime(id, &ts) == 0);
  return std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec);
}

class SystemClock final : public Clock {
 public:
  MonotonicTime Monotonic() const override { return MonotonicClock::now(); }
  Duration WallUnix() const override { return Read(CLOCK_REALTIME); }
};
}  // namespace

MonotonicTime MonotonicClock::now() noexcept { return MonotonicTime(Read(CLOCK_MONOTONIC)); }

MonotonicTime SaturatingAdd(MonotonicTime t, Duration d) {
  int64_t sum;
  if (__builtin_add_overflow(ToNanos(t), ToNanos(d), &sum)) {
    return d > Duration(0) ? MonotonicTime::max() : MonotonicTime::min();
  }
  return MonotonicFromNanos(sum);
}

Clock& RealClock() {
  static SystemClock clock;
  return clock;
}

FakeClock::FakeClock(MonotonicTime monotonic, Duration wall_unix)
    : monotonic_(monotonic), wall_unix_(wall_unix) {}

MonotonicTime FakeClock::Monotonic() const {
  std::lock_guard lock(mutex_);
  return monotonic_;
}

Duration FakeClock::WallUnix() const {
  std::lock_guard lock(mutex_);
  return wall_unix_;
}

void FakeClock::Advance(Duration d) {
  GODWIT_CHECK(d >= Duration(0));
  std::lock_guard lock(mutex_);
  monotonic_ = SaturatingAdd(monotonic_, d);
  wall_unix_ += d;
}

void FakeClock::StepWall(Duration d) {
  std::lock_guard lock(mutex_);
  wall_unix_ += d;
}

}  // namespace godwit
