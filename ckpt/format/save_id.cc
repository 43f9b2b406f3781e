#include "ckpt/format/save_id.h"

#include <fmt/core.h>

#include "base/strings.h"

namespace godwit::ckpt {
namespace {

// Digits of `text` up to the next '-' or the end, behind `letter`.
Result<uint64_t> Field(std::string_view& text, char letter) {
  if (text.empty() || text.front() != letter) return InvalidArgumentError("");
  text.remove_prefix(1);
  const size_t end = std::min(text.find('-'), text.size());
  auto value = ParseUint64(text.substr(0, end));
  text.remove_prefix(end);
  if (!text.empty()) text.remove_prefix(1);
  return value;
}

}  // namespace

std::string ToString(const SaveId& id) {
  return fmt::format("t{:08}-s{:010}-a{:04}", id.term, id.step, id.attempt);
}

Result<SaveId> ParseSaveId(std::string_view text) {
  SaveId id;
  std::string_view rest = text;
  auto term = Field(rest, 't');
  if (term.ok()) {
    auto step = Field(rest, 's');
    if (step.ok()) {
      auto attempt = Field(rest, 'a');
      if (attempt.ok() && *attempt <= UINT32_MAX) {
        id = {*term, *step, static_cast<uint32_t>(*attempt)};
        // One spelling for each id: what doesn't print back the same (other padding) is refused.
        if (ToString(id) == text) return id;
      }
    }
  }
  return InvalidArgumentError(fmt::format(
      "save id '{}': allowed is t<8 digits>-s<10 digits>-a<4 digits>", text.substr(0, 64)));
}

}  // namespace godwit::ckpt
