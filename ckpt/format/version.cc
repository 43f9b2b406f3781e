#include "ckpt/format/version.h"

#include <fmt/core.h>

#include "base/strings.h"

namespace godwit::ckpt {

Status CheckVersion(std::string_view what, uint32_t got) {
  if (got == kFormatVersion) return OkStatus();
  return FailedPreconditionError(
      fmt::format("{} says v{}, this build reads v{}", what, got, kFormatVersion));
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

}  // namespace godwit::ckpt
