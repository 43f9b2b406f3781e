#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace godwit {

// An epoll loop on one thread. All methods are called on the thread that runs it (or before Run),
// except Post and Stop, which any thread may call. Callbacks run one at a time and may call any
// method, also remove themselves.
class EventLoop {
 public:
  // `events` is what epoll reported: EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR.
  using FdCallback = std::function<void(uint32_t events)>;
  using TimerId = uint64_t;  // never 0, never used again

  // Functions that may wait in Post's queue.
  static constexpr size_t kMaxPosted = 65536;

  static Result<std::unique_ptr<EventLoop>> Open();
  ~EventLoop();

  // Calls back whenever one of `events` (level-triggered) holds; EPOLLHUP and EPOLLERR always
  // count. Borrows fd: RemoveFd comes before close. ALREADY_EXISTS when fd is registered.
  Status AddFd(int fd, uint32_t events, FdCallback callback);
  // Other events for a registered fd. NOT_FOUND when it isn't.
  Status ModifyFd(int fd, uint32_t events);
  // No callback for fd starts after this, not even for an event already fetched. Nothing happens
  // when it isn't registered.
  void RemoveFd(int fd);

  // Calls back once, not before `deadline`; timers with one deadline in the order of their making.
  TimerId AddTimer(MonotonicTime deadline, std::function<void()> callback);
  // False when it has run, is running, or was cancelled.
  bool CancelTimer(TimerId id);

  // Runs `fn` on the loop's thread, in the order of posting. RESOURCE_EXHAUSTED when kMaxPosted
  // wait. What is still queued when the loop is destroyed is destroyed without being run.
  Status Post(std::function<void()> fn);

  // Runs callbacks until Stop. An error of epoll itself ends it.
  Status Run();
  // One round: waits until something is due or `deadline` has come, and runs what is due.
  Status RunOnce(MonotonicTime deadline);
  // Run returns after the callback that runs now; if it doesn't run, the next Run returns at once.
  // Async-signal-safe.
  void Stop();

 private:
  struct Registration {
    int fd;
    FdCallback callback;
  };
  EventLoop(UniqueFd epoll, UniqueFd timer, UniqueFd wake);
  void RunPosted();
  void RunTimers();
  // For `deadline` or the first timer's, whichever comes first.
  Status ArmTimer(MonotonicTime deadline);

  const UniqueFd epoll_;
  const UniqueFd timer_;
  const UniqueFd wake_;

  // The loop's thread only.
  uint64_t next_id_;
  // By an id that is never used again, so that an event of a closed descriptor isn't taken for one
  // of a new descriptor with its number.
  std::unordered_map<uint64_t, std::shared_ptr<Registration>> registrations_;
  std::unordered_map<int, uint64_t> id_of_fd_;
  std::map<std::pair<MonotonicTime, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, MonotonicTime> deadline_of_timer_;
  MonotonicTime armed_ = MonotonicTime::max();  // what timer_ is set to; max: to nothing

  std::atomic<bool> stop_{false};
  Mutex mutex_;
  std::deque<std::function<void()>> posted_ GUARDED_BY(mutex_);
};

}  // namespace godwit
