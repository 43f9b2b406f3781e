#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string>

#include "base/clock.h"
#include "base/strings.h"

namespace godwit {

namespace {
constexpr std::string_view kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR", "OFF"};
std::atomic<int> log_fd{STDERR_FILENO};

std::string& Component() {
  static std::string component;
  return component;
}

LogLevel LevelFromEnvironment() {
  const char* value = std::getenv("GODWIT_LOG");
  if (value == nullptr || *value == '\0') return LogLevel::kInfo;
  const std::string_view text(value);
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  if (text == "off") return LogLevel::kOff;
  LogLine(
      LogLevel::kWarning,
      fmt::format("GODWIT_LOG: got '{}', allowed: debug, info, warning, error, off; info is used",
                  text));
  return LogLevel::kInfo;
}

std::atomic<LogLevel>& Level() {
  static std::atomic<LogLevel> level{LevelFromEnvironment()};
  return level;
}
}  // namespace

LogLevel log_level() { return Level().load(std::memory_order_relaxed); }
void SetLogLevel(LogLevel level) { Level().store(level, std::memory_order_relaxed); }
void SetLogComponent(std::string_view component) { Component() = component; }
void SetLogFd(int fd) { log_fd.store(fd, std::memory_order_relaxed); }

void LogLine(LogLevel level, std::string_view text) {
  const Duration now = RealClock().WallUnix();
  const time_t seconds = now.count() / 1'000'000'000;
  tm utc{};
  gmtime_r(&seconds, &utc);
  char time_text[32];
  strftime(time_text, sizeof(time_text), "%Y-%m-%dT%H:%M:%S", &utc);
  std::string line = fmt::format("{}.{:06}Z {} ", time_text, now.count() % 1'000'000'000 / 1000,
                                 kNames[static_cast<int>(level)]);
  if (!Component().empty()) line += fmt::format("[{}] ", Component());
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  line += '\n';
  while (write(log_fd.load(std::memory_order_relaxed), line.data(), line.size()) < 0 &&
         errno == EINTR) {
  }
}

}  // namespace godwit
