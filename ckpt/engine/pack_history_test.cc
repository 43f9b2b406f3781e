#include "ckpt/engine/pack_history.h"

#include <gtest/gtest.h>

namespace godwit::ckpt {
namespace {

KeptPack PackOf(const SaveId& save) {
  KeptPack pack;
  pack.contents.pack.save = save;
  return pack;
}

TEST(PackHistoryTest, OnlyACommittedSaveOfTheSameTermIsABase) {
  PackHistory history{BaseLimits{}};
  history.Written(PackOf({1, 10, 1}));
  EXPECT_EQ(history.Base(1), nullptr);
  history.Committed({1, 11, 1});
  EXPECT_EQ(history.Base(1), nullptr) << "another save";
  history.Committed({1, 10, 1});
  ASSERT_NE(history.Base(1), nullptr);
  EXPECT_EQ(history.Base(1)->contents.pack.save.step, 10u);
  EXPECT_EQ(history.Base(2), nullptr);
}

TEST(PackHistoryTest, ANewerCommitTakesThePlaceOfOlderPacks) {
  PackHistory history{BaseLimits{}};
  history.Written(PackOf({1, 10, 1}));
  history.Written(PackOf({1, 20, 2}));
  history.Committed({1, 20, 2});
  EXPECT_EQ(history.Base(1)->contents.pack.save.step, 20u);
  history.Committed({1, 10, 1});  // late news
  EXPECT_EQ(history.Base(1)->contents.pack.save.step, 20u);
}

TEST(PackHistoryTest, PacksThatNobodyCommitsAreForgotten) {
  PackHistory history{BaseLimits{}};
  for (uint64_t step = 1; step <= 100; ++step) {
    history.Written(PackOf({1, step, static_cast<uint32_t>(step)}));
  }
  history.Committed({1, 98, 98});
  EXPECT_EQ(history.Base(1), nullptr);
  history.Committed({1, 100, 100});
  EXPECT_NE(history.Base(1), nullptr);
}

TEST(PackHistoryTest, EncodingThatDidNotPayIsTriedAgain) {
  PackHistory history{BaseLimits{}};
  EXPECT_TRUE(history.Encoding());
  history.Measured({.encode_bytes_per_s = 0.3e9, .storage_bytes_per_s = 0.5e9, .ratio = 0.84});
  int stored = 0;
  while (!history.Encoding()) ASSERT_LT(++stored, 100);
  EXPECT_EQ(stored, 15);
  EXPECT_FALSE(history.Encoding()) << "it measured the same again";
  history.Measured({.encode_bytes_per_s = 3e9, .storage_bytes_per_s = 0.5e9, .ratio = 0.84});
  EXPECT_TRUE(history.Encoding());
  EXPECT_TRUE(history.Encoding());
}

}  // namespace
}  // namespace godwit::ckpt
