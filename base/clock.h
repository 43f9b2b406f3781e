#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace godwit {

using Duration = std::chrono::nanoseconds;

// CLOCK_MONOTONIC: never steps, does not count suspend, is the same for all processes of one boot
// of a host (so its values may stand in shared memory), and means nothing on another host.
struct MonotonicClock {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<MonotonicClock, Duration>;
  static constexpr bool is_steady = true;
  static time_point now() noexcept;
};
using MonotonicTime = MonotonicClock::time_point;

inline int64_t ToNanos(Duration d) { return d.count(); }
inline int64_t ToNanos(MonotonicTime t) { return t.time_since_epoch().count(); }
inline MonotonicTime MonotonicFromNanos(int64_t nanos) { return MonotonicTime(Duration(nanos)); }

// t + d without overflow: stays at the ends of the range.
MonotonicTime SaturatingAdd(MonotonicTime t, Duration d);

// Where time comes from; passed in, so that logic can be tested without waiting. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonotonicTime Monotonic() const = 0;
  // Since 1970-01-01 UTC. Can step; for records that people read, never for a timeout.
  virtual Duration WallUnix() const = 0;
};

// The system's clock; lives as long as the process.
Clock& RealClock();

// Moves only when told to; wakes nobody.
class FakeClock : public Clock {
 public:
  explicit FakeClock(MonotonicTime monotonic = MonotonicTime(std::chrono::seconds(1000)),
                     Duration wall_unix = std::chrono::seconds(1'700'000'000));
  MonotonicTime Monotonic() const override;
  Duration WallUnix() const override;
  // Both clocks go on by d. REQUIRES: d >= 0.
  void Advance(Duration d);
  // The wall clock alone steps, by a signed amount.
  void StepWall(Duration d);

 private:
  mutable std::mutex mutex_;
  MonotonicTime monotonic_;  // guarded by mutex_
  Duration wall_unix_;       // guarded by mutex_
};

}  // namespace godwit
