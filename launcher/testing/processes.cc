#include "launcher/testing/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/process.h"
#include "base/unique_fd.h"

namespace godwit::testing {

bool WaitGone(pid_t pid, MonotonicTime deadline) {
  const Result<UniqueFd> process = OpenPidfd(pid);
  if (!process.ok()) return process.status().code() == StatusCode::kNotFound;
  pollfd ended = {.fd = process->get(), .events = POLLIN, .revents = 0};
  while (MonotonicClock::now() < deadline) {
    if (poll(&ended, 1, 100) > 0) return true;
  }
  return false;
}

bool WaitUntil(const std::function<bool()>& condition, MonotonicTime deadline) {
  while (!condition()) {
    if (MonotonicClock::now() >= deadline) return false;
    const timespec pause = {.tv_sec = 0, .tv_nsec = 2'000'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

std::string ReadText(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t n = 0;
  while (fd && (n = read(fd.get(), buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

}  // namespace godwit::testing
