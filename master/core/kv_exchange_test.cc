#include "master/core/kv_exchange.h"

#include <gtest/gtest.h>

#include "base/testing/matchers.h"

namespace godwit::master {
namespace {

using godwit::testing::IsOk;
using godwit::testing::StatusIs;

const MonotonicTime kNow{std::chrono::seconds(5)};

TEST(KvExchange, GetWaitsForTheSetAndThenAnswersAtOnce) {
  KvExchange kv;
  EXPECT_TRUE(kv.BeginEpoch(1).empty());
  EXPECT_TRUE(kv.Get({0, 0, 7}, "a", kNow).empty());
  EXPECT_EQ(kv.NextDeadline(), kNow);
  const auto answers = kv.Set({1, 1, 8}, "a", "x");
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].asker.request, 8u);
  EXPECT_THAT(answers[0].status, IsOk());
  EXPECT_EQ(answers[1].asker.request, 7u);
  EXPECT_EQ(answers[1].value, "x");
  EXPECT_EQ(kv.Get({0, 0, 9}, "a", kNow).at(0).value, "x");
  EXPECT_FALSE(kv.NextDeadline());
}

TEST(KvExchange, KeyIsSetOnce) {
  KvExchange kv;
  (void)kv.Set({}, "a", "x");
  EXPECT_THAT(kv.Set({}, "a", "y").at(0).status, StatusIs(StatusCode::kAlreadyExists));
}

TEST(KvExchange, GetThatNobodyAnswersEndsAtItsDeadline) {
  KvExchange kv;
  (void)kv.Get({0, 0, 1}, "a", kNow);
  EXPECT_TRUE(kv.Expire(kNow - Duration(1)).empty());
  EXPECT_THAT(kv.Expire(kNow).at(0).status, StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(kv.Expire(kNow).empty());
}

TEST(KvExchange, NextEpochForgetsKeysAndAnswersWhoWaits) {
  KvExchange kv;
  (void)kv.BeginEpoch(1);
  (void)kv.Set({}, "a", "x");
  (void)kv.Get({0, 3, 1}, "b", kNow);
  EXPECT_THAT(kv.BeginEpoch(2).at(0).status, StatusIs(StatusCode::kAborted));
  EXPECT_TRUE(kv.Get({0, 0, 1}, "a", kNow).empty());
}

TEST(KvExchange, TooLongKeysAndValuesAreRefused) {
  KvExchange kv;
  EXPECT_THAT(kv.Set({}, "", "x").at(0).status, StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(kv.Set({}, std::string(257, 'k'), "x").at(0).status,
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(kv.Set({}, "k", std::string(KvExchange::kMaxValueBytes + 1, 'v')).at(0).status,
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(kv.Get({}, std::string(257, 'k'), kNow).at(0).status,
              StatusIs(StatusCode::kInvalidArgument));
}

TEST(KvExchange, QuestionsOfABrokenStreamAreForgotten) {
  KvExchange kv;
  (void)kv.Get({0, 0, 1}, "a", kNow);
  (void)kv.Get({1, 1, 1}, "a", kNow);
  kv.Forget(0);
  EXPECT_EQ(kv.Set({2, 2, 2}, "a", "x").size(), 2u);
}

}  // namespace
}  // namespace godwit::master
