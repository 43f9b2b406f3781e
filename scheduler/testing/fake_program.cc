#include "scheduler/testing/fake_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/unique_fd.h"

namespace godwit::testing {

Status WriteFakeProgram(const std::string& path) {
  {
    std::ofstream out(path);
    out << R"(#!/bin/sh
all="$*"
while [ $# -gt 0 ]; do
  if [ "$1" = --run-dir ]; then dir=$2; fi
  shift
done
echo $$ > "$dir/pid"
echo "$all" > "$dir/args"
echo "$TMPDIR" > "$dir/tmpdir"
if [ -e "$dir/../stubborn" ]; then trap '' TERM; else trap 'exit 76' TERM; fi
rm -f "$dir/control"
mkfifo "$dir/control"
read word < "$dir/control"
case $word in
  kill) kill -9 $$ ;;
  daemon) setsid sleep 1000 & exit 0 ;;
  *) exit "$word" ;;
esac
)";
    if (!out.flush()) return UnknownError("can't write " + path);
  }
  if (chmod(path.c_str(), 0700) != 0) return ErrnoError(errno, "chmod(" + path + ")");
  return OkStatus();
}

Status Tell(const std::string& run_dir, const std::string& word, MonotonicTime deadline) {
  const std::string path = run_dir + "/control";
  while (true) {
    // Fails until the pipe exists and the script has it open for reading.
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (fd.valid()) {
      const std::string line = word + "\n";
      if (write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
        return OkStatus();
      }
      return ErrnoError(errno, "write(" + path + ")");
    }
    if (errno != ENXIO && errno != ENOENT) return ErrnoError(errno, "open(" + path + ")");
    if (RealClock().Monotonic() >= deadline) return DeadlineExceededError("nobody reads " + path);
    poll(nullptr, 0, 5);
  }
}

}  // namespace godwit::testing
