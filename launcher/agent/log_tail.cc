#include "launcher/agent/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/strings.h"
#include "base/unique_fd.h"

namespace godwit {

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
