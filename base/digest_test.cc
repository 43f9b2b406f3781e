#include "base/digest.h"

#include <algorithm>
#include <string>

#include "base/random.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;

// The canonical form that libxxhash 0.8.1 gives; files on disk depend on them.
TEST(DigestTest, IsXxh3WithSeedZero) {
  EXPECT_EQ(DigestOf({}).ToHex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(DigestOf(AsBytes("godwit")).ToHex(), "4e742747b6e58c2bf7f5faee46ed2d56");
}

TEST(DigestTest, PiecesGiveTheDigestOfTheWhole) {
  const uint64_t seed = SystemRandom64();
  SCOPED_TRACE(seed);
  Random random(seed);
  std::string text(20000, '\0');
  for (char& c : text) c = static_cast<char>(random.Next());
  DigestBuilder builder;
  for (size_t i = 0; i < text.size();) {
    const size_t n = std::min<size_t>(text.size() - i, random.Below(1500));
    builder.Update(AsBytes(text).subspan(i, n));
    i += n;
  }
  EXPECT_EQ(builder.Digest(), DigestOf(AsBytes(text)));
  builder.Reset();
  EXPECT_EQ(builder.Digest(), DigestOf({}));
}

TEST(DigestTest, OneFlippedBitChangesIt) {
  std::string text(4096, 'x');
  const Digest128 before = DigestOf(AsBytes(text));
  text[4000] ^= 1;
  EXPECT_NE(DigestOf(AsBytes(text)), before);
}

TEST(DigestTest, HexGoesBothWays) {
  const Digest128 d{.hi = 0x0123456789abcdef, .lo = 0xfedcba9876543210};
  EXPECT_EQ(d.ToHex(), "0123456789abcdeffedcba9876543210");
  EXPECT_THAT(Digest128::FromHex(d.ToHex()), IsOkAndHolds(d));
  for (const char* bad :
       {"", "0123456789abcdeffedcba987654321", "0123456789abcdeffedcba98765432100",
        "0123456789ABCDEFfedcba9876543210", "0123456789abcdeg0000000000000000"}) {
    EXPECT_THAT(Digest128::FromHex(bad), StatusIs(StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace godwit
