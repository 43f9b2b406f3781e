#include "base/real_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/unique_fd.h"

namespace godwit {

namespace {

std::string What(std::string_view call, std::string_view path) {
  return std::string(call) + "(" + std::string(path) + ")";
}

Status Errno(std::string_view call, std::string_view path) {
  return ErrnoError(errno, What(call, path));
}

class RealWritableFile final : public WritableFile {
 public:
  RealWritableFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  Status Append(ByteSpan bytes) override {
    GODWIT_RETURN_IF_ERROR(Usable("write"));
    if (offset_ == 0 && bytes.size() >= kDirectFrom) GoDirect();
    const uint64_t appended = bytes.size();
    if (!buffer_) {
      GODWIT_RETURN_IF_ERROR(WriteAll(bytes));
    } else {
      while (!bytes.empty()) {
        const size_t n = std::min(bytes.size(), kDirectBytes - buffered_);
        std::memcpy(buffer_.get() + buffered_, bytes.data(), n);
        buffered_ += n;
        bytes = bytes.subspan(n);
        if (buffered_ < kDirectBytes) break;
        GODWIT_RETURN_IF_ERROR(WriteAll({buffer_.get(), buffered_}));
        buffered_ = 0;
      }
    }
    offset_ += appended;
    return OkStatus();
  }

  Status Sync() override {
    GODWIT_RETURN_IF_ERROR(Usable("fsync"));
    GODWIT_RETURN_IF_ERROR(EndDirect());
    while (fsync(fd_.get()) != 0) {
      if (errno != EINTR) return broken_ = Errno("fsync", path_);
    }
    return OkStatus();
  }

  Status Close() override {
    if (!fd_) return OkStatus();
    const Status flushed = broken_.ok() ? EndDirect() : broken_;
    // The descriptor is gone whatever close says (on Linux), so it's never called twice.
    if (close(fd_.Release()) != 0 && errno != EINTR) return Errno("close", path_);
    return flushed;
  }

  uint64_t offset() const override { return offset_; }

 private:
  Status Usable(std::string_view call) const {
    GODWIT_RETURN_IF_ERROR(broken_);
    if (!fd_) return ErrnoError(EBADF, What(call, path_));
    return OkStatus();
  }

  // A large file goes past the page cache, in aligned pieces: half the time of a buffered write and
  // its fsync (measured on ext4 on a virtual disk: 1.3 against 0.6 GB/s), and next to no processor
  // time, which a training loop would miss. Where the file system refuses, it is written as usual.
  static constexpr size_t kDirectFrom = 64 * 1024;  // of the first Append
  static constexpr size_t kDirectBytes = 1 << 20;
  static constexpr size_t kDirectAlign = 4096;

  void GoDirect() {
    const int flags = fcntl(fd_.get(), F_GETFL);
    if (flags < 0 || fcntl(fd_.get(), F_SETFL, flags | O_DIRECT) != 0) return;
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectAlign, kDirectBytes)));
    if (!buffer_) LeaveDirect();
  }
  void LeaveDirect() {
    if (const int flags = fcntl(fd_.get(), F_GETFL); flags >= 0) {
      static_cast<void>(fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT));
    }
  }
  // What is buffered is no whole piece; from here on the file is written as usual.
  Status EndDirect() {
    if (!buffer_) return OkStatus();
    LeaveDirect();
    const Status written = WriteAll({buffer_.get(), buffered_});
    buffer_.reset();
    buffered_ = 0;
    return written;
  }

  Status WriteAll(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ssize_t n = write(fd_.get(), bytes.data(), bytes.size());
      if (n < 0) {
        if (errno == EINTR) continue;
        // Some file systems take the flag and not the write; or a short write left it unaligned.
        const int flags = errno == EINVAL ? fcntl(fd_.get(), F_GETFL) : -1;
        if (flags >= 0 && (flags & O_DIRECT)) {
          LeaveDirect();
          continue;
        }
        return broken_ = Errno("write", path_);
      }
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return OkStatus();
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  const std::string path_;
  UniqueFd fd_;
  uint64_t offset_ = 0;                      // what is buffered included
  std::unique_ptr<std::byte, Free> buffer_;  // of kDirectBytes while writing directly
  size_t buffered_ = 0;
  Status broken_;
};

class RealRandomAccessFile final : public RandomAccessFile {
 public:
  RealRandomAccessFile(std::string path, UniqueFd fd, uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  Result<size_t> ReadAt(uint64_t offset, MutableByteSpan out) const override {
    size_t done = 0;
    while (done < out.size()) {
      if (offset + done > static_cast<uint64_t>(INT64_MAX)) break;  // no file is that long
      const ssize_t n =
          pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0) {
        if (errno == EINTR) continue;
        return Errno("read", path_);
      }
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

  uint64_t size() const override { return size_; }

 private:
  const std::string path_;
  const UniqueFd fd_;
  const uint64_t size_;
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) override {
    UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd) return Errno("create", path);
    return std::unique_ptr<WritableFile>(std::make_unique<RealWritableFile>(path, std::move(fd)));
  }

  Result<std::unique_ptr<RandomAccessFile>> OpenRead(const std::string& path) override {
    // O_NONBLOCK: a FIFO somebody has put there must not make us wait for a writer.
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) return Errno("open", path);
    struct stat st;
    if (fstat(fd.get(), &st) != 0) return Errno("stat", path);
    if (S_ISDIR(st.st_mode)) return ErrnoError(EISDIR, What("open", path));
    return std::unique_ptr<RandomAccessFile>(std::make_unique<RealRandomAccessFile>(
        path, std::move(fd), static_cast<uint64_t>(st.st_size)));
  }

  Status Link(const std::string& from, const std::string& to) override {
    if (link(from.c_str(), to.c_str()) != 0) return Errno("link", from + ", " + to);
    return OkStatus();
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) {
      // rename(2) may say EEXIST for a directory that is not empty.
      if (errno == EEXIST) errno = ENOTEMPTY;
      return Errno("rename", from + ", " + to);
    }
    return OkStatus();
  }

  Status Unlink(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return Errno("unlink", path);
    return OkStatus();
  }

  Status CreateDir(const std::string& path) override {
    if (mkdir(path.c_str(), 0755) != 0) return Errno("mkdir", path);
    return OkStatus();
  }

  Status RemoveDir(const std::string& path) override {
    if (rmdir(path.c_str()) != 0) {
      if (errno == EEXIST) errno = ENOTEMPTY;
      return Errno("rmdir", path);
    }
    return OkStatus();
  }

  Result<std::vector<DirEntry>> List(const std::string& path) override {
    DIR* const dir = opendir(path.c_str());
    if (dir == nullptr) return Errno("list", path);
    const std::unique_ptr<DIR, int (*)(DIR*)> closer(dir, closedir);
    std::vector<DirEntry> entries;
    while (true) {
      errno = 0;
      const dirent* const entry = readdir(dir);
      if (entry == nullptr) {
        if (errno != 0) return Errno("list", path);
        break;
      }
      std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat st;
      if (fstatat(dirfd(dir), entry->d_name, &st, 0) != 0) {
        if (errno == ENOENT) continue;  // removed meanwhile, or a link to nothing
        return Errno("stat", JoinPath(path, name));
      }
      const bool is_dir = S_ISDIR(st.st_mode);
      entries.push_back({std::move(name), is_dir, is_dir ? 0 : static_cast<uint64_t>(st.st_size)});
    }
    std::sort(entries.begin(), entries.end(),
              [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
    return entries;
  }

  Result<FileInfo> Stat(const std::string& path) override {
    struct stat st;
    if (stat(path.c_str(), &st) != 0) return Errno("stat", path);
    const bool is_dir = S_ISDIR(st.st_mode);
    return FileInfo{.is_dir = is_dir,
                    .size = is_dir ? 0 : static_cast<uint64_t>(st.st_size),
                    .modified_unix = std::chrono::seconds(st.st_mtim.tv_sec) +
                                     std::chrono::nanoseconds(st.st_mtim.tv_nsec)};
  }

  Status SyncDir(const std::string& path) override {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return Errno("open directory", path);
    while (fsync(fd.get()) != 0) {
      if (errno != EINTR) return Errno("fsync directory", path);
    }
    return OkStatus();
  }

  Result<SpaceInfo> Space(const std::string& path) override {
    struct statvfs st;
    while (statvfs(path.c_str(), &st) != 0) {
      if (errno != EINTR) return Errno("statvfs", path);
    }
    return SpaceInfo{.free_bytes = uint64_t{st.f_bavail} * st.f_frsize,
                     .total_bytes = uint64_t{st.f_blocks} * st.f_frsize};
  }
};

}  // namespace

FileSystem& RealFileSystem() {
  static PosixFileSystem fs;
  return fs;
}

}  // namespace godwit
