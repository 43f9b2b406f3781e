#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace godwit {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Lines below this level are dropped before they are formatted. From GODWIT_LOG
// (debug|info|warning|error|off) when the process starts; info without it.
LogLevel log_level();
void SetLogLevel(LogLevel level);

// The word in brackets of each line ("agent", "master 3"); empty at first. Called while the process
// has one thread.
void SetLogComponent(std::string_view component);
// Where lines go: a descriptor that stays open; 2 at first.
void SetLogFd(int fd);

// One line "2026-12-01T03:16:24.123456Z INFO [agent] text", in one write(2), so that lines of
// several processes on one pipe stay whole up to PIPE_BUF. Newlines in the text become "\n". A line
// that can't be written is dropped: a log must not stop its process. Thread-safe.
void LogLine(LogLevel level, std::string_view text);

template <typename... Args>
void LogAt(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level >= log_level()) LogLine(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace godwit
