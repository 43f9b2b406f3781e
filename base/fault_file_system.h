#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace godwit {

enum class FileOp {
  kCreateExclusive,
  kOpenRead,
  kLink,
  kRename,
  kUnlink,
  kCreateDir,
  kRemoveDir,
  kList,
  kStat,
  kSyncDir,
  kSpace,
  kAppend,
  kSync,
  kClose,
  kReadAt,
};
const char* FileOpName(FileOp op);

// One call that reached a FaultFileSystem.
struct FileCall {
  uint64_t number = 0;  // 1 for the first
  FileOp op{};
  std::string path;  // of Link and Rename: the new name
};

// Passes calls on to another file system, counts them, and makes some go wrong. To find every
// crash point of an operation: run it once and read calls(); then for each n run it again on a
// fresh MemoryFileSystem with CrashAt(n), and look at its CrashImage. Thread-safe; calls on files
// count too.
class FaultFileSystem : public FileSystem {
 public:
  // Borrows `target`, which outlives this and all files opened through it.
  explicit FaultFileSystem(FileSystem& target);
  ~FaultFileSystem() override;

  // Calls so far, those that failed included.
  uint64_t calls() const;
  std::vector<FileCall> call_log() const;

  // The n-th call (counted from the construction on, 1 is the first) fails with this errno value
  // and has no effect.
  void FailAt(uint64_t n, int error);
  // The n-th call, if it's an Append, writes the first `bytes` bytes and then fails with `error`;
  // if not, fails as with FailAt.
  void ShortWriteAt(uint64_t n, uint64_t bytes, int error);
  // The n-th call has no effect (an Append writes its first half) and it and all later ones fail
  // with a status for which IsSimulatedCrash is true.
  void CrashAt(uint64_t n);
  // Asked for each call that no rule above names: an errno value fails it, 0 lets it through. Runs
  // on the caller's thread, without a lock held. An empty function takes it away.
  void SetHook(std::function<int(const FileCall&)> hook);

  bool crashed() const;
  static bool IsSimulatedCrash(const Status& status);

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

  struct State;  // opaque

 private:
  FileSystem& target_;
  std::shared_ptr<State> state_;  // shared with open files
};

}  // namespace godwit
