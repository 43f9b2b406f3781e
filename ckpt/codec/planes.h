#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace godwit::ckpt {

// How elements become planes. Stored on disk.
enum class Transform : uint8_t {
  kNone = 0,           // one plane: the bytes as they are
  kPlanes = 1,         // the i-th plane has the i-th byte of each element, most significant first
  kRotatedPlanes = 2,  // each element is rotated left by a bit before: a float's exponent fills the
                       // first plane, its sign is the last bit of the last
  kDeltaPlanes = 3,    // of the difference to the base's element; both as floats, in the order of
                       // their values (sign and magnitude become two's complement), zigzag
};
inline constexpr uint8_t kMaxTransform = 3;
inline constexpr uint8_t kMaxWidth = 8;

// Splits elements into byte planes and puts them together again, exactly, whatever the bits are.
// `width` is 2, 4 or 8 bytes; elements are little-endian. `planes[i]` has room for `count` bytes.
// `base` has `count` elements, for kDeltaPlanes alone. No pointer needs to be aligned.
struct PlaneKernels {
  std::string_view name;  // "avx512"
  void (*split)(Transform transform, uint8_t width, const std::byte* elements,
                const std::byte* base, size_t count, std::byte* const* planes);
  void (*merge)(Transform transform, uint8_t width, const std::byte* const* planes,
                const std::byte* base, size_t count, std::byte* elements);
};

// The fastest that this processor can do.
const PlaneKernels& BestPlaneKernels();
// All that it can do; the portable ones come first. They give the same bytes.
std::vector<const PlaneKernels*> AllPlaneKernels();

}  // namespace godwit::ckpt
