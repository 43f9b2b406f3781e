#include "ckpt/io/pack_reader.h"

#include <fmt/core.h>

#include <algorithm>

#include "ckpt/io/stored_file.h"

namespace godwit::ckpt {
namespace {

// The end of the file may have moved or be missing: that is a torn pack, not an I/O error.
Result<PackTail> TailOf(const RandomAccessFile& file, const std::string& path) {
  if (file.size() < kPackHeaderBytes + kPackTailBytes) {
    return DataLossError(fmt::format("{}: no tail: {} bytes, a pack has at least {}", path,
                                     file.size(), kPackHeaderBytes + kPackTailBytes));
  }
  std::string bytes(kPackTailBytes, '\0');
  GODWIT_RETURN_IF_ERROR(file.ReadFully(
      file.size() - kPackTailBytes, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}));
  auto tail = ParsePackTail(AsBytes(bytes), path);
  if (!tail.ok()) return tail.status();
  if (tail->file_bytes != file.size()) {
    return DataLossError(
        fmt::format("{}: {} bytes, its tail says {}", path, file.size(), tail->file_bytes));
  }
  return tail;
}

Result<std::string> Read(const RandomAccessFile& file, uint64_t offset, uint64_t bytes) {
  std::string out(bytes, '\0');
  GODWIT_RETURN_IF_ERROR(
      file.ReadFully(offset, {reinterpret_cast<std::byte*>(out.data()), out.size()}));
  return out;
}

}  // namespace

Result<PackTail> ReadPackTail(FileSystem& fs, const std::string& path) {
  GODWIT_ASSIGN_OR_RETURN(auto file, OpenStored(fs, path));
  return TailOf(*file, path);
}

Result<std::vector<PackSource>> ReadPackSources(FileSystem& fs, const std::string& path,
                                                const PackTail& tail) {
  if (tail.sources == 0) return std::vector<PackSource>();
  GODWIT_ASSIGN_OR_RETURN(auto file, OpenStored(fs, path));
  // ParsePackTail bounds their number.
  GODWIT_ASSIGN_OR_RETURN(const std::string bytes, Read(*file, tail.plan_offset + tail.plan_bytes,
                                                        tail.sources * kPackSourceBytes));
  return ParsePackSources(AsBytes(bytes), tail, path);
}

Result<std::unique_ptr<PackReader>> PackReader::Open(FileSystem& fs, const std::string& path,
                                                     const PackSource& expected) {
  GODWIT_ASSIGN_OR_RETURN(const PackTail tail, ReadPackTail(fs, path));
  if (const Digest128 digest = TailDigest(EncodePackTail(tail)); digest != expected.tail_digest) {
    return DataLossError(fmt::format("{}: its tail has digest {}, whoever refers to it says {}",
                                     path, digest.ToHex(), expected.tail_digest.ToHex()));
  }
  return Open(fs, path, tail);
}

Result<std::unique_ptr<PackReader>> PackReader::Open(FileSystem& fs, const std::string& path,
                                                     const PackTail& expected) {
  GODWIT_ASSIGN_OR_RETURN(auto file, OpenStored(fs, path));
  GODWIT_ASSIGN_OR_RETURN(const PackTail tail, TailOf(*file, path));
  if (tail != expected) {
    return DataLossError(fmt::format("{}: its tail is not the one that was committed", path));
  }
  GODWIT_ASSIGN_OR_RETURN(const std::string head, Read(*file, 0, kPackHeaderBytes));
  GODWIT_ASSIGN_OR_RETURN(const PackHeader header, ParsePackHeader(AsBytes(head), path));
  if (header.save != tail.save || header.rank != tail.rank ||
      header.world_size != tail.world_size) {
    return DataLossError(fmt::format("{}: its header says {}, rank {} of {}; its tail {}, {} of {}",
                                     path, ToString(header.save), header.rank, header.world_size,
                                     ToString(tail.save), tail.rank, tail.world_size));
  }
  // Sizes fit the file's by ParsePackTail.
  GODWIT_ASSIGN_OR_RETURN(const std::string plan_bytes,
                          Read(*file, tail.plan_offset, tail.plan_bytes));
  if (DigestOf(AsBytes(plan_bytes)) != tail.plan_hash) {
    return DataLossError(fmt::format("{}: plan is damaged: digest {}, the tail says {}", path,
                                     DigestOf(AsBytes(plan_bytes)).ToHex(),
                                     tail.plan_hash.ToHex()));
  }
  GODWIT_ASSIGN_OR_RETURN(Plan plan, Plan::Parse(AsBytes(plan_bytes), path + ": plan"));
  if (plan.shared_hash() != tail.shared_hash) {
    return DataLossError(fmt::format("{}: its plan's replicated part is {}, the tail says {}", path,
                                     plan.shared_hash().ToHex(), tail.shared_hash.ToHex()));
  }
  GODWIT_ASSIGN_OR_RETURN(
      const std::string source_bytes,
      Read(*file, tail.plan_offset + tail.plan_bytes, tail.sources * kPackSourceBytes));
  GODWIT_ASSIGN_OR_RETURN(auto sources, ParsePackSources(AsBytes(source_bytes), tail, path));
  GODWIT_ASSIGN_OR_RETURN(const std::string index_bytes,
                          Read(*file, tail.index_offset, tail.chunks * kPackIndexEntryBytes));
  GODWIT_ASSIGN_OR_RETURN(auto index, ParsePackIndex(AsBytes(index_bytes), tail, plan, path));
  const uint64_t read = kPackHeaderBytes + kPackTailBytes + plan_bytes.size() +
                        source_bytes.size() + index_bytes.size();
  std::unique_ptr<PackReader> reader(new PackReader(path, std::move(file), tail, std::move(plan),
                                                    std::move(sources), std::move(index)));
  reader->bytes_read_ = read;
  return reader;
}

const PackIndexEntry* PackReader::Find(uint64_t chunk) const {
  auto it = std::lower_bound(index_.begin(), index_.end(), chunk,
                             [](const PackIndexEntry& e, uint64_t c) { return e.chunk < c; });
  return it != index_.end() && it->chunk == chunk ? &*it : nullptr;
}

std::string PackReader::Describe(uint64_t chunk) const {
  return fmt::format("{}: {}", path_, plan_.Describe(plan_.chunk(chunk)));
}

Status PackReader::ReadFrames(const PackIndexEntry& entry, std::string& frames) {
  // Frames lie within the file (ParsePackIndex).
  frames.resize(entry.frame_bytes);
  GODWIT_RETURN_IF_ERROR(file_->ReadFully(
      entry.frame_offset, {reinterpret_cast<std::byte*>(frames.data()), frames.size()}));
  bytes_read_ += frames.size();
  return OkStatus();
}

}  // namespace godwit::ckpt
