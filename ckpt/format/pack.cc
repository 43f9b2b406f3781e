#include "ckpt/format/pack.h"

#include <fmt/core.h>

#include <algorithm>

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

std::string EncodePackIndex(const std::vector<PackIndexEntry>& index) {
  ByteWriter out;
  out.Reserve(index.size() * kPackIndexEntryBytes);
  for (const PackIndexEntry& e : index) {
    out.U64(e.chunk);
    out.U64(e.raw_bytes);
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
  out.U64(0);  // features that a reader must understand
  out.U32(tail.rank);
  out.U32(tail.world_size);
  out.U64(tail.snapshot_epoch);
  out.U64(tail.snapshot_step);
  WriteDigest(tail.plan_hash, out);
  WriteDigest(tail.shared_hash, out);
  out.U64(tail.plan_offset);
  out.U64(tail.plan_bytes);
  out.U64(tail.index_offset);
  out.U64(tail.chunks);
  WriteDigest(tail.index_digest, out);
  out.U64(tail.raw_bytes);
  out.U64(tail.file_bytes);
  return SealAt(std::move(out), kPackTailBytes);
}

Result<PackTail> ParsePackTail(ByteSpan bytes, std::string_view what) {
  GODWIT_RETURN_IF_ERROR(CheckFixed(bytes, kPackTailBytes, kTailMagic, what, "tail"));
  ByteReader in(bytes.subspan(12), what);
  PackTail tail;
  tail.save = ReadSave(in);
  if (const uint64_t features = in.ReadU64(); features != 0) {
    return FailedPreconditionError(fmt::format(
        "{}: needs features {:#x}, this build (v{}) knows none", what, features, kFormatVersion));
  }
  tail.rank = in.ReadU32();
  tail.world_size = in.ReadU32();
  tail.snapshot_epoch = in.ReadU64();
  tail.snapshot_step = in.ReadU64();
  tail.plan_hash = ReadDigest(in);
  tail.shared_hash = ReadDigest(in);
  tail.plan_offset = in.ReadU64();
  tail.plan_bytes = in.ReadU64();
  tail.index_offset = in.ReadU64();
  tail.chunks = in.ReadU64();
  tail.index_digest = ReadDigest(in);
  tail.raw_bytes = in.ReadU64();
  tail.file_bytes = in.ReadU64();
  GODWIT_RETURN_IF_ERROR(in.status());
  GODWIT_RETURN_IF_ERROR(CheckRank(tail.rank, tail.world_size, what));
  // plan_offset <= index_offset <= file_bytes - tail, each by the size of what lies between.
  if (tail.file_bytes < kPackHeaderBytes + kPackTailBytes || tail.plan_offset < kPackHeaderBytes ||
      tail.plan_offset > tail.index_offset ||
      tail.index_offset > tail.file_bytes - kPackTailBytes ||
      tail.plan_bytes != tail.index_offset - tail.plan_offset ||
      tail.chunks > tail.file_bytes / kPackIndexEntryBytes ||
      tail.chunks * kPackIndexEntryBytes != tail.file_bytes - kPackTailBytes - tail.index_offset) {
    return DataLossError(fmt::format(
        "{}: the tail's sizes don't fit: plan at {} with {} bytes, index at {} with {} chunks, "
        "{} bytes in all",
        what, tail.plan_offset, tail.plan_bytes, tail.index_offset, tail.chunks, tail.file_bytes));
  }
  return tail;
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
  uint64_t offset = kPackHeaderBytes;
  uint64_t raw_bytes = 0;
  // The share: every world_size-th replicated chunk, then all of the rank's own.
  uint64_t expected = std::min<uint64_t>(tail.rank, plan.replicated_chunks());
  for (uint64_t i = 0; i < tail.chunks; ++i) {
    PackIndexEntry e;
    e.chunk = in.ReadU64();
    e.raw_bytes = in.ReadU64();
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
    if (e.frame_offset != offset || e.frame_bytes > tail.plan_offset - offset) {
      return DataLossError(fmt::format(
          "{}: {}: frame at {} with {} bytes, allowed is at {} with at most {}", what,
          plan.Describe(chunk), e.frame_offset, e.frame_bytes, offset, tail.plan_offset - offset));
    }
    offset += e.frame_bytes;
    raw_bytes += e.raw_bytes;
    if (expected < plan.replicated_chunks()) {
      expected = std::min(expected + tail.world_size, plan.replicated_chunks());
    } else {
      ++expected;
    }
    index.push_back(e);
  }
  GODWIT_RETURN_IF_ERROR(in.Finish());
  if (offset != tail.plan_offset || raw_bytes != tail.raw_bytes) {
    return DataLossError(
        fmt::format("{}: frames end at {} with {} raw bytes, the tail says {} and {}", what, offset,
                    raw_bytes, tail.plan_offset, tail.raw_bytes));
  }
  return index;
}

}  // namespace godwit::ckpt
