#include "cli/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/matchers.h"

namespace godwit::cli {
namespace {

using ::godwit::testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JobSpecTest, WorkersAreANumberOrARange) {
  proto::JobSpec spec;
  EXPECT_THAT(SetWorkers("3", &spec), IsOk());
  EXPECT_EQ(spec.min_workers(), 3u);
  EXPECT_EQ(spec.max_workers(), 3u);
  EXPECT_THAT(SetWorkers("1:3", &spec), IsOk());
  EXPECT_EQ(spec.min_workers(), 1u);
  EXPECT_EQ(spec.max_workers(), 3u);
}

TEST(JobSpecTest, WorkersThatCannotBeAreRefusedNamingWhatIsAllowed) {
  for (const char* text : {"", "0", "3:1", "1:", ":3", "0:2", "a", "1:2:3", "-1", "99999999999"}) {
    proto::JobSpec spec;
    const Status status = SetWorkers(text, &spec);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("workers"), HasSubstr("MIN:MAX"))) << text;
  }
}

TEST(JobSpecTest, TheLastValueOfAVariableCounts) {
  proto::JobSpec spec;
  EXPECT_THAT(SetEnv("A=1", &spec), IsOk());
  EXPECT_THAT(SetEnv("AB=2", &spec), IsOk());
  EXPECT_THAT(SetEnv("A=x=y", &spec), IsOk());
  EXPECT_THAT(spec.env(), ElementsAre("A=x=y", "AB=2"));
  EXPECT_FALSE(SetEnv("=1", &spec).ok());
  EXPECT_FALSE(SetEnv("A", &spec).ok());
}

TEST(JobSpecTest, ReadsEveryKeyOfAJobFile) {
  proto::JobSpec spec;
  ASSERT_THAT(ReadJobJson(R"({
    "name": "gpt", "quota": "team-a", "class": "high", "priority": 7, "idle": "accept",
    "workers": "1:3", "slots_per_worker": 2, "max_restarts": 5, "max_job_restarts": 1,
    "grace": "20s", "auto_restart": false, "command": ["./train", "--steps", "10"],
    "env": {"A": "1"}, "dir": "/runs/gpt", "cwd": "/home"})",
                          "job.json", &spec),
              IsOk());
  EXPECT_EQ(spec.name(), "gpt");
  EXPECT_EQ(spec.quota(), "team-a");
  EXPECT_EQ(spec.job_class(), "high");
  EXPECT_EQ(spec.priority(), 7u);
  EXPECT_EQ(spec.idle(), "accept");
  EXPECT_EQ(spec.min_workers(), 1u);
  EXPECT_EQ(spec.max_workers(), 3u);
  EXPECT_EQ(spec.slots_per_worker(), 2u);
  EXPECT_EQ(spec.max_restarts(), 5u);
  EXPECT_EQ(spec.max_job_restarts(), 1u);
  EXPECT_EQ(spec.grace_ns(), 20'000'000'000u);
  EXPECT_FALSE(spec.auto_restart());
  EXPECT_THAT(spec.argv(), ElementsAre("./train", "--steps", "10"));
  EXPECT_THAT(spec.env(), ElementsAre("A=1"));
  EXPECT_EQ(spec.directory(), "/runs/gpt");
  EXPECT_EQ(spec.cwd(), "/home");
}

struct BadFile {
  const char* json;
  const char* names;    // what the message must name
  const char* allowed;  // and what it must offer
};

TEST(JobSpecTest, AJobFileThatIsWrongIsRefusedNamingFileKeyAndWhatIsAllowed) {
  const BadFile files[] = {
      {R"({"quotta": "a"})", "'quotta'", "'quota'"},
      {R"({"something": 1})", "'something'", "allowed: "},
      {R"({"name": 3})", "name", "a string"},
      {R"({"workers": -1})", "workers", "MIN:MAX"},
      {R"({"workers": [1]})", "workers", "MIN:MAX"},
      {R"({"priority": 10})", "priority", "1 to 9"},
      {R"({"priority": "high"})", "priority", "1 to 9"},
      {R"({"class": "urgent"})", "urgent", "high, medium, low"},
      {R"({"idle": "yes"})", "yes", "forbid, accept, only"},
      {R"({"grace": "0s"})", "grace", "duration"},
      {R"({"grace": 30})", "grace", "a string"},
      {R"({"command": []})", "command", "not empty"},
      {R"({"command": "./train"})", "command", "list"},
      {R"({"env": {"A": 1}})", "env.A", "a string"},
      {R"({"auto_restart": 1})", "auto_restart", "true, false"},
      {R"({"max_restarts": 1.5})", "max_restarts", "whole number"},
      {R"([1])", "array", "object"},
      {R"({"name": )", "not JSON", ""},
      {"", "not JSON", ""},
  };
  for (const BadFile& file : files) {
    proto::JobSpec spec;
    const Status status = ReadJobJson(file.json, "job.json", &spec);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << file.json;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("job.json"), HasSubstr(file.names), HasSubstr(file.allowed)))
        << file.json;
  }
}

}  // namespace
}  // namespace godwit::cli
