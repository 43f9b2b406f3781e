#include "scheduler/executor/process_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/process.h"
#include "base/strings.h"
#include "base/unique_fd.h"

namespace godwit {
namespace {

// Files of /proc have no size; an unreadable one is empty.
std::string ReadProc(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd.valid()) return text;
  char buffer[16384];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

Result<std::vector<TaggedProcess>> FindTagged(const std::string& name, const std::string& value) {
  const std::string entry = name + "=" + value;
  std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (proc == nullptr) return ErrnoError(errno, "opendir(/proc)");
  std::vector<TaggedProcess> found;
  while (true) {
    errno = 0;
    const dirent* each = readdir(proc.get());
    if (each == nullptr) {
      if (errno != 0) return ErrnoError(errno, "readdir(/proc)");
      return found;
    }
    const Result<uint64_t> pid = ParseUint64(each->d_name);
    if (!pid.ok()) continue;
    const std::string dir = std::string("/proc/") + each->d_name;
    bool tagged = false;
    for (const std::string& variable : Split(ReadProc(dir + "/environ"), '\0')) {
      tagged |= variable == entry;
    }
    if (!tagged) continue;
    const Result<uint64_t> start_time = ProcessStartTime(static_cast<pid_t>(*pid));
    if (!start_time.ok()) continue;
    std::vector<std::string> argv = Split(ReadProc(dir + "/cmdline"), '\0');
    if (!argv.empty() && argv.back().empty()) argv.pop_back();
    found.push_back({static_cast<pid_t>(*pid), *start_time, std::move(argv)});
  }
}

}  // namespace godwit
