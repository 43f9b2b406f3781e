#include "launcher/agent/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/unique_fd.h"

namespace godwit {

namespace {

// Length of the valid UTF-8 sequence at the start of text[at...]; 0: none (RFC 3629).
size_t SequenceLength(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 && first < 0xf5   ? 4
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xc2 && first < 0xe0 ? 2
                                                        : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string ValidUtf8(std::string text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = SequenceLength(text, at);
    if (length == 0) text[at] = '?';
    at += std::max<size_t>(length, 1);
  }
  return text;
}

std::string LogTail(const std::string& path, size_t max_bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0 || info.st_size <= 0) return "";
  const auto size = static_cast<size_t>(info.st_size);
  // One byte more, to see whether the tail begins with a line.
  const size_t wanted = std::min(size, max_bytes + 1);
  std::string text(wanted, '\0');
  size_t got = 0;
  while (got < wanted) {
    const ssize_t n =
        pread(fd.get(), text.data() + got, wanted - got, static_cast<off_t>(size - wanted + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  if (wanted > max_bytes) {
    const size_t line = text.find('\n');
    const bool only_line = line == std::string::npos || line + 1 == text.size();
    text.erase(0, only_line ? 1 : line + 1);
  }
  return ValidUtf8(std::move(text));
}

}  // namespace godwit
