#include "base/event_loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "base/testing/matchers.h"
#include "base/thread.h"

namespace godwit {
namespace {

using ::godwit::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

class EventLoopTest : public ::testing::Test {
 protected:
  EventLoopTest() : loop_(EventLoop::Open().value()) {
    // Against hangs only.
    loop_->AddTimer(MonotonicClock::now() + seconds(30), [this] {
      ADD_FAILURE() << "the loop was not stopped";
      loop_->Stop();
    });
  }
  struct Pipe {
    Pipe() {
      int ends[2];
      EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
      in.Reset(ends[0]);
      out.Reset(ends[1]);
    }
    void Write() { EXPECT_EQ(write(out.get(), "x", 1), 1); }
    void Drain() {
      char buffer[64];
      while (read(in.get(), buffer, sizeof(buffer)) > 0) {
      }
    }
    UniqueFd in, out;
  };

  std::unique_ptr<EventLoop> loop_;
};

TEST_F(EventLoopTest, CallsBackWhenADescriptorIsReadable) {
  Pipe pipe;
  uint32_t got = 0;
  ASSERT_OK(loop_->AddFd(pipe.in.get(), EPOLLIN, [&](uint32_t events) {
    got = events;
    loop_->Stop();
  }));
  pipe.Write();
  EXPECT_OK(loop_->Run());
  EXPECT_EQ(got, uint32_t{EPOLLIN});
}

TEST_F(EventLoopTest, ReportsAHangUpWithoutBeingAsked) {
  Pipe pipe;
  ASSERT_OK(loop_->AddFd(pipe.in.get(), 0, [&](uint32_t events) {
    EXPECT_TRUE(events & EPOLLHUP);
    loop_->Stop();
  }));
  pipe.out.Reset();
  EXPECT_OK(loop_->Run());
}

TEST_F(EventLoopTest, IsLevelTriggered) {
  Pipe pipe;
  int calls = 0;
  ASSERT_OK(loop_->AddFd(pipe.in.get(), EPOLLIN, [&](uint32_t) {
    if (++calls == 3) loop_->Stop();
  }));
  pipe.Write();
  EXPECT_OK(loop_->Run());
  EXPECT_EQ(calls, 3);
}

TEST_F(EventLoopTest, RegistrationErrorsAreReported) {
  Pipe pipe;
  ASSERT_OK(loop_->AddFd(pipe.in.get(), EPOLLIN, [](uint32_t) {}));
  EXPECT_THAT(loop_->AddFd(pipe.in.get(), EPOLLIN, [](uint32_t) {}),
              StatusIs(StatusCode::kAlreadyExists));
  EXPECT_THAT(loop_->ModifyFd(pipe.out.get(), EPOLLOUT), StatusIs(StatusCode::kNotFound));
  loop_->RemoveFd(pipe.out.get());  // nothing happens
  EXPECT_FALSE(loop_->AddFd(-1, EPOLLIN, [](uint32_t) {}).ok());
}

TEST_F(EventLoopTest, ModifyChangesWhatIsWaitedFor) {
  Pipe pipe;
  int calls = 0;
  ASSERT_OK(loop_->AddFd(pipe.out.get(), 0, [&](uint32_t) {
    ++calls;
    loop_->Stop();
  }));
  EXPECT_OK(loop_->RunOnce(MonotonicClock::now()));
  EXPECT_EQ(calls, 0);
  ASSERT_OK(loop_->ModifyFd(pipe.out.get(), EPOLLOUT));
  EXPECT_OK(loop_->Run());
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, ACallbackMayRemoveItself) {
  Pipe pipe;
  int calls = 0;
  const auto keep = std::make_shared<int>(0);
  ASSERT_OK(loop_->AddFd(pipe.in.get(), EPOLLIN, [&, keep](uint32_t) {
    loop_->RemoveFd(pipe.in.get());
    ++calls;
    ++*keep;  // the closure still lives
  }));
  pipe.Write();
  EXPECT_OK(loop_->RunOnce(MonotonicClock::now() + seconds(10)));
  EXPECT_OK(loop_->RunOnce(MonotonicClock::now()));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(keep.use_count(), 1);
}

TEST_F(EventLoopTest, AnEventAlreadyFetchedDoesNotReachARemovedDescriptor) {
  // Both are ready in one round; whichever runs first removes the other, closes it, and registers a
  // new descriptor that gets the closed one's number.
  Pipe a, b, c;
  int calls = 0, stale = 0;
  const auto replace = [&](Pipe& other) {
    ++calls;
    const int number = other.in.get();
    loop_->RemoveFd(number);
    ASSERT_EQ(dup2(c.in.get(), number), number);
    ASSERT_OK(loop_->AddFd(number, EPOLLIN, [&](uint32_t) { ++stale; }));
  };
  ASSERT_OK(loop_->AddFd(a.in.get(), EPOLLIN, [&](uint32_t) {
    a.Drain();
    replace(b);
  }));
  ASSERT_OK(loop_->AddFd(b.in.get(), EPOLLIN, [&](uint32_t) {
    b.Drain();
    replace(a);
  }));
  a.Write();
  b.Write();
  EXPECT_OK(loop_->RunOnce(MonotonicClock::now() + seconds(10)));
  EXPECT_OK(loop_->RunOnce(MonotonicClock::now()));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(stale, 0);
}

TEST_F(EventLoopTest, TimersRunInTheOrderOfTheirDeadlinesAndNotBefore) {
  std::vector<int> order;
  const MonotonicTime now = MonotonicClock::now();
  const MonotonicTime last = now + milliseconds(3);
  loop_->AddTimer(last, [&] {
    order.push_back(3);
    EXPECT_GE(MonotonicClock::now(), last);
    loop_->Stop();
  });
  loop_->AddTimer(now + milliseconds(1), [&] { order.push_back(1); });
  loop_->AddTimer(now + milliseconds(1), [&] { order.push_back(2); });
  EXPECT_OK(loop_->Run());
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST_F(EventLoopTest, DeadlinesInThePastAndAtTheEndOfTimeAreFine) {
  bool ran = false;
  loop_->AddTimer(MonotonicTime::max(), [] { FAIL(); });
  loop_->AddTimer(MonotonicTime::min(), [&] { ran = true; });
  EXPECT_OK(loop_->RunOnce(MonotonicTime::max()));
  EXPECT_TRUE(ran);
}

TEST_F(EventLoopTest, ACancelledTimerDoesNotRun) {
  const MonotonicTime now = MonotonicClock::now();
  EventLoop::TimerId second = 0;
  const EventLoop::TimerId first = loop_->AddTimer(now, [&] {
    EXPECT_TRUE(loop_->CancelTimer(second));  // due in the same round
    EXPECT_FALSE(loop_->CancelTimer(first));  // runs now
    loop_->Stop();
  });
  second = loop_->AddTimer(now, [] { FAIL(); });
  EXPECT_OK(loop_->Run());
  EXPECT_OK(loop_->RunOnce(MonotonicClock::now()));
  EXPECT_FALSE(loop_->CancelTimer(second));
  EXPECT_FALSE(loop_->CancelTimer(12345));
}

TEST_F(EventLoopTest, ATimerThatSetsItselfAnewDoesNotStarveTheRest) {
  int rounds = 0;
  std::function<void()> again = [&] {
    ++rounds;
    loop_->AddTimer(MonotonicTime::min(), again);
  };
  again();
  Pipe pipe;
  ASSERT_OK(loop_->AddFd(pipe.in.get(), EPOLLIN, [&](uint32_t) { loop_->Stop(); }));
  pipe.Write();
  EXPECT_OK(loop_->Run());
  EXPECT_LE(rounds, 3);
}

TEST_F(EventLoopTest, PostedFunctionsRunInOrderOnTheLoopsThread) {
  std::vector<int> order;
  const std::thread::id here = std::this_thread::get_id();
  Thread poster("poster", [&](StopToken) {
    for (int i = 0; i < 1000; ++i) {
      EXPECT_OK(loop_->Post([&, i] {
        EXPECT_EQ(std::this_thread::get_id(), here);
        order.push_back(i);
        if (i == 999) loop_->Stop();
      }));
    }
  });
  EXPECT_OK(loop_->Run());
  ASSERT_EQ(order.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(EventLoopTest, AFunctionPostedFromACallbackRunsInTheNextRound) {
  std::vector<int> order;
  EXPECT_OK(loop_->Post([&] {
    order.push_back(1);
    // The queue isn't empty here, so this one alone wakes nobody.
    EXPECT_OK(loop_->Post([&] {
      order.push_back(3);
      loop_->Stop();
    }));
  }));
  EXPECT_OK(loop_->Post([&] { order.push_back(2); }));
  EXPECT_OK(loop_->RunOnce(MonotonicTime::max()));
  EXPECT_THAT(order, ElementsAre(1, 2));
  EXPECT_OK(loop_->Run());
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST_F(EventLoopTest, StopLeavesTheRestForTheNextRun) {
  int ran = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(loop_->Post([&] {
      ++ran;
      loop_->Stop();
    }));
  }
  EXPECT_OK(loop_->Run());
  EXPECT_EQ(ran, 1);
  EXPECT_OK(loop_->Run());
  EXPECT_EQ(ran, 2);
}

TEST_F(EventLoopTest, AStopBeforeRunIsNotLost) {
  loop_->Stop();
  EXPECT_OK(loop_->Run());
}

TEST_F(EventLoopTest, TheQueueOfPostHasALimit) {
  for (size_t i = 0; i < EventLoop::kMaxPosted; ++i) ASSERT_OK(loop_->Post([] {}));
  EXPECT_THAT(loop_->Post([] {}), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_OK(loop_->RunOnce(MonotonicTime::max()));
  EXPECT_OK(loop_->Post([] {}));
}

TEST_F(EventLoopTest, RunOnceComesBackAtItsDeadline) {
  const MonotonicTime deadline = MonotonicClock::now() + milliseconds(2);
  EXPECT_OK(loop_->RunOnce(deadline));
  EXPECT_GE(MonotonicClock::now(), deadline);
  EXPECT_OK(loop_->RunOnce(MonotonicTime::min()));
}

}  // namespace
}  // namespace godwit
