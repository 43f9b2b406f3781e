#include "base/background_pace.h"

#include <gtest/gtest.h>

namespace godwit {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(BackgroundPaceTest, RestsOnlyWhileSomebodyWaits) {
  EXPECT_EQ(RestAfter(microseconds(150), Duration{0}, microseconds(150)), Duration{0});
  EXPECT_EQ(RestAfter(microseconds(150), microseconds(14), microseconds(150)), Duration{0});
  EXPECT_EQ(RestAfter(microseconds(150), microseconds(150), microseconds(150)), microseconds(300));
  EXPECT_EQ(RestAfter(microseconds(10), microseconds(10), microseconds(10)), microseconds(200));
  EXPECT_EQ(RestAfter(milliseconds(50), milliseconds(50), milliseconds(50)), milliseconds(5));
  EXPECT_EQ(RestAfter(Duration{0}, Duration{0}, Duration{0}), Duration{0});
}

TEST(BackgroundPaceTest, LooksAtWhatWasWaitedSinceTheLastPiece) {
  FakeClock clock;
  Duration waited = milliseconds(700);
  BackgroundPace pace(clock, [&] { return std::optional<Duration>(waited); });
  clock.Advance(microseconds(150));
  EXPECT_EQ(pace.EndPiece(), Duration{0}) << "the 700 ms were before";
  clock.Advance(microseconds(150));
  waited += microseconds(100);
  EXPECT_EQ(pace.EndPiece(), microseconds(300));
  clock.Advance(microseconds(300));  // the rest
  clock.Advance(microseconds(150));
  EXPECT_EQ(pace.EndPiece(), Duration{0});
}

TEST(BackgroundPaceTest, KnowsWhetherTheMachineIsBusyAllTheTime) {
  FakeClock clock;
  Duration waited{0};
  BackgroundPace pace(clock, [&] { return std::optional<Duration>(waited); });
  const auto piece = [&](bool busy) {
    clock.Advance(microseconds(100));
    if (busy) waited += microseconds(100);
    clock.Advance(pace.EndPiece());
  };
  piece(true);
  EXPECT_FALSE(pace.contended()) << "once is chance";
  for (int i = 0; i < 5; ++i) piece(true);
  EXPECT_TRUE(pace.contended());
  for (int i = 0; i < 5; ++i) piece(false);
  EXPECT_FALSE(pace.contended());
}

TEST(BackgroundPaceTest, WithoutAnyCountItNeverRests) {
  FakeClock clock;
  BackgroundPace pace(clock, [] { return std::optional<Duration>(); });
  clock.Advance(milliseconds(1));
  EXPECT_EQ(pace.EndPiece(), Duration{0});
}

TEST(BackgroundPaceTest, ThisMachineHasACountThatDoesNotGoBack) {
  BackgroundPace pace(RealClock());
  for (int i = 0; i < 100; ++i) {
    const Duration rest = pace.EndPiece();
    EXPECT_GE(rest, Duration{0});
    EXPECT_LE(rest, milliseconds(5));
  }
}

}  // namespace
}  // namespace godwit
