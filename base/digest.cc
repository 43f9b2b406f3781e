#include "base/digest.h"

#include <xxhash.h>

#include "base/check.h"

namespace godwit {

namespace {
Digest128 FromXxh(XXH128_hash_t h) { return {.hi = h.high64, .lo = h.low64}; }
}  // namespace

std::string Digest128::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(32, '0');
  for (int i = 0; i < 16; ++i) {
    hex[15 - i] = kDigits[(hi >> (4 * i)) & 15];
    hex[31 - i] = kDigits[(lo >> (4 * i)) & 15];
  }
  return hex;
}

Result<Digest128> Digest128::FromHex(std::string_view hex) {
  Digest128 d;
  if (hex.size() == 32) {
    size_t i = 0;
    for (; i < 32; ++i) {
      const char c = hex[i];
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) break;
      uint64_t& half = i < 16 ? d.hi : d.lo;
      half = half << 4 | static_cast<uint64_t>(digit);
    }
    if (i == 32) return d;
  }
  return InvalidArgumentError("digest: got '" + std::string(hex.substr(0, 64)) +
                              "', allowed: 32 lower-case hexadecimal digits");
}

Digest128 DigestOf(ByteSpan bytes) { return FromXxh(XXH3_128bits(bytes.data(), bytes.size())); }

struct DigestBuilder::Impl {
  Impl() : state(XXH3_createState()) {
    GODWIT_CHECK(state != nullptr);
    Reset();
  }
  ~Impl() { XXH3_freeState(state); }
  void Reset() { GODWIT_CHECK(XXH3_128bits_reset(state) == XXH_OK); }
  XXH3_state_t* state;
};

DigestBuilder::DigestBuilder() : impl_(std::make_unique<Impl>()) {}
DigestBuilder::~DigestBuilder() = default;
DigestBuilder::DigestBuilder(DigestBuilder&&) noexcept = default;
DigestBuilder& DigestBuilder::operator=(DigestBuilder&&) noexcept = default;

void DigestBuilder::Update(ByteSpan bytes) {
  GODWIT_CHECK(XXH3_128bits_update(impl_->state, bytes.data(), bytes.size()) == XXH_OK);
}

Digest128 DigestBuilder::Digest() const { return FromXxh(XXH3_128bits_digest(impl_->state)); }
void DigestBuilder::Reset() { impl_->Reset(); }

}  // namespace godwit
