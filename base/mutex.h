#pragma once

#include <pthread.h>

#include <mutex>

#include "base/clock.h"

#if defined(__clang__)
#define GODWIT_TSA(x) __attribute__((x))
#else
#define GODWIT_TSA(x)
#endif
// Clang's thread-safety analysis (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html).
// Abseil, which comes with gRPC, defines some of these names with the same meaning.
#ifndef GUARDED_BY
#define GUARDED_BY(m) GODWIT_TSA(guarded_by(m))
#endif
#ifndef PT_GUARDED_BY
#define PT_GUARDED_BY(m) GODWIT_TSA(pt_guarded_by(m))
#endif
#define REQUIRES_LOCK(...) GODWIT_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES_LOCK(...) GODWIT_TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRES_LOCK(...) GODWIT_TSA(acquire_capability(__VA_ARGS__))
#define RELEASES_LOCK(...) GODWIT_TSA(release_capability(__VA_ARGS__))
#ifndef NO_THREAD_SAFETY_ANALYSIS
#define NO_THREAD_SAFETY_ANALYSIS GODWIT_TSA(no_thread_safety_analysis)
#endif

namespace godwit {

class GODWIT_TSA(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() ACQUIRES_LOCK() { mutex_.lock(); }
  void Unlock() RELEASES_LOCK() { mutex_.unlock(); }
  bool TryLock() GODWIT_TSA(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class GODWIT_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRES_LOCK(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASES_LOCK() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits end at a deadline on CLOCK_MONOTONIC, and can also end for no reason: call in a loop that
// looks at the condition.
class CondVar {
 public:
  CondVar();
  ~CondVar();
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // False when the deadline has passed.
  bool WaitUntil(Mutex& mutex, MonotonicTime deadline) REQUIRES_LOCK(mutex);
  // For a thread whose wait is ended by its owner's NotifyAll (a pool's worker): no bound.
  void Wait(Mutex& mutex) REQUIRES_LOCK(mutex);
  void NotifyOne();
  void NotifyAll();

 private:
  pthread_cond_t cond_;
};

}  // namespace godwit
