#include "ckpt/format/version.h"

#include <fmt/core.h>

#include "base/strings.h"

namespace godwit::ckpt {

Status CheckVersion(std::string_view what, uint32_t got) {
  if (got == kFormatVersion) return OkStatus();
  return FailedPreconditionError(
      fmt::format("{} says v{}, this build reads v{}", what, got, kFormatVersion));
}

Status CheckFeatures(std::string_view what, uint64_t must_understand, uint64_t known) {
  if ((must_understand & ~known) == 0) return OkStatus();
  return FailedPreconditionError(
      fmt::format("{}: needs features {:#x}, this build (v{}) knows {:#x}", what, must_understand,
                  kFormatVersion, known));
}

Status CheckFormatFile(std::string_view path, std::string_view bytes) {
  if (bytes == kFormatFileText) return OkStatus();
  constexpr std::string_view kPrefix = "godwit checkpoint v";
  if (bytes.starts_with(kPrefix) && bytes.ends_with('\n')) {
    const std::string_view digits = bytes.substr(kPrefix.size(), bytes.size() - kPrefix.size() - 1);
    if (auto version = ParseUint64(digits); version.ok() && *version != kFormatVersion) {
      return FailedPreconditionError(
          fmt::format("{}: FORMAT says v{}, this build reads v{}", path, *version, kFormatVersion));
    }
  }
  return DataLossError(fmt::format(
      "{}: not a version line of {} bytes; allowed: 'godwit checkpoint v{}' and a newline", path,
      bytes.size(), kFormatVersion));
}

void Seal(ByteWriter& out) {
  const Digest128 digest = DigestOf(out.bytes());
  out.U64(digest.hi);
  out.U64(digest.lo);
}

Status CheckSealed(ByteSpan bytes, std::string_view magic, std::string_view what) {
  constexpr uint64_t kVersionEnd = 12;
  if (bytes.size() < kVersionEnd + kSealBytes || AsString(bytes.first(8)) != magic) {
    return DataLossError(
        fmt::format("{}: {} bytes that don't begin with its magic", what, bytes.size()));
  }
  ByteReader version_in(bytes.subspan(8, 4), what);
  const uint32_t version = version_in.ReadU32();
  ByteReader seal(bytes.last(kSealBytes), what);
  const uint64_t hi = seal.ReadU64();
  const uint64_t lo = seal.ReadU64();
  // As if the version were ours.
  ByteWriter head;
  head.Bytes(magic);
  head.U32(kFormatVersion);
  DigestBuilder digest;
  digest.Update(head.bytes());
  digest.Update(bytes.subspan(kVersionEnd, bytes.size() - kVersionEnd - kSealBytes));
  const bool sealed = digest.Digest() == Digest128{hi, lo};
  if (version != kFormatVersion && !sealed) return CheckVersion(what, version);
  if (version == kFormatVersion && sealed) return OkStatus();
  return DataLossError(fmt::format("{} is damaged: digest {}, it says {}; version {}", what,
                                   digest.Digest().ToHex(), Digest128{hi, lo}.ToHex(), version));
}

}  // namespace godwit::ckpt
