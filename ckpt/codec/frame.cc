#include "ckpt/codec/frame.h"

#include <fmt/core.h>
#include <zstd.h>

namespace godwit::ckpt {

struct FrameEncoder::Impl {
  ZSTD_CCtx* context = nullptr;
  int level = 1;
};

FrameEncoder::FrameEncoder(int level) : impl_(std::make_unique<Impl>()) {
  impl_->context = ZSTD_createCCtx();
  impl_->level = level;
}

FrameEncoder::~FrameEncoder() { ZSTD_freeCCtx(impl_->context); }

Status FrameEncoder::Encode(ByteSpan raw, std::string& out) {
  if (!impl_->context) return ResourceExhaustedError("zstd: no memory for a compressor");
  const size_t before = out.size();
  out.resize(before + ZSTD_compressBound(raw.size()));
  const size_t n = ZSTD_compressCCtx(impl_->context, out.data() + before, out.size() - before,
                                     raw.data(), raw.size(), impl_->level);
  if (ZSTD_isError(n)) {
    out.resize(before);
    return ResourceExhaustedError(fmt::format("zstd: {} bytes at level {}: {}", raw.size(),
                                              impl_->level, ZSTD_getErrorName(n)));
  }
  out.resize(before + n);
  return OkStatus();
}

struct FrameDecoder::Impl {
  ZSTD_DCtx* context = nullptr;
};

FrameDecoder::FrameDecoder() : impl_(std::make_unique<Impl>()) {
  impl_->context = ZSTD_createDCtx();
}

FrameDecoder::~FrameDecoder() { ZSTD_freeDCtx(impl_->context); }

Status FrameDecoder::Decode(ByteSpan frame, MutableByteSpan raw) {
  if (!impl_->context) return ResourceExhaustedError("zstd: no memory for a decompressor");
  const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN) {
    return DataLossError("not a zstd frame with a content size");
  }
  if (size != raw.size()) {
    return DataLossError(
        fmt::format("the frame says {} raw bytes, allowed are {}", size, raw.size()));
  }
  const size_t length = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(length) || length != frame.size()) {
    return DataLossError(fmt::format("{} bytes are not exactly one zstd frame", frame.size()));
  }
  const size_t n =
      ZSTD_decompressDCtx(impl_->context, raw.data(), raw.size(), frame.data(), frame.size());
  if (ZSTD_isError(n) || n != raw.size()) {
    return DataLossError(
        fmt::format("zstd: {}", ZSTD_isError(n) ? ZSTD_getErrorName(n) : "too few bytes"));
  }
  return OkStatus();
}

}  // namespace godwit::ckpt
