#include "base/random.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace godwit {
namespace {

// Samplers depend on these numbers; they stay for ever.
TEST(RandomTest, ASeedGivesTheSameNumbersForEver) {
  EXPECT_EQ(Mix64(0), 0xe220a8397b1dcdafu);  // splitmix64's first output for seed 0
  Random random(0);
  EXPECT_EQ(random.Next(), 0x99ec5f36cb75f2b4u);
  EXPECT_EQ(random.Next(), 0xbf6e1f784956452au);
  EXPECT_NE(Random(1).Next(), Random(2).Next());
}

TEST(RandomTest, BelowReachesAllNumbersAndNoOther) {
  Random random(7);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.Below(5));
  EXPECT_EQ(seen, (std::set<uint64_t>{0, 1, 2, 3, 4}));
}

TEST(RandomTest, BelowHasNoBias) {
  // 3 * 2^62: without the rejection, the lower third would come twice as often as the others.
  constexpr uint64_t kN = 3ull << 62;
  Random random(7);
  int low = 0;
  for (int i = 0; i < 30000; ++i) low += random.Below(kN) < kN / 3 ? 1 : 0;
  EXPECT_NEAR(low, 10000, 500);
}

TEST(RandomTest, BetweenCoversTheWholeRange) {
  Random random(7);
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  bool negative = false, positive = false;
  for (int i = 0; i < 100; ++i) {
    const int64_t x = random.Between(kMin, kMax);
    (x < 0 ? negative : positive) = true;
  }
  EXPECT_TRUE(negative && positive);
  EXPECT_EQ(random.Between(-3, -3), -3);
}

TEST(RandomTest, UniformStaysBelowOne) {
  Random random(7);
  for (int i = 0; i < 10000; ++i) {
    const double x = random.Uniform();
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 1);
  }
}

}  // namespace
}  // namespace godwit
