#include "base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "base/check.h"

namespace godwit {

namespace {
// Ids of the loop's own descriptors; registrations start behind them.
constexpr uint64_t kTimerEvent = 1;
constexpr uint64_t kWakeEvent = 2;
constexpr uint64_t kFirstId = 3;

Status Watch(int epoll, int fd, uint64_t id) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoError(errno, "epoll_ctl");
  return OkStatus();
}

// Empties an eventfd or a timerfd.
void Drain(int fd) {
  uint64_t count;
  while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

void Wake(int fd) {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the loop is being woken already.
  while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}
}  // namespace

EventLoop::EventLoop(UniqueFd epoll, UniqueFd timer, UniqueFd wake)
    : epoll_(std::move(epoll)),
      timer_(std::move(timer)),
      wake_(std::move(wake)),
      next_id_(kFirstId) {}

EventLoop::~EventLoop() = default;

Result<std::unique_ptr<EventLoop>> EventLoop::Open() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoError(errno, "epoll_create1");
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return ErrnoError(errno, "timerfd_create");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return ErrnoError(errno, "eventfd");
  GODWIT_RETURN_IF_ERROR(Watch(epoll.get(), timer.get(), kTimerEvent));
  GODWIT_RETURN_IF_ERROR(Watch(epoll.get(), wake.get(), kWakeEvent));
  return std::unique_ptr<EventLoop>(
      new EventLoop(std::move(epoll), std::move(timer), std::move(wake)));
}

Status EventLoop::AddFd(int fd, uint32_t events, FdCallback callback) {
  const std::string what = "event loop: descriptor " + std::to_string(fd);
  if (id_of_fd_.contains(fd)) return AlreadyExistsError(what + " is registered already");
  const uint64_t id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoError(errno, what);
  id_of_fd_[fd] = id;
  registrations_[id] = std::make_shared<Registration>(Registration{fd, std::move(callback)});
  return OkStatus();
}

Status EventLoop::ModifyFd(int fd, uint32_t events) {
  const std::string what = "event loop: descriptor " + std::to_string(fd);
  const auto found = id_of_fd_.find(fd);
  if (found == id_of_fd_.end()) return NotFoundError(what + " is not registered");
  epoll_event event{};
  event.events = events;
  event.data.u64 = found->second;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) return ErrnoError(errno, what);
  return OkStatus();
}

void EventLoop::RemoveFd(int fd) {
  const auto found = id_of_fd_.find(fd);
  if (found == id_of_fd_.end()) return;
  registrations_.erase(found->second);
  id_of_fd_.erase(found);
  // Fails only for a descriptor that was closed before, which epoll has forgotten by itself.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::AddTimer(MonotonicTime deadline, std::function<void()> callback) {
  const TimerId id = next_id_++;
  timers_[{deadline, id}] = std::move(callback);
  deadline_of_timer_[id] = deadline;
  return id;
}

bool EventLoop::CancelTimer(TimerId id) {
  const auto found = deadline_of_timer_.find(id);
  if (found == deadline_of_timer_.end()) return false;
  timers_.erase({found->second, id});
  deadline_of_timer_.erase(found);
  return true;
}

Status EventLoop::Post(std::function<void()> fn) {
  bool first;
  {
    MutexLock lock(mutex_);
    if (posted_.size() >= kMaxPosted) {
      return ResourceExhaustedError("event loop: " + std::to_string(kMaxPosted) +
                                    " posted functions wait already");
    }
    first = posted_.empty();
    posted_.push_back(std::move(fn));
  }
  if (first) Wake(wake_.get());
  return OkStatus();
}

void EventLoop::Stop() {
  stop_.store(true);
  Wake(wake_.get());
}

Status EventLoop::Run() {
  while (!stop_.exchange(false)) GODWIT_RETURN_IF_ERROR(RunOnce(MonotonicTime::max()));
  return OkStatus();
}

Status EventLoop::ArmTimer(MonotonicTime deadline) {
  if (!timers_.empty()) deadline = std::min(deadline, timers_.begin()->first.first);
  if (deadline == armed_) return OkStatus();
  itimerspec when{};
  if (deadline != MonotonicTime::max()) {
    const int64_t nanos = std::max<int64_t>(ToNanos(deadline), 1);  // 0 would disarm
    when.it_value = {.tv_sec = nanos / 1'000'000'000, .tv_nsec = nanos % 1'000'000'000};
  }
  if (timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) != 0) {
    return ErrnoError(errno, "timerfd_settime");
  }
  armed_ = deadline;
  return OkStatus();
}

Status EventLoop::RunOnce(MonotonicTime deadline) {
  GODWIT_RETURN_IF_ERROR(ArmTimer(deadline));
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
  if (n < 0) return errno == EINTR ? OkStatus() : ErrnoError(errno, "epoll_wait");
  bool woken = false;
  for (int i = 0; i < n && !stop_.load(); ++i) {
    const uint64_t id = events[i].data.u64;
    if (id == kTimerEvent) {
      Drain(timer_.get());
      armed_ = MonotonicTime::max();  // it has gone off: a one-shot is disarmed
    } else if (id == kWakeEvent) {
      woken = true;
    } else if (const auto found = registrations_.find(id); found != registrations_.end()) {
      // Held here, since the callback may remove itself.
      const std::shared_ptr<Registration> registration = found->second;
      registration->callback(events[i].events);
    }
  }
  RunTimers();
  if (woken) {
    Drain(wake_.get());
    RunPosted();
  }
  return OkStatus();
}

void EventLoop::RunTimers() {
  if (timers_.empty()) return;
  const MonotonicTime now = MonotonicClock::now();
  // Those that are due now; what their callbacks add comes in the next round, so that a timer which
  // sets itself anew can't starve the rest.
  std::vector<std::pair<MonotonicTime, TimerId>> due;
  for (const auto& [key, callback] : timers_) {
    if (key.first > now) break;
    due.push_back(key);
  }
  for (const auto& key : due) {
    if (stop_.load()) return;
    const auto found = timers_.find(key);
    if (found == timers_.end()) continue;  // cancelled by one before
    const std::function<void()> callback = std::move(found->second);
    timers_.erase(found);
    deadline_of_timer_.erase(key.second);
    callback();
  }
}

void EventLoop::RunPosted() {
  size_t left;
  {
    MutexLock lock(mutex_);
    left = posted_.size();
  }
  for (; left > 0 && !stop_.load(); --left) {
    std::function<void()> fn;
    {
      MutexLock lock(mutex_);
      fn = std::move(posted_.front());
      posted_.pop_front();
    }
    fn();
  }
  // Post wakes only for the first in the queue.
  MutexLock lock(mutex_);
  if (!posted_.empty()) Wake(wake_.get());
}

}  // namespace godwit
