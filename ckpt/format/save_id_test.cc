#include "ckpt/format/save_id.h"

#include "base/testing/matchers.h"
#include "ckpt/format/term.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;

TEST(SaveIdTest, TextSortsAsIdsDoAndComesBack) {
  const std::vector<SaveId> ids = {{1, 9, 2}, {1, 10, 1}, {1, 10, 2}, {2, 0, 0}, {12, 5, 9999}};
  EXPECT_EQ(ToString(SaveId{3, 120, 1}), "t00000003-s0000000120-a0001");
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_THAT(ParseSaveId(ToString(ids[i])), IsOkAndHolds(ids[i]));
    if (i > 0) {
      EXPECT_LT(ids[i - 1], ids[i]);
      EXPECT_LT(ToString(ids[i - 1]), ToString(ids[i]));
    }
  }
  const SaveId large{~uint64_t{0}, ~uint64_t{0}, ~uint32_t{0}};
  EXPECT_THAT(ParseSaveId(ToString(large)), IsOkAndHolds(large));
}

TEST(SaveIdTest, OnlyTheOneSpellingIsAccepted) {
  for (const char* text :
       {"", "t", "t1-s1-a1", "t00000003-s0000000120-a0001x", "t00000003-s0000000120-a0001-",
        "t00000003-s0000000120", "t000000003-s0000000120-a0001", "T00000003-s0000000120-a0001",
        "t00000003-s0000000120-a4294967296", "t-0000003-s0000000120-a0001",
        "t00000003-s99999999999999999999-a0001", ".tmp-t00000003-00"}) {
    EXPECT_THAT(ParseSaveId(text), StatusIs(StatusCode::kInvalidArgument)) << text;
  }
  EXPECT_THAT(ParseTermName("t00000003"), IsOkAndHolds(3u));
  for (const char* text : {"t00000000", "t3", "t00000003.claim", "t000000003", ""}) {
    EXPECT_THAT(ParseTermName(text), StatusIs(StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace godwit::ckpt
