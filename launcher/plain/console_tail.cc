#include "launcher/plain/console_tail.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <limits>
#include <memory>
#include <utility>

#include "base/file_system.h"
#include "base/log.h"
#include "base/strings.h"

namespace godwit {

namespace {

constexpr size_t kReadBytes = 64 << 10;
// Only for file systems whose changes inotify does not tell.
constexpr int kLookAgainMs = 500;

// "e12-r3.out" -> rank "3", false.
bool ParseName(const std::string& name, std::string* rank, bool* is_err) {
  const bool out = name.ends_with(".out");
  *is_err = name.ends_with(".err");
  if (name.empty() || name[0] != 'e' || (!out && !*is_err)) return false;
  const size_t r = name.find("-r");
  if (r == std::string::npos) return false;
  *rank = name.substr(r + 2, name.size() - r - 6);
  return ParseUint64(name.substr(1, r - 1)).ok() && ParseUint64(*rank).ok();
}

}  // namespace

Result<std::unique_ptr<ConsoleTail>> ConsoleTail::Start(const Options& options) {
  UniqueFd watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!watch) return ErrnoError(errno, "inotify_init1");
  if (inotify_add_watch(watch.get(), options.directory.c_str(), IN_CREATE | IN_MODIFY) < 0) {
    return ErrnoError(errno, "inotify_add_watch(" + options.directory + ")");
  }
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return ErrnoError(errno, "eventfd");
  std::unique_ptr<ConsoleTail> tail(new ConsoleTail(options, std::move(watch), std::move(wake)));
  GODWIT_RETURN_IF_ERROR(tail->FindFiles(/*from_end=*/true));
  ConsoleTail* const self = tail.get();
  self->thread_ = Thread("gw-console", [self](StopToken) { self->Run(); });
  return tail;
}

ConsoleTail::ConsoleTail(const Options& options, UniqueFd watch, UniqueFd wake)
    : options_(options),
      watch_(std::move(watch)),
      wake_(std::move(wake)),
      deadline_ns_(std::numeric_limits<int64_t>::max()) {}

ConsoleTail::~ConsoleTail() { Finish(MonotonicClock::now()); }

void ConsoleTail::Finish(MonotonicTime deadline) {
  deadline_ns_ = ToNanos(deadline);
  finishing_ = true;
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0) LogError("eventfd: {}", errno);
  if (thread_.joinable()) thread_.Join();
}

void ConsoleTail::Run() {
  bool last = false;
  while (!last) {
    pollfd fds[2] = {{.fd = watch_.get(), .events = POLLIN, .revents = 0},
                     {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    if (poll(fds, 2, kLookAgainMs) < 0 && errno != EINTR) {
      LogError("console: poll: {}", errno);
      return;
    }
    // Which files have changed is not worth knowing: there are two per worker.
    char events[4096];
    while (read(watch_.get(), events, sizeof(events)) > 0) {
    }
    last = finishing_;  // read before the files are
    if (const Status s = FindFiles(/*from_end=*/false); !s.ok()) LogWarning("{}", s.message());
    CopyAll(last);
  }
}

Status ConsoleTail::FindFiles(bool from_end) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(options_.directory.c_str()), closedir);
  if (dir == nullptr) return ErrnoError(errno, "opendir(" + options_.directory + ")");
  while (const dirent* entry = readdir(dir.get())) {
    const std::string name = entry->d_name;
    File file;
    std::string rank;
    if (!ParseName(name, &rank, &file.is_err) || files_.contains(name)) continue;
    const std::string path = JoinPath(options_.directory, name);
    file.fd.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
    struct stat info {};
    if (!file.fd || fstat(file.fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (from_end) file.offset = static_cast<uint64_t>(info.st_size);
    if (options_.prefix) file.prefix = "[" + rank + "] ";
    files_[name] = std::move(file);
  }
  return OkStatus();
}

void ConsoleTail::CopyAll(bool at_end) {
  // In turns, so that one chatty worker does not hide the others.
  bool more = true;
  while (more) {
    more = false;
    for (auto& [name, file] : files_) more |= CopySome(&file, /*at_end=*/false);
  }
  if (!at_end) return;
  for (auto& [name, file] : files_) CopySome(&file, /*at_end=*/true);
}

bool ConsoleTail::CopySome(File* file, bool at_end) {
  char buffer[kReadBytes];
  ssize_t n;
  while ((n = pread(file->fd.get(), buffer, sizeof(buffer), static_cast<off_t>(file->offset))) <
             0 &&
         errno == EINTR) {
  }
  if (n > 0) {
    file->offset += static_cast<uint64_t>(n);
    file->partial.append(buffer, static_cast<size_t>(n));
  }
  std::string text;
  size_t begin = 0;
  for (size_t end; (end = file->partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
    text += file->prefix;
    text.append(file->partial, begin, end + 1 - begin);
  }
  file->partial.erase(0, begin);
  if (!file->partial.empty() && (at_end || file->partial.size() > kMaxLineBytes)) {
    text += file->prefix + file->partial + "\n";
    file->partial.clear();
  }
  if (file->is_err) {
    Write(options_.err_fd, &err_broken_, text);
  } else {
    Write(options_.out_fd, &out_broken_, text);
  }
  return n > 0;
}

void ConsoleTail::Write(int fd, bool* broken, std::string_view text) {
  while (!text.empty() && !*broken) {
    // Asked first, so that a console that takes nothing does not hold us past the deadline. A pipe
    // that is ready takes PIPE_BUF bytes without blocking.
    pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
    const int found = poll(&ready, 1, kLookAgainMs);
    if (found <= 0) {
      if (finishing_ && ToNanos(MonotonicClock::now()) >= deadline_ns_) *broken = true;
      continue;
    }
    const ssize_t n = write(fd, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR && errno != EAGAIN) {
      // Nobody reads any more (EPIPE, EIO): the files still have it all.
      *broken = true;
    }
  }
}

}  // namespace godwit
