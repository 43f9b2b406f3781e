#include "ckpt/codec/chunk_codec.h"

#include <fmt/core.h>
// For ZSTD_c_literalCompressionMode: in the library since 1.4, of every build of it.
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace godwit::ckpt {
namespace {

// RFC 8878, 3.1.1: a frame of raw blocks is a header with its content size, then blocks of at most
// 128 KiB behind 3 bytes each.
constexpr size_t kBlockBytes = 128 * 1024;
constexpr uint8_t kMagic[4] = {0x28, 0xb5, 0x2f, 0xfd};
constexpr uint8_t kSingleSegment4 = 0xa0;  // the content size in 4 bytes, no window

void AppendRawFrame(ByteSpan bytes, std::string& out) {
  ByteWriter head;
  for (uint8_t b : kMagic) head.U8(b);
  head.U8(kSingleSegment4);
  head.U32(static_cast<uint32_t>(bytes.size()));
  out += head.str();
  size_t done = 0;
  do {
    const size_t n = std::min(kBlockBytes, bytes.size() - done);
    const bool last = done + n == bytes.size();
    const uint32_t block = static_cast<uint32_t>(n << 3) | (last ? 1 : 0);
    for (int i = 0; i < 3; ++i) out.push_back(static_cast<char>(block >> (8 * i)));
    out += AsString(bytes.subspan(done, n));
    done += n;
  } while (done < bytes.size());
}

Status CheckEncoding(uint8_t transform, uint8_t width) {
  const bool planes = width == 2 || width == 4 || width == 8;
  if (transform == 0 ? width <= 1 : transform <= kMaxTransform && planes) return OkStatus();
  return FailedPreconditionError(
      fmt::format("transform {} of width {}; this build knows transform 0, and 1 to {} of widths "
                  "2, 4 and 8",
                  transform, width, kMaxTransform));
}

size_t Planes(Transform transform, uint8_t width) {
  return transform == Transform::kNone ? 1 : width;
}

}  // namespace

struct ChunkEncoder::Impl {
  ZSTD_CCtx* huffman = ZSTD_createCCtx();
  ZSTD_CCtx* zstd = ZSTD_createCCtx();
  std::vector<std::byte> planes;
  std::string scratch;

  Status Prepare();
  // Appends one frame; raw when that is not larger by more than 1/64.
  Status EncodePlane(ByteSpan plane, PlaneCoding coding, std::string& out);
  Result<size_t> Size(ByteSpan plane, PlaneCoding coding);
  // The planes of `raw` in `planes`, and what is left behind them.
  void Split(ByteSpan raw, ByteSpan base, const ChunkEncoding& encoding);
};

Status ChunkEncoder::Impl::Prepare() {
  if (!huffman || !zstd) return ResourceExhaustedError("zstd: no memory for a compressor");
  // Exponents have few matches that are worth their cost, and looking for them is what takes the
  // time: the lowest level looks for next to none (256 KiB of exponents: 0.27 ms at 3.08 against
  // 0.80 ms at 2.77 with level -50). Huffman is forced, which such levels leave out.
  for (const auto& [parameter, value] :
       {std::pair{ZSTD_c_compressionLevel, ZSTD_minCLevel()},
        std::pair{ZSTD_c_literalCompressionMode, static_cast<int>(ZSTD_ps_enable)}}) {
    if (const size_t n = ZSTD_CCtx_setParameter(huffman, parameter, value); ZSTD_isError(n)) {
      return InternalError(
          fmt::format("zstd: parameter {}: {}", static_cast<int>(parameter), ZSTD_getErrorName(n)));
    }
  }
  if (const size_t n = ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, 1); ZSTD_isError(n)) {
    return InternalError(fmt::format("zstd: {}", ZSTD_getErrorName(n)));
  }
  return OkStatus();
}

Status ChunkEncoder::Impl::EncodePlane(ByteSpan plane, PlaneCoding coding, std::string& out) {
  if (coding != PlaneCoding::kRaw && !plane.empty()) {
    const size_t before = out.size();
    out.resize(before + ZSTD_compressBound(plane.size()));
    const size_t n =
        ZSTD_compress2(coding == PlaneCoding::kHuffman ? huffman : zstd, out.data() + before,
                       out.size() - before, plane.data(), plane.size());
    if (ZSTD_isError(n)) {
      out.resize(before);
      return ResourceExhaustedError(
          fmt::format("zstd: {} bytes: {}", plane.size(), ZSTD_getErrorName(n)));
    }
    if (n < plane.size() - plane.size() / 64) {
      out.resize(before + n);
      return OkStatus();
    }
    out.resize(before);
  }
  AppendRawFrame(plane, out);
  return OkStatus();
}

Result<size_t> ChunkEncoder::Impl::Size(ByteSpan plane, PlaneCoding coding) {
  scratch.clear();
  GODWIT_RETURN_IF_ERROR(EncodePlane(plane, coding, scratch));
  return scratch.size();
}

void ChunkEncoder::Impl::Split(ByteSpan raw, ByteSpan base, const ChunkEncoding& encoding) {
  const size_t count = raw.size() / encoding.width;
  planes.resize(raw.size());
  std::byte* at[kMaxWidth];
  for (size_t p = 0; p < encoding.width; ++p) at[p] = planes.data() + p * count;
  BestPlaneKernels().split(encoding.transform, encoding.width, raw.data(), base.data(), count, at);
  const size_t done = count * encoding.width;
  std::copy(raw.begin() + static_cast<ptrdiff_t>(done), raw.end(),
            planes.begin() + static_cast<ptrdiff_t>(done));
}

ChunkEncoder::ChunkEncoder() : impl_(std::make_unique<Impl>()) {}
ChunkEncoder::~ChunkEncoder() {
  ZSTD_freeCCtx(impl_->huffman);
  ZSTD_freeCCtx(impl_->zstd);
}

Status ChunkEncoder::Encode(ByteSpan raw, ByteSpan base, const ChunkEncoding& encoding,
                            std::string& out) {
  Impl& m = *impl_;
  GODWIT_CHECK(CheckEncoding(static_cast<uint8_t>(encoding.transform), encoding.width).ok());
  GODWIT_CHECK(encoding.transform != Transform::kDeltaPlanes || base.size() == raw.size());
  GODWIT_RETURN_IF_ERROR(m.Prepare());
  const size_t before = out.size();
  const size_t planes = Planes(encoding.transform, encoding.width);
  ByteSpan all = raw;
  size_t count = raw.size();
  if (planes > 1) {
    m.Split(raw, base, encoding);
    all = m.planes;
    count = raw.size() / encoding.width;
  }
  for (size_t p = 0; p < planes; ++p) {
    const ByteSpan plane = p + 1 < planes ? all.subspan(p * count, count) : all.subspan(p * count);
    if (Status s = m.EncodePlane(plane, encoding.planes[p], out); !s.ok()) {
      out.resize(before);
      return s;
    }
  }
  return OkStatus();
}

Result<ChunkEncoding> ChunkEncoder::Choose(ByteSpan raw, ByteSpan base, uint8_t width,
                                           bool is_float) {
  Impl& m = *impl_;
  GODWIT_CHECK(base.empty() || base.size() == raw.size());
  GODWIT_RETURN_IF_ERROR(m.Prepare());
  // Three pieces: a tensor's rows may differ (an embedding of rare bytes).
  constexpr size_t kPieceBytes = 64 * 1024;
  constexpr size_t kPieces = 3;
  std::string sample;
  std::string base_sample;
  const auto gather = [&](ByteSpan from, std::string& to) {
    if (from.size() <= kPieceBytes * kPieces) {
      to = AsString(from);
      return;
    }
    for (size_t i = 0; i < kPieces; ++i) {
      const size_t at = (from.size() - kPieceBytes) / (kPieces - 1) * i / kMaxWidth * kMaxWidth;
      to += AsString(from.subspan(at, kPieceBytes));
    }
  };
  gather(raw, sample);
  if (!base.empty()) gather(base, base_sample);
  const ByteSpan bytes = AsBytes(sample);

  struct Candidate {
    ChunkEncoding encoding;
    size_t size = 0;
  };
  const auto measure = [&](Transform transform) -> Result<Candidate> {
    Candidate c;
    c.encoding.transform = transform;
    c.encoding.width = transform == Transform::kNone ? 1 : width;
    const size_t planes = Planes(transform, width);
    ByteSpan all = bytes;
    if (planes > 1) {
      m.Split(bytes, AsBytes(base_sample), c.encoding);
      all = m.planes;
    }
    const size_t count = bytes.size() / planes;
    for (size_t p = 0; p < planes; ++p) {
      const ByteSpan plane =
          p + 1 < planes ? all.subspan(p * count, count) : all.subspan(p * count);
      GODWIT_ASSIGN_OR_RETURN(const size_t huffman, m.Size(plane, PlaneCoding::kHuffman));
      GODWIT_ASSIGN_OR_RETURN(const size_t zstd, m.Size(plane, PlaneCoding::kZstd));
      // A coding must be worth its time: 3 % against storing, and 5 % more for the slower one.
      size_t best = plane.size();
      PlaneCoding coding = PlaneCoding::kRaw;
      if (huffman < best - best * 3 / 100) {
        best = huffman;
        coding = PlaneCoding::kHuffman;
      }
      if (zstd < best - best * 5 / 100) {
        best = zstd;
        coding = PlaneCoding::kZstd;
      }
      c.encoding.planes[p] = coding;
      c.size += best;
    }
    return c;
  };
  GODWIT_ASSIGN_OR_RETURN(Candidate best, measure(Transform::kNone));
  if (width == 1 || bytes.size() < width) return best.encoding;
  std::vector<Transform> others = {Transform::kPlanes};
  if (is_float) others.push_back(Transform::kRotatedPlanes);
  if (is_float && !base.empty()) others.push_back(Transform::kDeltaPlanes);
  for (Transform transform : others) {
    GODWIT_ASSIGN_OR_RETURN(const Candidate c, measure(transform));
    // A difference makes restoring slower and the base needed.
    const size_t margin = transform == Transform::kDeltaPlanes ? best.size * 3 / 100 : 0;
    if (c.size + margin < best.size) best = c;
  }
  return best.encoding;
}

struct ChunkDecoder::Impl {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  std::vector<std::byte> planes;
};

ChunkDecoder::ChunkDecoder() : impl_(std::make_unique<Impl>()) {}
ChunkDecoder::~ChunkDecoder() { ZSTD_freeDCtx(impl_->context); }

Status ChunkDecoder::Decode(ByteSpan payload, uint8_t transform, uint8_t width, ByteSpan base,
                            MutableByteSpan raw) {
  Impl& m = *impl_;
  if (!m.context) return ResourceExhaustedError("zstd: no memory for a decompressor");
  GODWIT_RETURN_IF_ERROR(CheckEncoding(transform, width));
  const Transform how{transform};
  if (how == Transform::kDeltaPlanes && base.size() != raw.size()) {
    return DataLossError(
        fmt::format("a difference to {} bytes gives {} bytes", base.size(), raw.size()));
  }
  const size_t planes = Planes(how, width);
  const size_t count = raw.size() / planes;
  const std::byte* at[kMaxWidth] = {};
  const std::byte* rest = nullptr;
  for (size_t p = 0; p < planes; ++p) {
    const bool last = p + 1 == planes;
    const size_t want = last ? raw.size() - p * count : count;
    // zstd also takes skippable frames and those of its drafts, where it was built with them.
    const bool standard =
        payload.size() > sizeof(kMagic) && std::memcmp(payload.data(), kMagic, sizeof(kMagic)) == 0;
    const unsigned long long size = standard
                                        ? ZSTD_getFrameContentSize(payload.data(), payload.size())
                                        : ZSTD_CONTENTSIZE_ERROR;
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN) {
      return DataLossError(
          fmt::format("frame {} of {}: not a zstd frame with a content size", p + 1, planes));
    }
    if (size != want) {
      return DataLossError(fmt::format("frame {} of {} says {} raw bytes, allowed are {}", p + 1,
                                       planes, size, want));
    }
    const size_t length = ZSTD_findFrameCompressedSize(payload.data(), payload.size());
    if (ZSTD_isError(length) || (last && length != payload.size())) {
      return DataLossError(
          fmt::format("{} bytes are not exactly {} zstd frames", payload.size(), planes - p));
    }
    const ByteSpan frame = payload.first(length);
    payload = payload.subspan(length);
    // Not before a size was believed: `raw` is as large as the plan says.
    if (planes > 1) m.planes.resize(raw.size());
    std::byte* const to = planes > 1 ? m.planes.data() + p * count : raw.data();
    const size_t n = ZSTD_decompressDCtx(m.context, to, want, frame.data(), frame.size());
    if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation) {
      return ResourceExhaustedError("zstd: no memory for a decompressor");
    }
    if (ZSTD_isError(n) || n != want) {
      return DataLossError(fmt::format("frame {} of {}: zstd: {}", p + 1, planes,
                                       ZSTD_isError(n) ? ZSTD_getErrorName(n) : "too few bytes"));
    }
    at[p] = to;
    rest = to + count;
  }
  if (planes == 1) return OkStatus();
  BestPlaneKernels().merge(how, width, at, base.data(), count, raw.data());
  const size_t done = count * planes;
  std::copy_n(rest, raw.size() - done, raw.begin() + static_cast<ptrdiff_t>(done));
  return OkStatus();
}

}  // namespace godwit::ckpt
