#include "runtime/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

Result<LaunchEnvironment> Read(const std::map<std::string, std::string>& env) {
  return ReadLaunchEnvironment([&](const char* name) -> const char* {
    const auto it = env.find(name);
    return it == env.end() ? nullptr : it->second.c_str();
  });
}

TEST(EnvironmentTest, NothingMeansAlone) {
  const auto env = Read({});
  ASSERT_THAT(env, IsOk());
  EXPECT_FALSE(env->launched);
  EXPECT_THAT(Read({{"WORLD_SIZE", "1"}}), IsOk());
}

TEST(EnvironmentTest, AnotherLaunchersWorldIsRefusedNamingOurs) {
  EXPECT_THAT(Read({{"WORLD_SIZE", "4"}, {"RANK", "1"}}),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("godwit run")));
}

TEST(EnvironmentTest, AKeepersWorldIsTaken) {
  const auto env = Read({{"GODWIT_KEEPER_SOCKET", "/k"},
                         {"GODWIT_SLOT", "2"},
                         {"GODWIT_EPOCH", "18446744073709551615"},
                         {"GODWIT_JOB", "j"},
                         {"GODWIT_DIR", "/d"},
                         {"WORLD_SIZE", "4"}});
  ASSERT_THAT(env, IsOk());
  EXPECT_TRUE(env->launched);
  EXPECT_EQ(env->slot, 2u);
  EXPECT_EQ(env->epoch, UINT64_MAX);
  EXPECT_EQ(env->dir, "/d");
  EXPECT_EQ(env->host, "127.0.0.1");
}

TEST(EnvironmentTest, NonsenseIsNamed) {
  EXPECT_THAT(Read({{"GODWIT_KEEPER_SOCKET", "/k"}, {"GODWIT_SLOT", "x"}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("GODWIT_SLOT")));
  EXPECT_THAT(Read({{"WORLD_SIZE", "many"}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("WORLD_SIZE")));
}

}  // namespace
}  // namespace godwit
