#include "launcher/plain/master_child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <csignal>
#include <memory>
#include <string>

#include "base/event_loop.h"
#include "base/process.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "launcher/process_tree.h"
#include "launcher/testing/processes.h"

namespace godwit {
namespace {

TEST(MasterChildTest, AMasterThatIsStoppedForLongIsStartedAgain) {
  ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create("master-child"));
  ASSERT_OK_AND_ASSIGN(const UniqueFd signals, BlockSignalsToFd({SIGCHLD}));
  ASSERT_OK_AND_ASSIGN(const auto loop, EventLoop::Open());
  std::string failed;
  MasterChild master(
      {.argv = {"sleep", "60"},
       .log_path = dir.File("log"),
       .stopped_limit = std::chrono::milliseconds(100)},
      loop.get(), [&](int) { failed = "ended"; }, [&](const std::string& why) { failed = why; });
  ASSERT_OK(master.Start());
  const pid_t first = master.pid();
  ASSERT_OK(loop->AddFd(signals.get(), EPOLLIN, [&](uint32_t) {
    while (ReadSignalFd(signals.get())->has_value()) {
    }
    if (const Result<pid_t> pid = PeekEndedChild(); pid.ok() && *pid != 0) {
      master.OnChildEnded(*pid);
    }
  }));
  ASSERT_EQ(kill(first, SIGSTOP), 0);
  const MonotonicTime limit = testing::Soon();
  while (failed.empty() && (master.pid() == first || master.pid() == 0)) {
    ASSERT_LT(MonotonicClock::now(), limit);
    ASSERT_OK(loop->RunOnce(limit));
  }
  EXPECT_EQ(failed, "");
  EXPECT_TRUE(testing::WaitGone(first));
  const ProcessActivity activity = *ActivityOf(master.pid());
  EXPECT_NE(activity.state, 'T');
}

}  // namespace
}  // namespace godwit
