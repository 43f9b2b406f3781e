#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace godwit::ckpt {

// Standard zstd frames (RFC 8878), one per chunk, with the content size in the frame's header.
// Both classes keep their working memory between calls. Not thread-safe.

class FrameEncoder {
 public:
  explicit FrameEncoder(int level);
  ~FrameEncoder();
  FrameEncoder(const FrameEncoder&) = delete;
  FrameEncoder& operator=(const FrameEncoder&) = delete;
  // Appends one frame that holds `raw` to `out`. RESOURCE_EXHAUSTED without memory.
  Status Encode(ByteSpan raw, std::string& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class FrameDecoder {
 public:
  FrameDecoder();
  ~FrameDecoder();
  FrameDecoder(const FrameDecoder&) = delete;
  FrameDecoder& operator=(const FrameDecoder&) = delete;
  // Fills all of `raw` from exactly one frame: DATA_LOSS (without the object's name) when the bytes
  // are no frame, say another size than `raw` has, which is looked at before anything else, or
  // don't decode.
  Status Decode(ByteSpan frame, MutableByteSpan raw);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace godwit::ckpt
