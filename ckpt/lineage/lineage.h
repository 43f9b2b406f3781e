#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "ckpt/format/save_id.h"
#include "ckpt/format/term.h"

namespace godwit::ckpt {

// A term whose file is there; no record: the file is damaged, `error` says how.
struct TermEntry {
  std::optional<TermRecord> record;
  std::string error;
};

// Which commits count, from the terms' records alone. Pure.
class Lineage {
 public:
  explicit Lineage(const std::map<uint64_t, TermEntry>& terms);

  uint64_t newest_term() const { return path_.empty() ? 0 : path_.front().term; }
  // Some term on the path goes on from a commit: there must be something to find.
  bool has_committed_parent() const { return has_parent_; }
  // Why the walk back through the parents stopped early; empty: it did not.
  const std::string& broken() const { return broken_; }

  // Why a commit is not in the lineage; empty: it is.
  std::string WhyNot(const SaveId& save) const;
  // The digest that a child recorded for this commit, if it is a child's parent.
  std::optional<Digest128> RecordedDigest(const SaveId& save) const;

 private:
  struct Stretch {
    uint64_t term = 0;
    uint64_t child = 0;           // the term that goes on from here; 0: none
    std::optional<Parent> last;   // what the child recorded: nothing after it counts
    std::optional<Parent> first;  // what this term goes on from
  };
  std::vector<Stretch> path_;  // newest first
  bool has_parent_ = false;
  std::string broken_;
};

}  // namespace godwit::ckpt
