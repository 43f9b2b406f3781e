#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/file_system.h"
#include "base/strings.h"

namespace godwit {

namespace {

// Files of /proc and of cgroups: their size isn't known before they are read.
Result<std::string> ReadPseudoFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoError(errno, "open(" + path + ")");
  std::string text(64 * 1024, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, "read(" + path + ")");
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  text.resize(size);
  return text;
}

// "MemAvailable:   123 kB" -> 123 * 1024.
std::optional<uint64_t> MemAvailable(std::string_view meminfo) {
  for (const std::string& line : Split(meminfo, '\n')) {
    if (!line.starts_with("MemAvailable:")) continue;
    std::string_view number = Trim(std::string_view(line).substr(13));
    number = number.substr(0, number.find(' '));
    const Result<uint64_t> kib = ParseUint64(number);
    if (kib.ok()) return *kib * 1024;
  }
  return std::nullopt;
}

// What the limits of our cgroup (v2) and of those above it leave; nullopt where there is none.
std::optional<uint64_t> CgroupAvailable() {
  const Result<std::string> membership = ReadPseudoFile("/proc/self/cgroup");
  if (!membership.ok()) return std::nullopt;
  std::optional<uint64_t> least;
  for (const std::string& line : Split(*membership, '\n')) {
    if (!line.starts_with("0::/")) continue;
    std::string group = line.substr(3);
    while (true) {
      const std::string dir = "/sys/fs/cgroup" + group;
      const Result<std::string> max = ReadPseudoFile(JoinPath(dir, "memory.max"));
      const Result<std::string> current = ReadPseudoFile(JoinPath(dir, "memory.current"));
      if (max.ok() && current.ok()) {
        const Result<uint64_t> limit = ParseUint64(Trim(*max));  // "max": no limit here
        const Result<uint64_t> used = ParseUint64(Trim(*current));
        if (limit.ok() && used.ok()) {
          const uint64_t left = *limit - std::min(*limit, *used);
          least = std::min(left, least.value_or(left));
        }
      }
      if (group == "/") break;
      group = DirName(group);
    }
  }
  return least;
}

Status Allocate(int fd, const std::string& name, uint64_t bytes) {
  // In pieces, since a signal makes the kernel give back all that the interrupted call has taken.
  constexpr uint64_t kPiece = 64ull << 20;
  for (uint64_t offset = 0; offset < bytes;) {
    const uint64_t n = std::min(kPiece, bytes - offset);
    if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(n)) == 0) {
      offset += n;
    } else if (errno != EINTR) {
      return ErrnoError(errno,
                        "fallocate(shared memory '" + name + "', " + HumanBytes(bytes) + ")");
    }
  }
  return OkStatus();
}

}  // namespace

Result<uint64_t> AvailableMemoryBytes() {
  GODWIT_ASSIGN_OR_RETURN(const std::string meminfo, ReadPseudoFile("/proc/meminfo"));
  const std::optional<uint64_t> host = MemAvailable(meminfo);
  if (!host) return NotFoundError("/proc/meminfo: no line 'MemAvailable: <n> kB'");
  return std::min(*host, CgroupAvailable().value_or(*host));
}

Result<UniqueFd> CreateSharedMemory(const std::string& name, uint64_t bytes,
                                    const SharedMemoryOptions& options) {
  if (bytes == 0 || bytes > static_cast<uint64_t>(INT64_MAX)) {
    return InvalidArgumentError("shared memory '" + name + "': got " + std::to_string(bytes) +
                                " bytes, allowed: 1 to 2^63 - 1");
  }
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoError(errno, "memfd_create(" + name + ")");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoError(errno, "ftruncate(shared memory '" + name + "', " + HumanBytes(bytes) + ")");
  }
  if (options.allocate) {
    // Asked first: the kernel would end some process instead of refusing.
    const Result<uint64_t> available = AvailableMemoryBytes();
    if (available.ok() && bytes > *available) {
      return ResourceExhaustedError("shared memory '" + name + "': " + HumanBytes(bytes) +
                                    " wanted, " + HumanBytes(*available) + " available");
    }
    GODWIT_RETURN_IF_ERROR(Allocate(fd.get(), name, bytes));
  }
  if (options.seal &&
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return ErrnoError(errno, "F_ADD_SEALS(shared memory '" + name + "')");
  }
  return fd;
}

Result<UniqueFd> ReopenReadOnly(int memory_fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(memory_fd);
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoError(errno, "open(" + path + ")");
  return fd;
}

Result<SharedMapping> SharedMapping::Map(int memory_fd, uint64_t expected_bytes,
                                         const MapOptions& options) {
  const std::string what = "shared memory (descriptor " + std::to_string(memory_fd) + ")";
  // The seal first: a size read before it could still shrink.
  if (options.require_sealed) {
    const int seals = fcntl(memory_fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      return FailedPreconditionError(what + ": not sealed against shrinking");
    }
  }
  struct stat st;
  if (fstat(memory_fd, &st) != 0) return ErrnoError(errno, "fstat(" + what + ")");
  const uint64_t size = static_cast<uint64_t>(st.st_size);
  if (size == 0 || (expected_bytes != 0 && size != expected_bytes)) {
    return InvalidArgumentError(
        what + ": got " + std::to_string(size) + " bytes, allowed: " +
        (expected_bytes != 0 ? std::to_string(expected_bytes) : std::string("1 or more")));
  }
  const int protection =
      options.protection == Protection::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const data = mmap(nullptr, size, protection, MAP_SHARED, memory_fd, 0);
  if (data == MAP_FAILED) return ErrnoError(errno, "mmap(" + what + ")");
  SharedMapping mapping(static_cast<std::byte*>(data), size);
  if (options.dont_fork && madvise(data, size, MADV_DONTFORK) != 0) {
    return ErrnoError(errno, "madvise(" + what + ", MADV_DONTFORK)");
  }
  return mapping;
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace godwit
