#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file_system.h"

namespace godwit {

// A file system in memory that forgets at a crash all that FileSystem does not promise to keep.
// Files are append-only, so what is volatile in one is its tail beyond the last Sync; what is
// volatile in a directory is each change of an entry since its last SyncDir. Relative paths start
// at the root, which always exists. Deterministic: same calls, same seed, same image. Thread-safe.
class MemoryFileSystem : public FileSystem {
 public:
  // A write that would take more than `capacity_bytes` in all files together fails with ENOSPC,
  // after what still fits has been written.
  explicit MemoryFileSystem(uint64_t capacity_bytes = uint64_t{1} << 40,
                            const Clock& clock = RealClock());
  ~MemoryFileSystem() override;

  // A file system as a crash at this moment could leave it, all of it durable. What was not synced:
  //   seed 0  is lost: tails and changes of directories
  //   seed 1  tails are lost, all changes of directories survive (a zero-length file with a name)
  //   seed 2  all changes of directories survive, files have their full length, tails read as zeros
  //   seed 3  everything survives
  //   others  by a generator with that seed: each change of a directory survives or not, alone
  //           (a Rename within one directory as a whole); each tail is lost, cut, zeroed, or kept
  //           in some of its 512-byte sectors only
  std::unique_ptr<MemoryFileSystem> CrashImage(uint64_t seed) const;

  // This file system becomes that image. Files that are open fail every call with UNAVAILABLE.
  void Crash(uint64_t seed);

  void SetCapacity(uint64_t capacity_bytes);

  Result<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) override;
  Result<std::unique_ptr<RandomAccessFile>> OpenRead(const std::string& path) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Unlink(const std::string& path) override;
  Status CreateDir(const std::string& path) override;
  Status RemoveDir(const std::string& path) override;
  Result<std::vector<DirEntry>> List(const std::string& path) override;
  Result<FileInfo> Stat(const std::string& path) override;
  Status SyncDir(const std::string& path) override;
  Result<SpaceInfo> Space(const std::string& path) override;

  // Damages a file for a test, durably: the byte at `offset` is xor'ed with `mask`, or the file is
  // cut to `size` bytes.
  Status CorruptByte(const std::string& path, uint64_t offset, uint8_t mask);
  Status Truncate(const std::string& path, uint64_t size);

  struct State;  // opaque

 private:
  std::shared_ptr<State> state_;  // shared with open files
};

}  // namespace godwit
