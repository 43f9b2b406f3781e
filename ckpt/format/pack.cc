#include "ckpt/format/pack.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "ckpt/format/version.h"

namespace godwit::ckpt {
namespace {

constexpr std::string_view kHeaderMagic("GWPACK\0\n", 8);
constexpr std::string_view kTailMagic("GWTAIL\0\n", 8);

void WriteDigest(const Digest128& d, ByteWriter& out) {
  out.U64(d.hi);
  out.U64(d.lo);
}

Digest128 ReadDigest(ByteReader& in) {
  Digest128 d;
  d.hi = in.ReadU64();
  d.lo = in.ReadU64();
  return d;
}

void WriteSave(const SaveId& save, ByteWriter& out) {
  out.U64(save.term);
  out.U64(save.step);
  out.U32(save.attempt);
}

SaveId ReadSave(ByteReader& in) {
  SaveId save;
  save.term = in.ReadU64();
  save.step = in.ReadU64();
  save.attempt = in.ReadU32();
  return save;
}

// Ends a structure of fixed size.
std::string SealAt(ByteWriter out, uint64_t bytes) {
  out.Zeros(bytes - kSealBytes - out.size());
  Seal(out);
  return out.Take();
}

Status CheckFixed(ByteSpan bytes, uint64_t size, std::string_view magic, std::string_view what,
                  std::string_view part) {
  if (bytes.size() != size) {
    return DataLossError(
        fmt::format("{}: {} has {} bytes, allowed are {}", what, part, bytes.size(), size));
  }
  return CheckSealed(bytes, magic, fmt::format("{}: {}", what, part));
}

Status CheckRank(uint32_t rank, uint32_t world_size, std::string_view what) {
  if (world_size == 0 || world_size > kMaxWorldSize || rank >= world_size) {
    return DataLossError(fmt::format("{}: rank {} of world_size {}, allowed are 1 to {} ranks",
                                     what, rank, world_size, kMaxWorldSize));
  }
  return OkStatus();
}

// `before`: the entries that precede it.
Status CheckKind(const PackIndexEntry& e, const PackTail& tail,
                 const std::vector<PackIndexEntry>& before, const Plan& plan,
                 std::string_view what) {
  const auto refuse = [&](std::string_view why) {
    return DataLossError(fmt::format("{}: {}: kind {}, source {}, chunk {}, depth {}: {}", what,
                                     plan.Describe(plan.chunk(e.chunk)), static_cast<int>(e.kind),
                                     e.source, e.source_chunk, e.depth, why));
  };
  switch (e.kind) {
    case ChunkKind::kStored:
      if (e.source != kThisPack || e.source_chunk != 0 || e.depth != 0) {
        return refuse("what is stored has neither source nor depth");
      }
      return OkStatus();
    case ChunkKind::kReference:
      if (!(tail.must_understand & kFeatureReferences)) return refuse("without the feature");
      if (e.frame_offset != 0 || e.frame_bytes != 0 || e.transform != 0 || e.width != 0) {
        return refuse("a reference has no frames");
      }
      if (e.depth > kMaxDeltaDepth) return refuse("too deep");
      break;
    case ChunkKind::kDelta:
      if (!(tail.must_understand & kFeatureDeltas)) return refuse("without the feature");
      if (e.depth == 0 || e.depth > kMaxDeltaDepth) return refuse("allowed are depths 1 to 16");
      if (e.source == kThisPack) return refuse("a difference is to an older save");
      break;
    default:
      return refuse("allowed are kinds 0 to 2");
  }
  if (e.source != kThisPack) {
    return e.source < tail.sources ? OkStatus() : refuse("no such source");
  }
  // Within the pack: to an earlier chunk that is here.
  const auto it = std::lower_bound(
      before.begin(), before.end(), e.source_chunk,
      [](const PackIndexEntry& entry, uint64_t chunk) { return entry.chunk < chunk; });
  if (it == before.end() || it->chunk != e.source_chunk || it->kind == ChunkKind::kReference ||
      it->raw_bytes != e.raw_bytes || it->digest != e.digest || it->depth != e.depth) {
    return refuse("allowed is an earlier chunk of the pack with the same bytes");
  }
  return OkStatus();
}

}  // namespace

std::string EncodePackHeader(const PackHeader& header) {
  ByteWriter out;
  out.Bytes(kHeaderMagic);
  out.U32(kFormatVersion);
  WriteSave(header.save, out);
  out.U32(header.rank);
  out.U32(header.world_size);
  return SealAt(std::move(out), kPackHeaderBytes);
}

Result<PackHeader> ParsePackHeader(ByteSpan bytes, std::string_view what) {
  GODWIT_RETURN_IF_ERROR(CheckFixed(bytes, kPackHeaderBytes, kHeaderMagic, what, "header"));
  ByteReader in(bytes.subspan(12), what);
  PackHeader header;
  header.save = ReadSave(in);
  header.rank = in.ReadU32();
  header.world_size = in.ReadU32();
  GODWIT_RETURN_IF_ERROR(in.status());
  GODWIT_RETURN_IF_ERROR(CheckRank(header.rank, header.world_size, what));
  return header;
}

std::string EncodePackSources(const std::vector<PackSource>& sources) {
  ByteWriter out;
  out.Reserve(sources.size() * kPackSourceBytes);
  for (const PackSource& s : sources) {
    WriteSave(s.save, out);
    out.U32(s.rank);
    WriteDigest(s.tail_digest, out);
  }
  return out.Take();
}

std::string EncodePackIndex(const std::vector<PackIndexEntry>& index) {
  ByteWriter out;
  out.Reserve(index.size() * kPackIndexEntryBytes);
  for (const PackIndexEntry& e : index) {
    out.U64(e.chunk);
    out.U64(e.raw_bytes);
    out.U8(static_cast<uint8_t>(e.kind));
    out.U8(e.transform);
    out.U8(e.width);
    out.U8(e.depth);
    out.U32(e.source);
    out.U64(e.source_chunk);
    out.U64(e.frame_offset);
    out.U64(e.frame_bytes);
    WriteDigest(e.digest, out);
  }
  return out.Take();
}

std::string EncodePackTail(const PackTail& tail) {
  ByteWriter out;
  out.Bytes(kTailMagic);
  out.U32(kFormatVersion);
  WriteSave(tail.save, out);
  out.U64(tail.must_understand);
  out.U64(tail.may_ignore);
  out.U32(tail.rank);
  out.U32(tail.world_size);
  out.U64(tail.snapshot_epoch);
  out.U64(tail.snapshot_step);
  WriteDigest(tail.plan_hash, out);
  WriteDigest(tail.shared_hash, out);
  out.U64(tail.plan_offset);
  out.U64(tail.plan_bytes);
  out.U32(tail.sources);
  out.U32(tail.max_depth);
  out.U64(tail.index_offset);
  out.U64(tail.chunks);
  WriteDigest(tail.sources_digest, out);
  WriteDigest(tail.index_digest, out);
  out.U64(tail.raw_bytes);
  out.U64(tail.file_bytes);
  out.U32(tail.generation);
  return SealAt(std::move(out), kPackTailBytes);
}

Result<PackTail> ParsePackTail(ByteSpan bytes, std::string_view what) {
  GODWIT_RETURN_IF_ERROR(CheckFixed(bytes, kPackTailBytes, kTailMagic, what, "tail"));
  ByteReader in(bytes.subspan(12), what);
  PackTail tail;
  tail.save = ReadSave(in);
  tail.must_understand = in.ReadU64();
  tail.may_ignore = in.ReadU64();
  GODWIT_RETURN_IF_ERROR(CheckFeatures(what, tail.must_understand, kKnownFeatures));
  tail.rank = in.ReadU32();
  tail.world_size = in.ReadU32();
  tail.snapshot_epoch = in.ReadU64();
  tail.snapshot_step = in.ReadU64();
  tail.plan_hash = ReadDigest(in);
  tail.shared_hash = ReadDigest(in);
  tail.plan_offset = in.ReadU64();
  tail.plan_bytes = in.ReadU64();
  tail.sources = in.ReadU32();
  tail.max_depth = in.ReadU32();
  tail.index_offset = in.ReadU64();
  tail.chunks = in.ReadU64();
  tail.sources_digest = ReadDigest(in);
  tail.index_digest = ReadDigest(in);
  tail.raw_bytes = in.ReadU64();
  tail.file_bytes = in.ReadU64();
  tail.generation = in.ReadU32();
  GODWIT_RETURN_IF_ERROR(in.status());
  GODWIT_RETURN_IF_ERROR(CheckRank(tail.rank, tail.world_size, what));
  if (tail.sources > kMaxPackSources || tail.max_depth > kMaxDeltaDepth ||
      (tail.sources > 0 && !(tail.must_understand & kKnownFeatures)) ||
      (tail.max_depth > 0 && !(tail.must_understand & kFeatureDeltas))) {
    return DataLossError(fmt::format(
        "{}: {} sources and chains of {} with features {:#x}; allowed are {} and {}, each with "
        "its feature",
        what, tail.sources, tail.max_depth, tail.must_understand, kMaxPackSources, kMaxDeltaDepth));
  }
  // plan_offset <= index_offset <= file_bytes - tail, each by the size of what lies between.
  const uint64_t sources_bytes = tail.sources * kPackSourceBytes;
  if (tail.file_bytes < kPackHeaderBytes + kPackTailBytes || tail.plan_offset < kPackHeaderBytes ||
      tail.plan_offset > tail.index_offset ||
      tail.index_offset > tail.file_bytes - kPackTailBytes ||
      sources_bytes > tail.index_offset - tail.plan_offset ||
      tail.plan_bytes != tail.index_offset - tail.plan_offset - sources_bytes ||
      tail.chunks > tail.file_bytes / kPackIndexEntryBytes ||
      tail.chunks * kPackIndexEntryBytes != tail.file_bytes - kPackTailBytes - tail.index_offset) {
    return DataLossError(fmt::format(
        "{}: the tail's sizes don't fit: plan at {} with {} bytes, {} sources, index at {} with {} "
        "chunks, {} bytes in all",
        what, tail.plan_offset, tail.plan_bytes, tail.sources, tail.index_offset, tail.chunks,
        tail.file_bytes));
  }
  return tail;
}

Digest128 TailDigest(std::string_view tail) {
  ByteReader in(AsBytes(tail.substr(tail.size() - std::min(tail.size(), kSealBytes))), "tail");
  return ReadDigest(in);
}

Result<std::vector<PackSource>> ParsePackSources(ByteSpan bytes, const PackTail& tail,
                                                 std::string_view what) {
  if (bytes.size() != tail.sources * kPackSourceBytes || DigestOf(bytes) != tail.sources_digest) {
    return DataLossError(fmt::format("{}: sources are damaged: digest {}, the tail says {}", what,
                                     DigestOf(bytes).ToHex(), tail.sources_digest.ToHex()));
  }
  ByteReader in(bytes, what);
  std::vector<PackSource> sources;
  std::set<std::pair<SaveId, uint32_t>> seen;
  for (uint32_t i = 0; i < tail.sources; ++i) {
    PackSource s;
    s.save = ReadSave(in);
    s.rank = in.ReadU32();
    s.tail_digest = ReadDigest(in);
    // Older: whoever follows sources comes to an end.
    if (s.save >= tail.save || s.rank >= kMaxWorldSize || !seen.emplace(s.save, s.rank).second) {
      return DataLossError(
          fmt::format("{}: source {} is rank {} of {}; allowed are ranks below {} of saves before "
                      "{}, each once",
                      what, i, s.rank, ToString(s.save), kMaxWorldSize, ToString(tail.save)));
    }
    sources.push_back(s);
  }
  GODWIT_RETURN_IF_ERROR(in.Finish());
  return sources;
}

Result<std::vector<PackIndexEntry>> ParsePackIndex(ByteSpan bytes, const PackTail& tail,
                                                   const Plan& plan, std::string_view what) {
  if (bytes.size() != tail.chunks * kPackIndexEntryBytes || DigestOf(bytes) != tail.index_digest) {
    return DataLossError(fmt::format("{}: index is damaged: digest {}, the tail says {}", what,
                                     DigestOf(bytes).ToHex(), tail.index_digest.ToHex()));
  }
  if (tail.chunks != plan.ShareChunks(tail.rank, tail.world_size)) {
    return DataLossError(fmt::format("{}: index has {} chunks, the share of rank {} of {} is {}",
                                     what, tail.chunks, tail.rank, tail.world_size,
                                     plan.ShareChunks(tail.rank, tail.world_size)));
  }
  ByteReader in(bytes, what);
  std::vector<PackIndexEntry> index;
  index.reserve(tail.chunks);
  uint32_t max_depth = 0;
  uint64_t offset = kPackHeaderBytes;
  uint64_t raw_bytes = 0;
  // The share: every world_size-th replicated chunk, then all of the rank's own.
  uint64_t expected = std::min<uint64_t>(tail.rank, plan.replicated_chunks());
  for (uint64_t i = 0; i < tail.chunks; ++i) {
    PackIndexEntry e;
    e.chunk = in.ReadU64();
    e.raw_bytes = in.ReadU64();
    e.kind = static_cast<ChunkKind>(in.ReadU8());
    e.transform = in.ReadU8();
    e.width = in.ReadU8();
    e.depth = in.ReadU8();
    e.source = in.ReadU32();
    e.source_chunk = in.ReadU64();
    e.frame_offset = in.ReadU64();
    e.frame_bytes = in.ReadU64();
    e.digest = ReadDigest(in);
    if (e.chunk != expected || e.chunk >= plan.chunks()) {
      return DataLossError(fmt::format("{}: index entry {} is of chunk {}, allowed is {}", what, i,
                                       e.chunk, expected));
    }
    const Chunk chunk = plan.chunk(e.chunk);
    if (chunk.is_blob ? e.raw_bytes > chunk.bytes : e.raw_bytes != chunk.bytes) {
      return DataLossError(fmt::format("{}: {} has {} bytes, the plan says {}", what,
                                       plan.Describe(chunk), e.raw_bytes, chunk.bytes));
    }
    GODWIT_RETURN_IF_ERROR(CheckKind(e, tail, index, plan, what));
    max_depth = std::max<uint32_t>(max_depth, e.depth);
    if (e.kind != ChunkKind::kReference) {
      if (e.frame_offset != offset || e.frame_bytes > tail.plan_offset - offset) {
        return DataLossError(
            fmt::format("{}: {}: frame at {} with {} bytes, allowed is at {} with at most {}", what,
                        plan.Describe(chunk), e.frame_offset, e.frame_bytes, offset,
                        tail.plan_offset - offset));
      }
      offset += e.frame_bytes;
    }
    raw_bytes += e.raw_bytes;
    if (expected < plan.replicated_chunks()) {
      expected = std::min(expected + tail.world_size, plan.replicated_chunks());
    } else {
      ++expected;
    }
    index.push_back(e);
  }
  GODWIT_RETURN_IF_ERROR(in.Finish());
  if (offset != tail.plan_offset || raw_bytes != tail.raw_bytes || max_depth != tail.max_depth) {
    return DataLossError(fmt::format(
        "{}: frames end at {} with {} raw bytes and chains of {}, the tail says {}, {} and {}",
        what, offset, raw_bytes, max_depth, tail.plan_offset, tail.raw_bytes, tail.max_depth));
  }
  return index;
}

}  // namespace godwit::ckpt
