#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <csignal>

#include "base/mutex.h"

namespace godwit {
namespace {

TEST(ThreadTest, HasItsNameCutToWhatTheKernelKeeps) {
  char name[16] = {};
  {
    Thread thread("a-name-that-is-too-long",
                  [&](StopToken) { pthread_getname_np(pthread_self(), name, sizeof(name)); });
  }
  EXPECT_STREQ(name, "a-name-that-is-");
}

TEST(ThreadTest, DestructionAsksItToStopAndJoins) {
  Mutex mutex;
  CondVar cond;
  bool ended = false;
  {
    Thread thread("waiter", [&](StopToken stop) {
      // Under the lock, or the notice could come between the look at the token and the wait.
      std::stop_callback wake(stop, [&] {
        MutexLock lock(mutex);
        cond.NotifyAll();
      });
      MutexLock lock(mutex);
      while (!stop.stop_requested()) cond.Wait(mutex);
      ended = true;
    });
  }
  EXPECT_TRUE(ended);
}

TEST(ThreadTest, AssignmentEndsTheThreadItReplaces) {
  std::atomic<bool> ended = false;
  Thread thread("first", [&](StopToken stop) {
    while (!stop.stop_requested()) std::this_thread::yield();
    ended = true;
  });
  thread = Thread("second", [](StopToken) {});
  EXPECT_TRUE(ended);
  EXPECT_TRUE(thread.joinable());
}

TEST(ThreadTest, SignalsBelongToTheMainThread) {
  sigset_t mask;
  {
    Thread thread("masked", [&](StopToken) { pthread_sigmask(SIG_SETMASK, nullptr, &mask); });
  }
  EXPECT_TRUE(sigismember(&mask, SIGTERM));
  EXPECT_TRUE(sigismember(&mask, SIGCHLD));
  EXPECT_FALSE(sigismember(&mask, SIGSEGV));
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_FALSE(sigismember(&own, SIGTERM));
}

TEST(CondVarTest, WaitUntilEndsAtTheDeadline) {
  Mutex mutex;
  CondVar cond;
  MutexLock lock(mutex);
  const MonotonicTime deadline = MonotonicClock::now() + std::chrono::milliseconds(5);
  while (cond.WaitUntil(mutex, deadline)) {
  }
  EXPECT_GE(MonotonicClock::now(), deadline);
  EXPECT_FALSE(cond.WaitUntil(mutex, MonotonicTime::min()));
}

TEST(CondVarTest, NotifyEndsAWaitWithoutADeadline) {
  Mutex mutex;
  CondVar cond;
  bool go = false;
  Thread thread("notifier", [&](StopToken) {
    MutexLock lock(mutex);
    go = true;
    cond.NotifyOne();
  });
  MutexLock lock(mutex);
  while (!go) ASSERT_TRUE(cond.WaitUntil(mutex, MonotonicTime::max()));
}

}  // namespace
}  // namespace godwit
