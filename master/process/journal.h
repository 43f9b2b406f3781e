#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/file_system.h"
#include "base/status.h"
#include "master/core/state.h"

namespace godwit::master {

// What survives the master, on its node's disk: files <dir>/journal.<n>, of which the newest with a
// whole record counts, and in it the newest whole record. A record is the whole durable state: a
// u32 length, its XXH3-128, then EncodeDurable's bytes; a torn one at the end is what a crash
// leaves, and is passed over. The header names the boot, because monotonic times mean nothing in
// another one.
//
// Not thread-safe. Blocks on the disk.
class Journal {
 public:
  // Reads what an earlier master left and starts the next file with it. Files it replaces are
  // removed. FAILED_PRECONDITION when the newest whole record is of another version.
  static Result<std::unique_ptr<Journal>> Open(FileSystem& fs, std::string dir,
                                               std::string boot_id);

  // What was found; nothing for a new job.
  const std::optional<Durable>& recovered() const { return recovered_; }
  // Whether that was written in this boot.
  bool same_boot() const { return same_boot_; }

  // On OK the state survives a crash. After an error it may or may not; the next Append starts a
  // new file.
  Status Append(const Durable& durable);

 private:
  Journal(FileSystem& fs, std::string dir, std::string boot_id)
      : fs_(fs), dir_(std::move(dir)), boot_id_(std::move(boot_id)) {}
  Status Rotate(const Durable& durable);
  std::string Path(uint64_t number) const;

  FileSystem& fs_;
  const std::string dir_;
  const std::string boot_id_;
  std::optional<Durable> recovered_;
  bool same_boot_ = true;
  uint64_t number_ = 0;                 // of the newest file, ours or found
  std::vector<uint64_t> older_;         // files to remove once a newer one is whole
  std::unique_ptr<WritableFile> file_;  // null: the next Append rotates
};

}  // namespace godwit::master
