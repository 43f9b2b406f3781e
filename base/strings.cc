#include "base/strings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <utility>

namespace godwit {

namespace {

Status Invalid(std::string_view text, std::string_view allowed) {
  constexpr size_t kShown = 100;
  return InvalidArgumentError("got '" + std::string(text.substr(0, kShown)) +
                              (text.size() > kShown ? "...'" : "'") +
                              ", allowed: " + std::string(allowed));
}

// All of `text` is one number.
template <typename T>
Result<T> Parse(std::string_view text, std::string_view allowed) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end) return Invalid(text, allowed);
  return value;
}

// "1.5GiB" -> "1.5", "GiB".
std::pair<std::string_view, std::string_view> SplitUnit(std::string_view text) {
  const size_t n = std::min(text.find_first_not_of("0123456789."), text.size());
  return {text.substr(0, n), text.substr(n)};
}

struct Unit {
  std::string_view name;
  uint64_t factor;
};

// number * unit, exact for whole numbers; nullopt for an unknown unit, a bad number, or too much.
std::optional<uint64_t> Scale(std::string_view text, std::span<const Unit> units, uint64_t limit) {
  const auto parts = SplitUnit(text);
  const std::string_view number = parts.first;
  const auto unit = std::find_if(units.begin(), units.end(),
                                 [&](const Unit& u) { return u.name == parts.second; });
  if (unit == units.end() || number.empty()) return std::nullopt;
  if (const Result<uint64_t> whole = ParseUint64(number); whole.ok()) {
    if (*whole > limit / unit->factor) return std::nullopt;
    return *whole * unit->factor;
  }
  const Result<double> value = ParseDouble(number);
  if (!value.ok()) return std::nullopt;
  const double scaled = *value * static_cast<double>(unit->factor);
  if (!(scaled < 0x1p53)) return std::nullopt;  // where doubles are no longer exact
  const auto rounded = static_cast<uint64_t>(std::llround(scaled));
  if (rounded > limit) return std::nullopt;
  return rounded;
}

// Three significant digits: "1.5", "12.3", "123".
std::string ThreeDigits(double v) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), v < 9.995 ? "%.2f" : v < 99.95 ? "%.1f" : "%.0f", v);
  std::string text = buffer;
  if (text.find('.') != std::string::npos) {
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

// Length of the valid UTF-8 sequence at the start of text[at...]; 0: none (RFC 3629).
size_t SequenceLength(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 && first < 0xf5   ? 4
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xc2 && first < 0xe0 ? 2
                                                        : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string Join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

Result<uint64_t> ParseUint64(std::string_view text) {
  return Parse<uint64_t>(text, "a whole number from 0 to 18446744073709551615");
}

Result<int64_t> ParseInt64(std::string_view text) {
  return Parse<int64_t>(text, "a whole number from -9223372036854775808 to 9223372036854775807");
}

Result<double> ParseDouble(std::string_view text) {
  constexpr std::string_view kAllowed = "a decimal number";
  GODWIT_ASSIGN_OR_RETURN(const double value, Parse<double>(text, kAllowed));
  if (!std::isfinite(value)) return Invalid(text, kAllowed);
  return value;
}

Result<Duration> ParseDuration(std::string_view text) {
  static constexpr Unit kUnits[] = {
      {"ns", 1},
      {"us", 1'000},
      {"ms", 1'000'000},
      {"s", 1'000'000'000},
      {"m", 60'000'000'000},
      {"h", 3'600'000'000'000},
      {"d", 86'400'000'000'000},
  };
  if (text == "0") return Duration(0);
  const std::optional<uint64_t> nanos = Scale(text, kUnits, INT64_MAX);
  if (!nanos) return Invalid(text, "a number with one of ns, us, ms, s, m, h, d, like 90s");
  return Duration(static_cast<int64_t>(*nanos));
}

Result<uint64_t> ParseBytes(std::string_view text) {
  static constexpr Unit kUnits[] = {
      {"", 1},
      {"B", 1},
      {"K", 1ull << 10},
      {"M", 1ull << 20},
      {"G", 1ull << 30},
      {"T", 1ull << 40},
      {"KiB", 1ull << 10},
      {"MiB", 1ull << 20},
      {"GiB", 1ull << 30},
      {"TiB", 1ull << 40},
      {"kB", 1'000},
      {"KB", 1'000},
      {"MB", 1'000'000},
      {"GB", 1'000'000'000},
      {"TB", 1'000'000'000'000},
  };
  const std::optional<uint64_t> bytes = Scale(text, kUnits, UINT64_MAX);
  if (!bytes) return Invalid(text, "bytes, or a number with one of KiB, MiB, GiB, TiB, like 16MiB");
  return *bytes;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::optional<std::string> NearestName(std::string_view name,
                                       std::span<const std::string> candidates) {
  std::optional<std::string> best;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(name.size(), candidate.size());
    // Any two options of one letter are one letter apart.
    const size_t limit = longer < 3 ? 0 : std::max<size_t>(1, longer / 3);
    const size_t distance = EditDistance(name, candidate);
    if (distance > limit || (best && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  if (best || name.size() < 3) return best;
  for (const std::string& candidate : candidates) {
    if (!candidate.starts_with(name)) continue;
    if (best) return std::nullopt;
    best = candidate;
  }
  return best;
}

std::string DidYouMean(std::string_view name, std::span<const std::string> candidates) {
  const std::optional<std::string> nearest = NearestName(name, candidates);
  return nearest ? "; did you mean '" + *nearest + "'?" : "";
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.5 would be shown as "1024".
  while (value >= (unit == 0 ? 1024 : 1023.5)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return std::to_string(bytes) + " B";
  return ThreeDigits(value) + " " + kUnits[unit];
}

std::string HumanDuration(Duration d) {
  const bool negative = d < Duration(0);
  const uint64_t nanos = negative ? -static_cast<uint64_t>(d.count()) : d.count();
  const std::string sign = negative ? "-" : "";
  const auto value = static_cast<double>(nanos);
  if (nanos == 0) return "0 s";
  if (nanos < 1'000) return sign + std::to_string(nanos) + " ns";
  if (value < 999.5e3) return sign + ThreeDigits(value / 1e3) + " us";
  if (value < 999.5e6) return sign + ThreeDigits(value / 1e6) + " ms";
  if (value < 59.95e9) return sign + ThreeDigits(value / 1e9) + " s";
  const uint64_t seconds = (nanos + 500'000'000) / 1'000'000'000;
  char buffer[64];
  if (seconds < 3600) {
    std::snprintf(buffer, sizeof(buffer), "%um%02us", static_cast<unsigned>(seconds / 60),
                  static_cast<unsigned>(seconds % 60));
  } else if (seconds < 86400) {
    std::snprintf(buffer, sizeof(buffer), "%uh%02um", static_cast<unsigned>(seconds / 3600),
                  static_cast<unsigned>(seconds / 60 % 60));
  } else {
    std::snprintf(buffer, sizeof(buffer), "%ud%02uh", static_cast<unsigned>(seconds / 86400),
                  static_cast<unsigned>(seconds / 3600 % 24));
  }
  return sign + buffer;
}

std::string Count(uint64_t n, std::string_view noun) {
  return std::to_string(n) + " " + std::string(noun) + (n == 1 ? "" : "s");
}

bool IsUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = SequenceLength(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string ValidUtf8(std::string text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = SequenceLength(text, at);
    if (length == 0) text[at] = '?';
    at += std::max<size_t>(length, 1);
  }
  return text;
}

std::string FormatUnixTime(Duration unix_time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(unix_time);
  const auto millis = std::chrono::floor<std::chrono::milliseconds>(unix_time - seconds);
  const time_t t = seconds.count();
  tm utc{};
  gmtime_r(&t, &utc);
  char date[32];
  strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  char buffer[48];
  std::snprintf(buffer, sizeof(buffer), "%s.%03dZ", date, static_cast<int>(millis.count()));
  return buffer;
}

}  // namespace godwit
