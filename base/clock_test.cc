#include "base/clock.h"

#include <gtest/gtest.h>

#include <ctime>

namespace godwit {
namespace {

TEST(ClockTest, RealClockIsTheKernelsMonotonicClock) {
  timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  const int64_t now = ToNanos(RealClock().Monotonic());
  clock_gettime(CLOCK_MONOTONIC, &after);
  EXPECT_GE(now, before.tv_sec * 1'000'000'000 + before.tv_nsec);
  EXPECT_LE(now, after.tv_sec * 1'000'000'000 + after.tv_nsec);
}

TEST(ClockTest, WallClockCountsFromTheUnixEpoch) {
  const time_t before = time(nullptr);
  EXPECT_GE(RealClock().WallUnix(), std::chrono::seconds(before));
}

TEST(FakeClockTest, MovesOnlyWhenTold) {
  FakeClock clock(MonotonicFromNanos(100), Duration(1000));
  EXPECT_EQ(ToNanos(clock.Monotonic()), 100);
  clock.Advance(Duration(5));
  EXPECT_EQ(ToNanos(clock.Monotonic()), 105);
  EXPECT_EQ(clock.WallUnix(), Duration(1005));
  clock.StepWall(Duration(-500));
  EXPECT_EQ(ToNanos(clock.Monotonic()), 105);
  EXPECT_EQ(clock.WallUnix(), Duration(505));
}

TEST(ClockTest, SaturatingAddStaysInRange) {
  EXPECT_EQ(SaturatingAdd(MonotonicTime::max(), Duration(1)), MonotonicTime::max());
  EXPECT_EQ(SaturatingAdd(MonotonicTime::min(), Duration(-1)), MonotonicTime::min());
  EXPECT_EQ(SaturatingAdd(MonotonicFromNanos(1), Duration::max()), MonotonicTime::max());
  EXPECT_EQ(ToNanos(SaturatingAdd(MonotonicFromNanos(1), Duration(2))), 3);
}

}  // namespace
}  // namespace godwit
