#include "cli/proto_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "proto/scheduler.pb.h"

namespace godwit::cli {
namespace {

TEST(ProtoJsonTest, LargeNumbersStayNumbersAndDefaultsAreShown) {
  proto::NoticeRecord record;
  record.set_id("n-1");
  record.set_time_left_ns(20'000'000'000);
  const nlohmann::ordered_json json = ToJson(record);
  EXPECT_EQ(json["id"], "n-1");
  EXPECT_TRUE(json["time_left_ns"].is_number());
  EXPECT_EQ(json["time_left_ns"].get<uint64_t>(), 20'000'000'000u);
  EXPECT_EQ(json["steps_lost"], 0);
  EXPECT_EQ(json["in_time"], false);
}

TEST(ProtoJsonTest, FieldsWithPresenceThatAreNotSetAreLeftOut) {
  proto::JobInfo job;
  EXPECT_FALSE(ToJson(job).contains("master"));
  EXPECT_FALSE(ToJson(job.spec()).contains("auto_restart"));
  job.mutable_spec()->set_auto_restart(false);
  EXPECT_EQ(ToJson(job)["spec"]["auto_restart"], false);
  EXPECT_EQ(ToJson(job)["nodes"], nlohmann::ordered_json::array());
}

TEST(ProtoJsonTest, JsonInAStringIsEmbedded) {
  proto::Event event;
  event.set_data_json(R"({"workers":2})");
  EXPECT_EQ(ToJson(event)["data_json"]["workers"], 2);
  event.set_data_json("");
  EXPECT_TRUE(ToJson(event)["data_json"].is_null());
  event.set_data_json("{broken");
  EXPECT_EQ(ToJson(event)["data_json"], "{broken");
}

TEST(ProtoJsonTest, TextThatIsNoUtf8IsPrintable) {
  proto::FailureRecord failure;
  // protobuf logs an error when it serializes this, but a reflection reads it as it is.
  failure.set_log_tail("ok \xff");
  EXPECT_NO_THROW(ToJson(failure).dump());
}

}  // namespace
}  // namespace godwit::cli
