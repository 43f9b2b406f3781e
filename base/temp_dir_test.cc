#include "base/temp_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/real_file_system.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

TEST(TempDirTest, IsPrivateAndVanishesWithItsContents) {
  std::string path;
  {
    ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create("x"));
    path = dir.path();
    struct stat st;
    ASSERT_EQ(stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0700u);
    ASSERT_OK(RealFileSystem().CreateDirs(dir.File("a/b")));
    ASSERT_OK(
        WriteFileExclusive(RealFileSystem(), dir.File("a/b/c"), AsBytes("x"), Durability::kNone));
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(TempDirTest, WhatASymbolicLinkPointsToStays) {
  ASSERT_OK_AND_ASSIGN(const TempDir keep, TempDir::Create());
  ASSERT_OK(WriteFileExclusive(RealFileSystem(), keep.File("f"), AsBytes("x"), Durability::kNone));
  {
    ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create());
    ASSERT_EQ(symlink(keep.path().c_str(), dir.File("link").c_str()), 0);
  }
  EXPECT_OK(RealFileSystem().Stat(keep.File("f")));
}

TEST(TempDirTest, ReleaseLeavesIt) {
  std::string path;
  {
    ASSERT_OK_AND_ASSIGN(TempDir dir, TempDir::Create());
    path = dir.Release();
  }
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  EXPECT_OK(RemoveAll(path));
  EXPECT_OK(RemoveAll(path));  // nothing there is fine
}

TEST(TempDirTest, TwoAreDifferent) {
  ASSERT_OK_AND_ASSIGN(const TempDir a, TempDir::Create());
  ASSERT_OK_AND_ASSIGN(const TempDir b, TempDir::Create());
  EXPECT_NE(a.path(), b.path());
}

}  // namespace
}  // namespace godwit
