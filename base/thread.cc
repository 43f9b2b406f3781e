#include "base/thread.h"

#include <pthread.h>

#include <csignal>
#include <system_error>

#include "base/check.h"

namespace godwit {

Thread::Thread(const std::string& name, std::function<void(StopToken)> run) {
  stop_ = std::stop_source();
  // A new thread inherits the mask; set before it starts, so that no signal slips in. Those that a
  // thread raises by its own fault stay open: blocked, they would kill without a crash report.
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) {
    sigdelset(&blocked, s);
  }
  GODWIT_CHECK(pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
  try {
    thread_ = std::thread([name, run = std::move(run), token = stop_.get_token()] {
      SetCurrentThreadName(name);
      run(token);
    });
  } catch (const std::system_error& e) {
    internal::CheckFailed(__FILE__, __LINE__, "cannot start thread '" + name + "': " + e.what());
  }
  GODWIT_CHECK(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    stop_.request_stop();
    Join();
    stop_ = std::move(other.stop_);
    thread_ = std::move(other.thread_);
  }
  return *this;
}

Thread::~Thread() {
  stop_.request_stop();
  Join();
}

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

void SetCurrentThreadName(const std::string& name) {
  // Fails only for a name that is too long.
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace godwit
