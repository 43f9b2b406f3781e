#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

namespace godwit {

// A file being written at its end. Not thread-safe. Destroying it without Close() closes the
// descriptor and tells nobody about errors: only for files that are given up.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends all of `bytes`, or fails; after a failure the file may hold any part of them and of
  // what was appended since the last Sync (a large file is written in larger pieces), and Append
  // and Sync fail for ever (after a failed fsync the kernel may have dropped the pages, so a second
  // one that succeeds means nothing).
  virtual Status Append(ByteSpan bytes) = 0;
  // Makes the bytes appended so far survive a crash (fsync). The file's name is another matter: see
  // FileSystem::SyncDir.
  virtual Status Sync() = 0;
  // Closes without syncing. No other call may follow, except a Close, which does nothing.
  virtual Status Close() = 0;
  // Bytes appended successfully so far.
  virtual uint64_t offset() const = 0;
};

// Thread-safe.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  // Fills `out` from `offset` on; a count below out.size() means that the file ends there.
  virtual Result<size_t> ReadAt(uint64_t offset, MutableByteSpan out) const = 0;
  // Of the file when it was opened.
  virtual uint64_t size() const = 0;

  // Fills all of `out`, or DATA_LOSS when the file ends before.
  Status ReadFully(uint64_t offset, MutableByteSpan out) const;
};

struct DirEntry {
  std::string name;  // without the directory
  bool is_dir = false;
  uint64_t size = 0;  // bytes; 0 for a directory
  friend bool operator==(const DirEntry&, const DirEntry&) = default;
};

struct FileInfo {
  bool is_dir = false;
  uint64_t size = 0;  // bytes; 0 for a directory
  Duration modified_unix{0};
};

struct SpaceInfo {
  uint64_t free_bytes = 0;  // for an unprivileged user
  uint64_t total_bytes = 0;
};

// The seam to a POSIX file system. Thread-safe; every call may block on I/O. All errors name the
// call and the path, with ErrnoError's codes (a missing file is NOT_FOUND, a taken name is
// ALREADY_EXISTS, a full disk is RESOURCE_EXHAUSTED).
//
// Durability: bytes survive a crash once WritableFile::Sync returned; a name (created, linked,
// renamed or removed) once SyncDir of its directory returned. Nothing else is promised: what was
// not synced may be there, not there, or partly there, in any order, except that one Rename within
// a directory is atomic.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A new empty file (O_CREAT|O_EXCL, mode 0644 before umask); ALREADY_EXISTS when the name is
  // taken: of several creators exactly one succeeds.
  virtual Result<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) = 0;
  // A directory is FAILED_PRECONDITION.
  virtual Result<std::unique_ptr<RandomAccessFile>> OpenRead(const std::string& path) = 0;
  // A second name for a file; ALREADY_EXISTS when `to` is taken, atomically.
  virtual Status Link(const std::string& from, const std::string& to) = 0;
  // Replaces a file at `to`, as rename(2) does.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status Unlink(const std::string& path) = 0;
  virtual Status CreateDir(const std::string& path) = 0;
  // Only when empty, else FAILED_PRECONDITION.
  virtual Status RemoveDir(const std::string& path) = 0;
  // Sorted by name, without "." and "..". An entry that vanishes meanwhile may be left out.
  virtual Result<std::vector<DirEntry>> List(const std::string& path) = 0;
  // Follows symbolic links.
  virtual Result<FileInfo> Stat(const std::string& path) = 0;
  virtual Status SyncDir(const std::string& path) = 0;
  // Of the file system that `path` is on.
  virtual Result<SpaceInfo> Space(const std::string& path) = 0;

  // Makes `path` and its missing parents; one that exists is fine, a file in the way is
  // FAILED_PRECONDITION. Each directory that this call made is durable when it returns OK.
  Status CreateDirs(const std::string& path);
  // The whole file; OUT_OF_RANGE when it's larger than `max_bytes`.
  Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes);
};

enum class Durability {
  kNone,  // the caller syncs, or doesn't care
  kFile,  // the bytes survive a crash, if the name does
  kFileAndName,
};

// Creates `path` with exactly `bytes`. ALREADY_EXISTS when the name is taken. When another step
// fails the file is removed again as far as possible, and the first error is returned. A crash can
// leave the name with a part of the bytes: readers need a checksum, or use WriteFileAtomic.
Status WriteFileExclusive(FileSystem& fs, const std::string& path, ByteSpan bytes,
                          Durability durability);

// Like WriteFileExclusive with kFileAndName, but the name appears only with all of its bytes
// durable: writes and syncs `temp_path` (in the same directory, exclusively), links it to `path`,
// removes `temp_path`, syncs the directory. ALREADY_EXISTS when `path` is taken; a crash can leave
// `temp_path` behind. When the last sync fails the name exists, and may vanish at a crash.
Status WriteFileAtomic(FileSystem& fs, const std::string& temp_path, const std::string& path,
                       ByteSpan bytes);

// "a/b" of "a" and "b", with one slash between them; `name` alone when `dir` is empty.
std::string JoinPath(std::string_view dir, std::string_view name);
// What stands before the last slash: "/a" of "/a/b", "/" of "/a", "." of "a".
std::string DirName(std::string_view path);
// What stands behind the last slash.
std::string BaseName(std::string_view path);

}  // namespace godwit
