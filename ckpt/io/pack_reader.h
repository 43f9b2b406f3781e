#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "ckpt/codec/frame.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/pack.h"
#include "ckpt/format/plan.h"

namespace godwit::ckpt {

// Reads and checks the tail at the end of the file: its size is the file's. All errors here name
// the path; a file that is torn or damaged is DATA_LOSS.
Result<PackTail> ReadPackTail(FileSystem& fs, const std::string& path);

// An open pack: tail, plan and index are checked against each other, so that its size bounds what
// reading it allocates. Not thread-safe.
class PackReader {
 public:
  // `expected`: the tail that the manifest has; another one is DATA_LOSS.
  static Result<std::unique_ptr<PackReader>> Open(FileSystem& fs, const std::string& path,
                                                  const PackTail& expected);

  const PackTail& tail() const { return tail_; }
  const Plan& plan() const { return plan_; }
  const std::vector<PackSource>& sources() const { return sources_; }
  const std::vector<PackIndexEntry>& index() const { return index_; }

  // Reads, decodes and checks a chunk into `raw` (resized). DATA_LOSS names path, chunk and what it
  // holds; NOT_FOUND when the chunk isn't in this pack.
  Status ReadChunk(uint64_t chunk, std::string& raw);
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
  FrameDecoder decoder_;
  std::string frame_;
  uint64_t bytes_read_ = 0;
};

// Every chunk of a pack. DATA_LOSS lists the damaged ones (the first 20) with what they hold.
Status VerifyPack(FileSystem& fs, const std::string& path, const PackTail& expected);

}  // namespace godwit::ckpt
