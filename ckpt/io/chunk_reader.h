#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "ckpt/codec/chunk_codec.h"
#include "ckpt/io/pack_reader.h"

namespace godwit::ckpt {

// Reads the chunks of packs, following references and differences into older packs. Keeps the packs
// that it was led to open, at most kMostOpen of them. Not thread-safe.
class ChunkReader {
 public:
  using PackPathFn = std::function<std::string(const SaveId& save, uint32_t rank)>;

  // `path` says where the packs of other saves are.
  ChunkReader(FileSystem& fs, PackPathFn path) : fs_(fs), path_(std::move(path)) {}

  // Reads, decodes and checks a chunk into `raw` (resized). NOT_FOUND when it isn't in the pack.
  // DATA_LOSS names path, chunk and what it holds, and the packs that led there. Memory: the chunk,
  // its frames and its planes, and one chunk more where there are differences.
  Status Read(PackReader& pack, uint64_t chunk, std::string& raw);

  // Of packs that were opened here.
  uint64_t bytes_read() const;
  // Differences that were followed for one chunk, at most.
  uint32_t longest_chain() const { return longest_chain_; }

 private:
  static constexpr size_t kMostOpen = 64;

  struct Open {
    PackSource source;
    std::shared_ptr<PackReader> pack;
  };
  // A stored chunk or a difference, never a reference.
  struct Place {
    std::shared_ptr<PackReader> keep;  // null: the caller's
    PackReader* pack = nullptr;
    const PackIndexEntry* entry = nullptr;
  };

  Result<Place> Follow(PackReader& pack, const PackIndexEntry& entry, uint8_t depth);
  Result<std::shared_ptr<PackReader>> Source(const PackSource& source);
  Status ReadPlace(PackReader& pack, const PackIndexEntry& entry, ByteSpan base, std::string& raw);

  FileSystem& fs_;
  const PackPathFn path_;
  std::list<Open> open_;  // the last used first
  ChunkDecoder decoder_;
  std::string frames_;
  std::string base_;
  uint64_t closed_bytes_ = 0;
  uint32_t longest_chain_ = 0;
};

// Every chunk of a pack. DATA_LOSS lists the damaged ones (the first 20) with what they hold.
Status VerifyPack(FileSystem& fs, const std::string& path, const PackTail& expected,
                  const ChunkReader::PackPathFn& other_packs);

}  // namespace godwit::ckpt
