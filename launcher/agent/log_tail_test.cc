#include "launcher/agent/log_tail.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "base/temp_dir.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

class LogTailTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(TempDir dir, TempDir::Create("log-tail"));
    dir_ = std::make_unique<TempDir>(std::move(dir));
  }
  std::string Tail(const std::string& text, size_t max_bytes) {
    const std::string path = dir_->File("log");
    FILE* const file = std::fopen(path.c_str(), "w");
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
    return LogTail(path, max_bytes);
  }
  std::unique_ptr<TempDir> dir_;
};

TEST_F(LogTailTest, GivesWholeLastLines) {
  EXPECT_EQ(Tail("one\ntwo\nthree\n", 100), "one\ntwo\nthree\n");
  EXPECT_EQ(Tail("one\ntwo\nthree\n", 10), "two\nthree\n");
  EXPECT_EQ(Tail("one\ntwo\nthree\n", 9), "three\n");
  EXPECT_EQ(Tail("one\ntwo", 3), "two");
}

TEST_F(LogTailTest, GivesTheEndOfALineThatIsLonger) {
  EXPECT_EQ(Tail("0123456789", 4), "6789");
  EXPECT_EQ(Tail("0123456789\n", 4), "789\n");
}

TEST_F(LogTailTest, GivesNothingOfWhatIsNotThere) {
  EXPECT_EQ(LogTail(dir_->File("missing"), 10), "");
  EXPECT_EQ(LogTail(dir_->path(), 10), "");
  EXPECT_EQ(Tail("", 10), "");
}

}  // namespace
}  // namespace godwit
