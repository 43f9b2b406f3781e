#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "ckpt/codec/planes.h"

namespace godwit::ckpt {

// How a plane is coded. Not stored: all three are standard zstd frames.
enum class PlaneCoding : uint8_t {
  kRaw = 0,      // raw blocks: noise
  kHuffman = 1,  // entropy coding alone: exponents, where matches cost more than they give
  kZstd = 2,     // zstd's level 1: repeated and sparse data
};

struct ChunkEncoding {
  Transform transform = Transform::kNone;
  uint8_t width = 1;  // bytes of an element: 1 with kNone; 2, 4 or 8 otherwise
  std::array<PlaneCoding, kMaxWidth> planes{};

  friend bool operator==(const ChunkEncoding&, const ChunkEncoding&) = default;
};

// A chunk's payload: one standard zstd frame for each plane, with its content size, side by side.
// So any zstd gives the planes, one after the other. What is left when the chunk's size is no
// multiple of the width follows the last plane's bytes in its frame.

// Working memory, kept between calls: the largest chunk's planes, and zstd's (below 2 MiB). Not
// thread-safe.
class ChunkEncoder {
 public:
  ChunkEncoder();
  ~ChunkEncoder();
  ChunkEncoder(const ChunkEncoder&) = delete;
  ChunkEncoder& operator=(const ChunkEncoder&) = delete;

  // Appends the payload to `out`. A plane that its coding doesn't make smaller by 1/64 is stored
  // raw. REQUIRES: raw below 4 GiB; a `base` for kDeltaPlanes alone, as large as `raw`.
  // RESOURCE_EXHAUSTED without memory.
  Status Encode(ByteSpan raw, ByteSpan base, const ChunkEncoding& encoding, std::string& out);

  // The encoding that makes samples of `raw` smallest: `width` is that of its elements (1, 2, 4,
  // 8), `is_float` allows rotated planes, and differences when `base` isn't empty (then it's as
  // large as `raw`). By size, with a margin for what takes more time. Costs about as much as
  // encoding 200 KiB a few times.
  Result<ChunkEncoding> Choose(ByteSpan raw, ByteSpan base, uint8_t width, bool is_float);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Working memory, kept between calls: the largest chunk's planes, and zstd's. Not thread-safe.
class ChunkDecoder {
 public:
  ChunkDecoder();
  ~ChunkDecoder();
  ChunkDecoder(const ChunkDecoder&) = delete;
  ChunkDecoder& operator=(const ChunkDecoder&) = delete;

  // Fills all of `raw` from a payload. DATA_LOSS (without the object's name) when the payload isn't
  // exactly the frames that transform, width and raw.size() ask for: sizes are looked at before
  // anything else; FAILED_PRECONDITION for a transform or width that this build doesn't know.
  // `base` is as large as `raw`, for kDeltaPlanes alone.
  Status Decode(ByteSpan payload, uint8_t transform, uint8_t width, ByteSpan base,
                MutableByteSpan raw);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace godwit::ckpt
