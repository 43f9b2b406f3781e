#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace godwit {

struct SharedMemoryOptions {
  // Takes all pages now, charged to the caller's cgroup: a lack of memory (more than
  // AvailableMemoryBytes) is RESOURCE_EXHAUSTED here instead of a kill later.
  bool allocate = true;
  // Nobody can resize it, for ever (F_SEAL_GROW, SHRINK, SEAL).
  bool seal = true;
};

// Anonymous memory in a descriptor (memfd_create), zeroed, close-on-exec. `name` shows in
// /proc/<pid>/fd.
Result<UniqueFd> CreateSharedMemory(const std::string& name, uint64_t bytes,
                                    const SharedMemoryOptions& options = {});

// A second descriptor of the same memory that can't be mapped for writing. (Guards against
// mistakes: a process of the same user can open it for writing again through /proc.)
Result<UniqueFd> ReopenReadOnly(int memory_fd);

// How much memory this process can still get: the least of the host's MemAvailable and what the
// limits of its cgroup (v2) and their ancestors leave.
Result<uint64_t> AvailableMemoryBytes();

enum class Protection { kRead, kReadWrite };

struct MapOptions {
  Protection protection = Protection::kReadWrite;
  // Children that fork without exec don't have the mapping (MADV_DONTFORK).
  bool dont_fork = true;
  // Refuses memory that could shrink under us (FAILED_PRECONDITION): reading past the new end is
  // a SIGBUS, so whoever maps what a peer has sent wants this.
  bool require_sealed = true;
};

// A mapping of a whole shared memory object, unmapped when destroyed. The descriptor isn't needed
// any more once it is mapped.
class SharedMapping {
 public:
  // `expected_bytes` is the size that the object must have, 0 for any; else INVALID_ARGUMENT.
  static Result<SharedMapping> Map(int memory_fd, uint64_t expected_bytes,
                                   const MapOptions& options = {});
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  // Page-aligned. Another process may write to it at any time: copy, then check.
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  MutableByteSpan bytes() const { return {data_, size_}; }
  bool valid() const { return data_ != nullptr; }

 private:
  SharedMapping(std::byte* data, uint64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace godwit
