#include "scheduler/config/cluster_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

std::string Error(std::string_view json, uint32_t capacity = 3) {
  const auto config = ParseClusterConfig(json, "c.json", capacity);
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  return config.status().message();
}

TEST(ClusterConfigTest, AllKeysAreRead) {
  ASSERT_OK_AND_ASSIGN(const ClusterConfig config, ParseClusterConfig(R"({"quotas": [
          {"name": "a", "guaranteed": 1, "max": 3, "lendable": false, "queue": "strict-fifo"},
          {"name": "b", "guaranteed": 2}],
        "notice_s": 20, "max_notice_s": 60, "grow_after_s": 0.5, "checkpoint_root": "/ckpt"})",
                                                                      "c.json", 3));
  ASSERT_EQ(config.quotas.size(), 2u);
  EXPECT_EQ(config.quotas[0].max, 3u);
  EXPECT_FALSE(config.quotas[0].lendable);
  EXPECT_EQ(config.quotas[0].queue, policy::QueueStrategy::kStrictFifo);
  EXPECT_TRUE(config.quotas[1].lendable);
  EXPECT_EQ(config.quotas[1].max, std::nullopt);
  EXPECT_EQ(config.notice, std::chrono::seconds(20));
  EXPECT_EQ(config.max_notice, std::chrono::seconds(60));
  EXPECT_EQ(config.grow_after, std::chrono::milliseconds(500));
  EXPECT_EQ(config.checkpoint_root, "/ckpt");
}

TEST(ClusterConfigTest, AnUnknownKeyNamesTheNearestKnownOne) {
  EXPECT_THAT(Error(R"({"quota": []})"),
              HasSubstr("c.json: unknown key 'quota'; did you mean 'quotas'?"));
  EXPECT_THAT(Error(R"({"quotas": [{"name": "a", "guarantee": 1}]})"),
              HasSubstr("c.json: quotas[0]: unknown key 'guarantee'; did you mean 'guaranteed'?"));
}

TEST(ClusterConfigTest, GuaranteesAboveCapacityAreRefused) {
  EXPECT_EQ(
      Error(R"({"quotas": [{"name": "a", "guaranteed": 2}, {"name": "b", "guaranteed": 2}]})"),
      "c.json: quotas: they guarantee 4 slots in all, allowed: at most the 3 of the nodes");
}

TEST(ClusterConfigTest, WrongValuesNameFieldGotAndAllowed) {
  EXPECT_THAT(Error("{"), HasSubstr("c.json: not JSON"));
  EXPECT_THAT(Error("[]"), HasSubstr("got array, allowed: an object"));
  EXPECT_THAT(Error("{}"), HasSubstr("quotas is missing"));
  EXPECT_THAT(Error(R"({"quotas": []})"), HasSubstr("quotas is missing"));
  EXPECT_THAT(Error(R"({"quotas": [{"guaranteed": 1}]})"), HasSubstr("name is missing"));
  EXPECT_THAT(Error(R"({"quotas": [{"name": "a", "guaranteed": -1}]})"),
              HasSubstr("guaranteed: got -1, allowed: a whole number from 0"));
  EXPECT_THAT(Error(R"({"quotas": [{"name": "a", "guaranteed": 2, "max": 1}]})"),
              HasSubstr("max: got 1, allowed: at least guaranteed, which is 2"));
  EXPECT_THAT(Error(R"({"quotas": [{"name": "a", "guaranteed": 1, "queue": "fifo"}]})"),
              HasSubstr("queue: got \"fifo\", allowed: round-robin, strict-fifo"));
  EXPECT_THAT(Error(R"({"quotas": [{"name": "a", "guaranteed": 1}], "notice_s": 0})"),
              HasSubstr("notice_s: got 0, allowed: seconds above 0"));
  EXPECT_THAT(Error(R"({"quotas": [{"name": "a", "guaranteed": 1}], "checkpoint_root": "x"})"),
              HasSubstr("an absolute path"));
  EXPECT_THAT(Error(R"({"quotas": [{"name":"a","guaranteed":1},{"name":"a","guaranteed":1}]})"),
              HasSubstr("'a' stands there twice"));
}

TEST(ClusterConfigTest, NodesAreCountTimesSlots) {
  ASSERT_OK_AND_ASSIGN(const auto nodes, ParseNodes("3x2"));
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[2].name, "node-2");
  EXPECT_EQ(nodes[2].slots, 2u);
  for (const char* bad : {"", "3", "x", "0x1", "1x0", "3x1x1", "-1x1", "2000x1", "ax1"}) {
    EXPECT_THAT(ParseNodes(bad), StatusIs(StatusCode::kInvalidArgument, HasSubstr("3x1"))) << bad;
  }
}

}  // namespace
}  // namespace godwit
