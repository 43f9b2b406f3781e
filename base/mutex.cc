#include "base/mutex.h"

#include <cerrno>
#include <ctime>

#include "base/check.h"

namespace godwit {

CondVar::CondVar() {
  pthread_condattr_t attributes;
  GODWIT_CHECK(pthread_condattr_init(&attributes) == 0);
  GODWIT_CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
  GODWIT_CHECK(pthread_cond_init(&cond_, &attributes) == 0);
  pthread_condattr_destroy(&attributes);
}

CondVar::~CondVar() { pthread_cond_destroy(&cond_); }

bool CondVar::WaitUntil(Mutex& mutex, MonotonicTime deadline) {
  const int64_t nanos = ToNanos(deadline) > 0 ? ToNanos(deadline) : 0;
  const timespec until = {.tv_sec = nanos / 1'000'000'000, .tv_nsec = nanos % 1'000'000'000};
  const int error = pthread_cond_timedwait(&cond_, mutex.mutex_.native_handle(), &until);
  GODWIT_CHECK(error == 0 || error == ETIMEDOUT);
  return error == 0;
}

void CondVar::Wait(Mutex& mutex) {
  GODWIT_CHECK(pthread_cond_wait(&cond_, mutex.mutex_.native_handle()) == 0);
}

void CondVar::NotifyOne() { pthread_cond_signal(&cond_); }
void CondVar::NotifyAll() { pthread_cond_broadcast(&cond_); }

}  // namespace godwit
