#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace godwit {

// XXH3-128 with seed 0 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md). Finds
// accidents (torn, flipped, swapped bytes); no defence against a forger.
struct Digest128 {
  uint64_t hi = 0;
  uint64_t lo = 0;

  // 32 lower-case hexadecimal digits, hi first: xxHash's canonical form.
  std::string ToHex() const;
  // The reverse of ToHex; INVALID_ARGUMENT for anything else.
  static Result<Digest128> FromHex(std::string_view hex);

  friend bool operator==(const Digest128&, const Digest128&) = default;
  friend auto operator<=>(const Digest128&, const Digest128&) = default;
};

Digest128 DigestOf(ByteSpan bytes);

// The same digest, of bytes that come in pieces. Not thread-safe.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(DigestBuilder&&) noexcept;
  DigestBuilder& operator=(DigestBuilder&&) noexcept;

  void Update(ByteSpan bytes);
  // Of all bytes since the start or Reset(); more may follow.
  Digest128 Digest() const;
  void Reset();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace godwit

template <>
struct std::hash<godwit::Digest128> {
  size_t operator()(const godwit::Digest128& d) const noexcept { return d.lo ^ d.hi; }
};
