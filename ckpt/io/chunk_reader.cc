#include "ckpt/io/chunk_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace godwit::ckpt {

Result<std::shared_ptr<PackReader>> ChunkReader::Source(const PackSource& source) {
  for (auto it = open_.begin(); it != open_.end(); ++it) {
    if (it->source != source) continue;
    open_.splice(open_.begin(), open_, it);
    return it->pack;
  }
  const std::string path = path_(source.save, source.rank);
  auto pack = PackReader::Open(fs_, path, source);
  if (pack.status().code() == StatusCode::kNotFound) {
    return DataLossError(fmt::format("{}: the pack is missing", path));
  }
  if (!pack.ok()) return pack.status();
  if (open_.size() == kMostOpen) {
    closed_bytes_ += open_.back().pack->bytes_read();
    open_.pop_back();
  }
  open_.push_front({source, std::shared_ptr<PackReader>(std::move(pack).value())});
  return open_.front().pack;
}

// What a reference or a difference is to. A hostile index can't make this go on for ever: a
// reference leads to no reference, and each difference is to one of a smaller depth.
Result<ChunkReader::Place> ChunkReader::Follow(PackReader& pack, const PackIndexEntry& entry,
                                               uint8_t depth) {
  const auto context = [&] { return pack.Describe(entry.chunk) + " refers to another chunk"; };
  Place place;
  place.pack = &pack;
  if (entry.source != kThisPack) {
    auto source = Source(pack.sources()[entry.source]);
    if (!source.ok()) return source.status().Annotate(context());
    place.keep = std::move(source).value();
    place.pack = place.keep.get();
  }
  place.entry = place.pack->Find(entry.source_chunk);
  if (!place.entry) {
    return DataLossError(
        fmt::format("{}: {} has no chunk {}", context(), place.pack->path(), entry.source_chunk));
  }
  const PackIndexEntry& to = *place.entry;
  if (to.kind == ChunkKind::kReference || to.depth != depth || to.raw_bytes != entry.raw_bytes ||
      (entry.kind == ChunkKind::kReference && to.digest != entry.digest)) {
    return DataLossError(fmt::format(
        "{}: {} is of kind {}, depth {} and {} bytes; allowed is no reference, depth {} and {} "
        "bytes with the digest that is referred to",
        context(), place.pack->Describe(to.chunk), static_cast<int>(to.kind), to.depth,
        to.raw_bytes, depth, entry.raw_bytes));
  }
  return place;
}

Status ChunkReader::ReadPlace(PackReader& pack, const PackIndexEntry& entry, ByteSpan base,
                              std::string& raw) {
  GODWIT_RETURN_IF_ERROR(pack.ReadFrames(entry, frames_));
  // raw_bytes is at most what the plan allows for this chunk (ParsePackIndex).
  raw.resize(entry.raw_bytes);
  const MutableByteSpan out{reinterpret_cast<std::byte*>(raw.data()), raw.size()};
  if (Status s = decoder_.Decode(AsBytes(frames_), entry.transform, entry.width, base, out);
      !s.ok()) {
    return s.Annotate(pack.Describe(entry.chunk));
  }
  if (const Digest128 digest = DigestOf(out); digest != entry.digest) {
    return DataLossError(fmt::format("{}: digest {}, at staging it was {}",
                                     pack.Describe(entry.chunk), digest.ToHex(),
                                     entry.digest.ToHex()));
  }
  return OkStatus();
}

Status ChunkReader::Read(PackReader& pack, uint64_t chunk, std::string& raw) {
  const PackIndexEntry* const entry = pack.Find(chunk);
  if (!entry) {
    return NotFoundError(fmt::format("{}: chunk {} is not in this pack", pack.path(), chunk));
  }
  // From the chunk back to one that is stored: each is the difference to the one behind it.
  std::vector<Place> chain;
  chain.push_back({nullptr, &pack, entry});
  if (entry->kind == ChunkKind::kReference) {
    GODWIT_ASSIGN_OR_RETURN(chain.back(), Follow(pack, *entry, entry->depth));
  }
  while (chain.back().entry->kind == ChunkKind::kDelta) {
    const Place& last = chain.back();
    GODWIT_ASSIGN_OR_RETURN(
        Place next, Follow(*last.pack, *last.entry, static_cast<uint8_t>(last.entry->depth - 1)));
    chain.push_back(std::move(next));
  }
  longest_chain_ = std::max(longest_chain_, static_cast<uint32_t>(chain.size() - 1));
  for (size_t i = chain.size(); i-- > 0;) {
    const Status read = ReadPlace(*chain[i].pack, *chain[i].entry,
                                  i + 1 < chain.size() ? AsBytes(base_) : ByteSpan(), raw);
    if (!read.ok()) {
      return i == 0 && chain[0].pack == &pack
                 ? read
                 : read.Annotate(pack.Describe(chunk) + " refers to another chunk");
    }
    if (i > 0) base_.swap(raw);
  }
  return OkStatus();
}

uint64_t ChunkReader::bytes_read() const {
  uint64_t n = closed_bytes_;
  for (const Open& o : open_) n += o.pack->bytes_read();
  return n;
}

Status VerifyPack(FileSystem& fs, const std::string& path, const PackTail& expected,
                  const ChunkReader::PackPathFn& other_packs) {
  GODWIT_ASSIGN_OR_RETURN(auto pack, PackReader::Open(fs, path, expected));
  ChunkReader reader(fs, other_packs);
  constexpr int kShown = 20;
  std::string raw;
  std::string damage;
  int damaged = 0;
  for (const PackIndexEntry& e : pack->index()) {
    const Status s = reader.Read(*pack, e.chunk, raw);
    if (s.ok()) continue;
    if (s.code() != StatusCode::kDataLoss) return s;
    if (damaged++ < kShown) damage += (damage.empty() ? "" : "; ") + s.message();
  }
  if (damaged == 0) return OkStatus();
  if (damaged > kShown) damage += fmt::format("; and {} more", damaged - kShown);
  return DataLossError(damage);
}

}  // namespace godwit::ckpt
