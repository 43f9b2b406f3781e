#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"

namespace godwit {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    in_.Reset(ends[0]);
    out_.Reset(ends[1]);
    SetLogFd(out_.get());
  }
  ~LogTest() override {
    SetLogFd(STDERR_FILENO);
    SetLogComponent("");
    SetLogLevel(LogLevel::kInfo);
  }
  std::string Written() {
    std::string text(65536, '\0');
    const ssize_t n = read(in_.get(), text.data(), text.size());
    text.resize(n > 0 ? n : 0);
    return text;
  }
  UniqueFd in_, out_;
};

TEST_F(LogTest, ALineHasTimeLevelComponentAndText) {
  SetLogComponent("agent");
  LogWarning("rank {} is {}", 3, "slow");
  EXPECT_THAT(
      Written(),
      MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9]+Z WARNING \\[agent\\] rank 3 "
                   "is slow\n"));
}

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  SetLogLevel(LogLevel::kError);
  LogWarning("no");
  EXPECT_EQ(Written(), "");
  LogError("yes");
  EXPECT_THAT(Written(), HasSubstr("ERROR yes"));
  SetLogLevel(LogLevel::kOff);
  LogError("no");
  EXPECT_EQ(Written(), "");
}

TEST_F(LogTest, ATextWithNewlinesStaysOneLine) {
  LogInfo("a\nb");
  EXPECT_THAT(Written(), HasSubstr("INFO a\\nb\n"));
}

TEST_F(LogTest, AFullPipeDropsTheLineInsteadOfBlocking) {
  const std::string big(4000, 'x');
  for (int i = 0; i < 100; ++i) LogInfo("{}", big);  // more than a pipe holds
  EXPECT_NE(Written(), "");
}

}  // namespace
}  // namespace godwit
