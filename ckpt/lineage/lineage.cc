#include "ckpt/lineage/lineage.h"

#include <fmt/core.h>

namespace godwit::ckpt {

Lineage::Lineage(const std::map<uint64_t, TermEntry>& terms) {
  if (terms.empty()) return;
  uint64_t term = terms.rbegin()->first;
  Stretch stretch{.term = term};
  // Ends: a record's parent is an older term (ParseTerm).
  for (;;) {
    const auto entry = terms.find(term);
    const bool known = entry != terms.end() && entry->second.record.has_value();
    if (known && entry->second.record->parent.term != 0) {
      stretch.first = entry->second.record->parent;
    }
    path_.push_back(stretch);
    if (!known) {
      broken_ = entry == terms.end() ? fmt::format("the record of term {} is missing", term)
                                     : fmt::format("the record of term {} is damaged: {}", term,
                                                   entry->second.error);
      return;
    }
    if (!stretch.first) return;
    has_parent_ = true;
    stretch = {.term = stretch.first->term, .child = term, .last = stretch.first};
    term = stretch.term;
  }
}

std::string Lineage::WhyNot(const SaveId& save) const {
  for (const Stretch& s : path_) {
    if (s.term != save.term) continue;
    if (s.last && save > s.last->save) {
      return fmt::format("dead branch of term {}: published after term {} had gone on from {}",
                         save.term, s.child, ToString(s.last->save));
    }
    if (s.first && save.step < s.first->save.step) {
      return fmt::format("below what term {} goes on from, {}", save.term, ToString(s.first->save));
    }
    return "";
  }
  return fmt::format("dead branch of term {}: no later term goes on from it", save.term);
}

std::optional<Digest128> Lineage::RecordedDigest(const SaveId& save) const {
  for (const Stretch& s : path_) {
    if (s.last && s.last->save == save) return s.last->manifest_digest;
  }
  return std::nullopt;
}

}  // namespace godwit::ckpt
