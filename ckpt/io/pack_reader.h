#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/pack.h"
#include "ckpt/format/plan.h"

namespace godwit::ckpt {

// Reads and checks the tail at the end of the file: its size is the file's. All errors here name
// the path; a file that is torn or damaged is DATA_LOSS.
Result<PackTail> ReadPackTail(FileSystem& fs, const std::string& path);

// What the packs of a save refer to: no more than sections that tails name are read. DATA_LOSS for
// a damaged one; NOT_FOUND when the pack isn't there.
Result<std::vector<PackSource>> ReadPackSources(FileSystem& fs, const std::string& path,
                                                const PackTail& tail);

// An open pack: tail, plan and index are checked against each other, so that its size bounds what
// reading it allocates. Not thread-safe.
class PackReader {
 public:
  // `expected`: the tail that the manifest has; another one is DATA_LOSS.
  static Result<std::unique_ptr<PackReader>> Open(FileSystem& fs, const std::string& path,
                                                  const PackTail& expected);
  // The same for a pack that another one refers to.
  static Result<std::unique_ptr<PackReader>> Open(FileSystem& fs, const std::string& path,
                                                  const PackSource& expected);

  const PackTail& tail() const { return tail_; }
  const Plan& plan() const { return plan_; }
  const std::vector<PackSource>& sources() const { return sources_; }
  const std::vector<PackIndexEntry>& index() const { return index_; }

  const std::string& path() const { return path_; }
  // Null: the chunk isn't in this pack.
  const PackIndexEntry* Find(uint64_t chunk) const;
  // "<path>: chunk 12 (tensor 'w')".
  std::string Describe(uint64_t chunk) const;
  // The frames of an entry of index(), as they are in the file.
  Status ReadFrames(const PackIndexEntry& entry, std::string& frames);
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  PackReader(std::string path, std::unique_ptr<RandomAccessFile> file, PackTail tail, Plan plan,
             std::vector<PackSource> sources, std::vector<PackIndexEntry> index)
      : path_(std::move(path)),
        file_(std::move(file)),
        tail_(tail),
        plan_(std::move(plan)),
        sources_(std::move(sources)),
        index_(std::move(index)) {}

  const std::string path_;
  const std::unique_ptr<RandomAccessFile> file_;
  const PackTail tail_;
  const Plan plan_;
  const std::vector<PackSource> sources_;
  const std::vector<PackIndexEntry> index_;
  uint64_t bytes_read_ = 0;
};

}  // namespace godwit::ckpt
