#include "launcher/run_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <memory>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/temp_dir.h"

namespace godwit {

namespace {

constexpr const char* kLock = "agent.lock";
constexpr const char* kKeep = "keep";
constexpr Duration kLockLimit = std::chrono::seconds(5);
constexpr Duration kLockLook = std::chrono::milliseconds(20);
constexpr size_t kMaxRemoved = 64;
constexpr time_t kNeverLockedSeconds = 3600;

}  // namespace

Result<UniqueFd> LockRunDir(const std::string& run_dir) {
  const std::string path = JoinPath(run_dir, kLock);
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return ErrnoError(errno, "open(" + path + ")");
  const MonotonicTime limit = SaturatingAdd(MonotonicClock::now(), kLockLimit);
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoError(errno, "flock(" + path + ")");
    if (MonotonicClock::now() >= limit) {
      char pid[32] = {};
      const ssize_t n = pread(fd.get(), pid, sizeof(pid) - 1, 0);
      return FailedPreconditionError("run directory " + run_dir +
                                     ": another agent uses it: process " +
                                     (n > 0 ? std::string(Trim(pid)) : std::string("unknown")));
    }
    const timespec pause = {.tv_sec = 0, .tv_nsec = kLockLook.count()};
    nanosleep(&pause, nullptr);
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(fd.get(), 0) != 0 ||
      pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrnoError(errno, "write(" + path + ")");
  }
  return fd;
}

Status KeepRunDir(const std::string& run_dir) {
  const std::string path = JoinPath(run_dir, kKeep);
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  return fd ? OkStatus() : ErrnoError(errno, "open(" + path + ")");
}

Result<bool> RemoveIfAbandoned(const std::string& run_dir) {
  struct stat info {};
  if (lstat(run_dir.c_str(), &info) != 0) {
    if (errno == ENOENT) return true;
    return ErrnoError(errno, "lstat(" + run_dir + ")");
  }
  // In a folder that all may write to, only what is ours is what it says it is.
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return false;
  if (access(JoinPath(run_dir, kKeep).c_str(), F_OK) == 0) return false;
  const std::string path = JoinPath(run_dir, kLock);
  const UniqueFd lock(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!lock) {
    if (errno == ENOENT) return false;
    return ErrnoError(errno, "open(" + path + ")");
  }
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) return ErrnoError(errno, "flock(" + path + ")");
  }
  // An owner writes its number once it has the lock; one that is about to take it hasn't.
  if (fstat(lock.get(), &info) != 0) return ErrnoError(errno, "fstat(" + path + ")");
  if (info.st_size == 0) return false;
  GODWIT_RETURN_IF_ERROR(RemoveAll(run_dir));
  return true;
}

void RemoveAbandonedIn(const std::string& root, const std::string& prefix) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(root.c_str()), closedir);
  if (dir == nullptr) return;
  size_t removed_dirs = 0;
  while (const dirent* entry = readdir(dir.get())) {
    if (removed_dirs == kMaxRemoved) return;
    const std::string name = entry->d_name;
    if (!name.starts_with(prefix)) continue;
    const std::string path = JoinPath(root, name);
    const Result<bool> removed = RemoveIfAbandoned(path);
    if (!removed.ok()) LogWarning("{}", removed.status().message());
    if (removed.ok() && *removed) ++removed_dirs;
    struct stat info {};
    if (removed.ok() && !*removed && lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
        time(nullptr) - info.st_mtime > kNeverLockedSeconds) {
      // Its owner died before it locked it. Fails, as it should, for any that holds something.
      rmdir(path.c_str());
    }
  }
}

}  // namespace godwit
