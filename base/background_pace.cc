#include "base/background_pace.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>

namespace godwit {
namespace {

// The start of a file of /proc, read anew through the same descriptor.
std::string_view ReadStart(int fd, char* buffer, size_t size) {
  const ssize_t n = pread(fd, buffer, size, 0);
  return {buffer, n > 0 ? static_cast<size_t>(n) : 0};
}

std::optional<int64_t> NumberAfter(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + key.size());
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

BackgroundPace::WaitedFn MachineWaited() {
  // "some avg10=0.00 avg60=0.00 avg300=0.00 total=<us>\n..."
  auto pressure = std::make_shared<UniqueFd>(open("/proc/pressure/cpu", O_RDONLY | O_CLOEXEC));
  char buffer[256];
  if (*pressure && NumberAfter(ReadStart(pressure->get(), buffer, sizeof(buffer)), "total=")) {
    return [pressure]() -> std::optional<Duration> {
      char text[256];
      const auto us = NumberAfter(ReadStart(pressure->get(), text, sizeof(text)), "total=");
      if (!us) return std::nullopt;
      return std::chrono::microseconds(*us);
    };
  }
  // "<ns on a processor> <ns waited> <slices>\n"
  auto stat = std::make_shared<UniqueFd>(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  if (!*stat) return [] { return std::nullopt; };
  return [stat]() -> std::optional<Duration> {
    char text[128];
    const auto ns = NumberAfter(ReadStart(stat->get(), text, sizeof(text)), " ");
    if (!ns) return std::nullopt;
    return Duration(*ns);
  };
}

}  // namespace

Duration RestAfter(Duration worked, Duration waited, Duration elapsed) {
  // Less is chance: a thread that wakes waits some microseconds.
  constexpr int64_t kContendedPercent = 10;
  if (waited * 100 < elapsed * kContendedPercent || elapsed <= Duration::zero()) return Duration{0};
  constexpr Duration kLeast = std::chrono::microseconds(200);
  constexpr Duration kMost = std::chrono::milliseconds(5);
  return std::clamp(worked * 2, kLeast, kMost);
}

BackgroundPace::BackgroundPace(Clock& clock) : BackgroundPace(clock, MachineWaited()) {}

BackgroundPace::BackgroundPace(Clock& clock, WaitedFn waited)
    : clock_(clock),
      waited_(std::move(waited)),
      last_(clock.Monotonic()),
      last_waited_(waited_()) {}

Duration BackgroundPace::EndPiece() {
  const MonotonicTime now = clock_.Monotonic();
  const std::optional<Duration> waited = waited_();
  Duration rest{0};
  const Duration elapsed = now - last_;
  if (waited && last_waited_) rest = RestAfter(elapsed, *waited - *last_waited_, elapsed);
  last_waited_ = waited;
  contended_ = 0.8 * contended_ + (rest > Duration::zero() ? 0.2 : 0);
  // The rest is no part of the next piece.
  last_ = now + rest;
  return rest;
}

void LowerThreadPriority() {
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19));
}

}  // namespace godwit
