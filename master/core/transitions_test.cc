#include "master/core/transitions.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace godwit::master {
namespace {

std::string Line(const Transition& t) {
  return std::string("| ") + PhaseName(t.from) + " | " + PhaseName(t.to) + " | " + t.condition +
         " |";
}

TEST(Transitions, TableInTheDocumentIsTheOneInTheCode) {
  std::ifstream in(std::string(GODWIT_SOURCE_DIR) + "/docs/protocols/preemption.md");
  ASSERT_TRUE(in.good());
  std::vector<std::string> documented;
  bool table = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("| from | to |")) {
      table = true;
      std::getline(in, line);  // |---|---|---|
    } else if (table && line.starts_with("| ")) {
      documented.push_back(line);
    } else {
      table = false;
    }
  }
  std::vector<std::string> coded;
  for (const Transition& t : Transitions()) coded.push_back(Line(t));
  EXPECT_EQ(documented, coded);
}

TEST(Transitions, EachStandsOnceAndEveryPhaseLeadsToTheEnd) {
  std::set<std::pair<Phase, Phase>> seen;
  for (const Transition& t : Transitions()) {
    EXPECT_TRUE(seen.emplace(t.from, t.to).second) << Line(t);
  }
  std::set<Phase> ends = {Phase::kEnded};
  for (size_t before = 0; before != ends.size();) {
    before = ends.size();
    for (const Transition& t : Transitions()) {
      if (ends.contains(t.to)) ends.insert(t.from);
    }
  }
  for (int p = 0; p <= static_cast<int>(Phase::kEnded); ++p) {
    EXPECT_TRUE(ends.contains(static_cast<Phase>(p))) << PhaseName(static_cast<Phase>(p));
  }
}

}  // namespace
}  // namespace godwit::master
