#include "launcher/run_dir.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "base/temp_dir.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOkAndHolds;

class RunDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(TempDir dir, TempDir::Create("run-dir"));
    dir_ = std::make_unique<TempDir>(std::move(dir));
  }
  std::string Make(const std::string& name) {
    const std::string path = dir_->File(name);
    EXPECT_EQ(mkdir(path.c_str(), 0700), 0);
    return path;
  }
  static bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

  std::unique_ptr<TempDir> dir_;
};

TEST_F(RunDirTest, GoesWithItsOwnerAndNotBefore) {
  const std::string path = Make("run");
  ASSERT_OK_AND_ASSIGN(UniqueFd lock, LockRunDir(path));
  EXPECT_THAT(RemoveIfAbandoned(path), IsOkAndHolds(false));
  EXPECT_TRUE(Exists(path));
  lock.Reset();
  EXPECT_THAT(RemoveIfAbandoned(path), IsOkAndHolds(true));
  EXPECT_FALSE(Exists(path));
  EXPECT_THAT(RemoveIfAbandoned(path), IsOkAndHolds(true));
}

TEST_F(RunDirTest, StaysWhenItIsMarked) {
  const std::string path = Make("run");
  ASSERT_OK_AND_ASSIGN(UniqueFd lock, LockRunDir(path));
  ASSERT_OK(KeepRunDir(path));
  lock.Reset();
  EXPECT_THAT(RemoveIfAbandoned(path), IsOkAndHolds(false));
  EXPECT_TRUE(Exists(path));
}

TEST_F(RunDirTest, StaysWhileItsOwnerIsAboutToLockIt) {
  const std::string path = Make("run");
  EXPECT_THAT(RemoveIfAbandoned(path), IsOkAndHolds(false));
  ASSERT_EQ(close(creat((path + "/agent.lock").c_str(), 0600)), 0);
  EXPECT_THAT(RemoveIfAbandoned(path), IsOkAndHolds(false));
  EXPECT_TRUE(Exists(path));
}

TEST_F(RunDirTest, WhatIsNoDirectoryIsNotTouched) {
  const std::string path = Make("run");
  { ASSERT_OK(LockRunDir(path)); }
  const std::string link = dir_->File("link");
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  EXPECT_THAT(RemoveIfAbandoned(link), IsOkAndHolds(false));
  EXPECT_TRUE(Exists(path));
}

TEST_F(RunDirTest, ASweepTakesWhatIsAbandonedUnderThePrefix) {
  const std::string dead = Make("x.dead");
  { ASSERT_OK(LockRunDir(dead)); }
  const std::string other = Make("y.dead");
  { ASSERT_OK(LockRunDir(other)); }
  const std::string alive = Make("x.alive");
  ASSERT_OK_AND_ASSIGN(const UniqueFd lock, LockRunDir(alive));
  RemoveAbandonedIn(dir_->path(), "x.");
  EXPECT_FALSE(Exists(dead));
  EXPECT_TRUE(Exists(other));
  EXPECT_TRUE(Exists(alive));
}

}  // namespace
}  // namespace godwit
