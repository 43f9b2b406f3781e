#include "base/bytes.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;

TEST(BytesTest, IntegersAreLittleEndian) {
  ByteWriter w;
  w.U16(0x0102);
  w.U32(0x03040506);
  w.U64(0x0708090a0b0c0d0e);
  EXPECT_EQ(w.str(), std::string("\x02\x01\x06\x05\x04\x03\x0e\x0d\x0c\x0b\x0a\x09\x08\x07"));
}

TEST(BytesTest, WhatWasWrittenIsReadBack) {
  ByteWriter w;
  w.U8(255);
  w.U16(65535);
  w.U32(0xffffffff);
  w.U64(0xffffffffffffffff);
  w.I64(std::numeric_limits<int64_t>::min());
  w.F64(-0.0);
  w.String(std::string("a\0b", 3));
  w.Bytes("xyz");
  ByteReader r(w.bytes());
  EXPECT_EQ(r.ReadU8(), 255);
  EXPECT_EQ(r.ReadU16(), 65535);
  EXPECT_EQ(r.ReadU32(), 0xffffffff);
  EXPECT_EQ(r.ReadU64(), 0xffffffffffffffff);
  EXPECT_EQ(r.ReadI64(), std::numeric_limits<int64_t>::min());
  EXPECT_TRUE(std::signbit(r.ReadF64()));
  EXPECT_EQ(r.ReadString(3), std::string("a\0b", 3));
  EXPECT_EQ(AsString(r.ReadBytes(3)), "xyz");
  EXPECT_OK(r.Finish());
}

TEST(BytesTest, AlignPadsWithZerosToTheBoundary) {
  ByteWriter w;
  w.Align(8);
  EXPECT_EQ(w.size(), 0u);
  w.U8(1);
  w.Align(8);
  EXPECT_EQ(w.str(), std::string("\1\0\0\0\0\0\0\0", 8));
  w.Align(8);
  EXPECT_EQ(w.size(), 8u);
}

TEST(BytesTest, PatchOverwritesOnlyWhatIsThere) {
  ByteWriter w;
  w.U64(0);
  w.U8(7);
  w.PatchU32(4, 0x01020304);
  EXPECT_EQ(w.str(), std::string("\0\0\0\0\4\3\2\1\7", 9));
  EXPECT_DEATH(w.PatchU64(2, 0), "CHECK failed");
  EXPECT_DEATH(w.PatchU64(SIZE_MAX - 3, 0), "CHECK failed");
}

TEST(ByteReaderTest, TheFirstErrorSticks) {
  ByteReader r(AsBytes("abcde"), "manifest");
  EXPECT_EQ(r.ReadU32(), 0x64636261u);
  EXPECT_EQ(r.ReadU64(), 0u);
  EXPECT_EQ(r.ReadU8(), 0);  // there is one more byte, but it means nothing any more
  EXPECT_THAT(r.status(), StatusIs(StatusCode::kDataLoss,
                                   "manifest: ends early: 8 bytes wanted, 1 left at offset 4"));
  EXPECT_THAT(r.Finish(), StatusIs(StatusCode::kDataLoss));
}

TEST(ByteReaderTest, AStringLongerThanAllowedIsRefusedBeforeItIsCopied) {
  ByteWriter w;
  w.U32(0xffffffff);
  ByteReader r(w.bytes());
  EXPECT_EQ(r.ReadString(10), "");
  EXPECT_THAT(r.status(), StatusIs(StatusCode::kDataLoss, HasSubstr("allowed: 10")));
}

TEST(ByteReaderTest, HugeLengthsDoNotOverflow) {
  ByteReader r(AsBytes("abc"));
  r.Skip(1);
  EXPECT_TRUE(r.ReadBytes(SIZE_MAX).empty());
  EXPECT_FALSE(r.ok());
}

TEST(ByteReaderTest, LeftOverBytesAreAnError) {
  ByteReader r(AsBytes("abc"));
  r.ReadU8();
  EXPECT_THAT(r.Finish(), StatusIs(StatusCode::kDataLoss, HasSubstr("2 bytes left over")));
}

TEST(ByteReaderTest, RandomReadsOfRandomBytesStayInside) {
  const uint64_t seed = SystemRandom64();
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int round = 0; round < 2000; ++round) {
    // On the heap and exactly as long, so that the address sanitizer sees a step outside.
    const std::vector<std::byte> bytes(random.Below(32), std::byte(random.Below(256)));
    ByteReader r(bytes);
    for (int i = 0; i < 8; ++i) {
      switch (random.Below(4)) {
        case 0:
          r.ReadU64();
          break;
        case 1:
          r.ReadString(random.Below(64));
          break;
        case 2:
          r.ReadBytes(random.Below(16));
          break;
        default:
          r.ReadU16();
      }
      ASSERT_LE(r.offset(), bytes.size());
    }
  }
}

}  // namespace
}  // namespace godwit
