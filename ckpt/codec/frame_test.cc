#include "ckpt/codec/frame.h"

#include <string>

#include "base/random.h"
#include "base/testing/matchers.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(FrameTest, BytesComeBackAndIncompressibleOnesStayAFrame) {
  Random random(7);
  for (size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{1} << 20}) {
    std::string raw(n, '\0');
    for (char& c : raw) c = static_cast<char>(random.Next());
    FrameEncoder encoder(1);
    std::string frame = "before";
    ASSERT_OK(encoder.Encode(AsBytes(raw), frame));
    EXPECT_LE(frame.size(), n + n / 100 + 64);
    std::string back(n, 'x');
    FrameDecoder decoder;
    ASSERT_OK(decoder.Decode(AsBytes(frame).subspan(6),
                             {reinterpret_cast<std::byte*>(back.data()), back.size()}));
    EXPECT_EQ(back, raw);
  }
}

TEST(FrameTest, ABombIsRefusedBeforeItIsDecoded) {
  std::string bomb;
  FrameEncoder encoder(1);
  ASSERT_OK(encoder.Encode(AsBytes(std::string(64 << 20, '\0')), bomb));
  EXPECT_LT(bomb.size(), 10'000u);
  std::string raw(1000, 'x');
  const MutableByteSpan out{reinterpret_cast<std::byte*>(raw.data()), raw.size()};
  FrameDecoder decoder;
  EXPECT_THAT(
      decoder.Decode(AsBytes(bomb), out),
      StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("67108864"), HasSubstr("allowed are 1000"))));
  EXPECT_EQ(raw, std::string(1000, 'x'));
  // A frame that does not say its size, or lies about it, or has something behind it.
  std::string frame;
  ASSERT_OK(encoder.Encode(AsBytes(raw), frame));
  EXPECT_THAT(decoder.Decode(AsBytes(frame + "x"), out), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(decoder.Decode(AsBytes(frame).first(frame.size() - 1), out),
              StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(decoder.Decode({}, out), StatusIs(StatusCode::kDataLoss));
}

}  // namespace
}  // namespace godwit::ckpt
