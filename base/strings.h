#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace godwit {

std::string Join(std::span<const std::string> parts, std::string_view separator);
// n separators give n + 1 parts, empty ones included; "" gives one empty part.
std::vector<std::string> Split(std::string_view text, char separator);
std::string_view Trim(std::string_view text);  // ASCII white space at both ends

// Decimal digits only: no sign, space, or rest; a leading zero is fine. INVALID_ARGUMENT names the
// text and what is allowed.
Result<uint64_t> ParseUint64(std::string_view text);
// The same with an optional '-'.
Result<int64_t> ParseInt64(std::string_view text);
// A finite decimal number ("0.5", "1e-3"), whatever the locale.
Result<double> ParseDouble(std::string_view text);
// A number with a unit: "90s", "1.5h", "200ms", "2m", "1d", "10us", "5ns"; "0" needs none. Not
// negative.
Result<Duration> ParseDuration(std::string_view text);
// A whole number of bytes: "1024", "16MiB", "1.5GiB", "2GB" (powers of 1000 without the i; B, K, M,
// G, T alone are powers of 1024).
Result<uint64_t> ParseBytes(std::string_view text);

// Levenshtein: inserted, deleted and replaced bytes.
size_t EditDistance(std::string_view a, std::string_view b);
// The candidate nearest to `name`, if it's a slip of the keyboard (at most a third of the longer
// one's bytes, or one of three or more), else the only one that `name` (3 bytes or more) begins.
std::optional<std::string> NearestName(std::string_view name,
                                       std::span<const std::string> candidates);
// "; did you mean 'x'?" or "".
std::string DidYouMean(std::string_view name, std::span<const std::string> candidates);

// "0 B", "1023 B", "1.5 KiB", "23 MiB": three digits.
std::string HumanBytes(uint64_t bytes);
// "0 s", "250 ns", "1.5 ms", "42 s", "3m05s", "2h00m", "5d03h"; "-" before a negative one.
std::string HumanDuration(Duration d);

// "1 worker", "2 workers", "0 workers".
std::string Count(uint64_t n, std::string_view noun);

bool IsUtf8(std::string_view text);
// With '?' for each byte that is no part of valid UTF-8: what programs print and how files are
// called need not be, but a protobuf string must.
std::string ValidUtf8(std::string text);

// 2026-12-01T03:16:24.123Z; UTC.
std::string FormatUnixTime(Duration unix_time);

}  // namespace godwit
