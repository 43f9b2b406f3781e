#include "ckpt/codec/chunk_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/testing/matchers.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;

std::string RandomBytes(std::mt19937_64& rng, size_t n) {
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(rng());
  return out;
}

// Weights as training leaves them: normal, of one scale.
std::string Floats(std::mt19937_64& rng, size_t n, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::string out(n * 4, '\0');
  for (size_t i = 0; i < n; ++i) {
    const float v = normal(rng);
    std::memcpy(out.data() + 4 * i, &v, 4);
  }
  return out;
}

MutableByteSpan Mutable(std::string& s) {
  return {reinterpret_cast<std::byte*>(s.data()), s.size()};
}

std::string RoundTrip(const std::string& raw, const std::string& base,
                      const ChunkEncoding& encoding) {
  ChunkEncoder encoder;
  std::string payload;
  EXPECT_OK(encoder.Encode(AsBytes(raw), AsBytes(base), encoding, payload));
  ChunkDecoder decoder;
  std::string back(raw.size(), '?');
  EXPECT_OK(decoder.Decode(AsBytes(payload), static_cast<uint8_t>(encoding.transform),
                           encoding.width, AsBytes(base), Mutable(back)));
  EXPECT_EQ(back, raw);
  return payload;
}

std::vector<ChunkEncoding> AllEncodings() {
  std::vector<ChunkEncoding> out;
  for (PlaneCoding coding : {PlaneCoding::kRaw, PlaneCoding::kHuffman, PlaneCoding::kZstd}) {
    ChunkEncoding e;
    e.planes.fill(coding);
    out.push_back(e);
    for (Transform t : {Transform::kPlanes, Transform::kRotatedPlanes, Transform::kDeltaPlanes}) {
      for (uint8_t width : {2, 4, 8}) {
        e.transform = t;
        e.width = width;
        out.push_back(e);
      }
    }
  }
  return out;
}

TEST(ChunkCodecTest, EveryBitPatternComesBack) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  for (const ChunkEncoding& e : AllEncodings()) {
    for (size_t n : {0, 1, 2, 3, 7, 8, 9, 31, 64, 1000, 4099, 131072, 131073, 1 << 20}) {
      const bool delta = e.transform == Transform::kDeltaPlanes;
      const std::string raw = RandomBytes(rng, n);
      RoundTrip(raw, delta ? RandomBytes(rng, n) : "", e);
      RoundTrip(std::string(n, '\x80'), delta ? raw : "", e);
    }
  }
}

TEST(ChunkCodecTest, SpecialFloatsComeBackAlsoAsDifferences) {
  std::string raw;
  for (uint32_t bits : {0u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00001u, 0xffffffffu, 1u,
                        0x80000001u, 0x7f7fffffu, 0xff7fffffu, 0x3f800000u}) {
    raw.append(reinterpret_cast<const char*>(&bits), 4);
  }
  std::string base(raw.rbegin(), raw.rend());
  for (const ChunkEncoding& e : AllEncodings()) {
    RoundTrip(raw, e.transform == Transform::kDeltaPlanes ? base : "", e);
    RoundTrip(raw, e.transform == Transform::kDeltaPlanes ? raw : "", e);
  }
}

TEST(ChunkCodecTest, AllKernelsGiveTheSameBytes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  const auto all = AllPlaneKernels();
  for (size_t count = 0; count < 300; ++count) {
    for (uint8_t width : {2, 4, 8}) {
      const std::string raw = RandomBytes(rng, count * width);
      const std::string base = RandomBytes(rng, count * width);
      for (Transform t : {Transform::kPlanes, Transform::kRotatedPlanes, Transform::kDeltaPlanes}) {
        std::string first;
        for (const PlaneKernels* k : all) {
          std::string planes(raw.size(), '\0');
          std::byte* at[kMaxWidth];
          for (size_t p = 0; p < width; ++p) at[p] = Mutable(planes).data() + p * count;
          k->split(t, width, AsBytes(raw).data(), AsBytes(base).data(), count, at);
          if (first.empty()) first = planes;
          EXPECT_EQ(planes, first) << k->name;
          std::string back(raw.size(), '\0');
          k->merge(t, width, at, AsBytes(base).data(), count, Mutable(back).data());
          EXPECT_EQ(back, raw) << k->name;
        }
      }
    }
  }
}

TEST(ChunkCodecTest, AnyZstdGivesThePlanes) {
  std::mt19937_64 rng(1);
  const std::string raw = Floats(rng, 100'000, 0.02f);
  ChunkEncoding e;
  e.transform = Transform::kRotatedPlanes;
  e.width = 4;
  e.planes[0] = PlaneCoding::kHuffman;
  const std::string payload = RoundTrip(raw, "", e);
  std::string planes(raw.size(), '\0');
  ASSERT_EQ(ZSTD_decompress(planes.data(), planes.size(), payload.data(), payload.size()),
            raw.size());
  uint32_t bits = 0;
  std::memcpy(&bits, raw.data(), 4);
  EXPECT_EQ(static_cast<uint8_t>(planes[0]), (bits >> 23) & 0xff) << "the first exponent";
}

TEST(ChunkCodecTest, WeightsShrinkToTheirMantissasAndLittleMore) {
  std::mt19937_64 rng(2);
  const std::string raw = Floats(rng, 1 << 18, 0.02f);
  ChunkEncoder encoder;
  ASSERT_OK_AND_ASSIGN(const ChunkEncoding e, encoder.Choose(AsBytes(raw), {}, 4, true));
  EXPECT_NE(e.transform, Transform::kNone);
  EXPECT_EQ(e.planes[0], PlaneCoding::kHuffman);
  EXPECT_EQ(e.planes[2], PlaneCoding::kRaw);
  EXPECT_EQ(e.planes[3], PlaneCoding::kRaw);
  EXPECT_LT(static_cast<double>(RoundTrip(raw, "", e).size()),
            0.86 * static_cast<double>(raw.size()));
}

TEST(ChunkCodecTest, ASmallStepIsWrittenAsADifference) {
  std::mt19937_64 rng(3);
  const std::string base = Floats(rng, 1 << 18, 0.02f);
  std::string raw = base;
  for (size_t i = 0; i < raw.size(); i += 4) {
    float v = 0;
    std::memcpy(&v, raw.data() + i, 4);
    v += 1e-6f * static_cast<float>(static_cast<int>(rng() % 64) - 32);
    std::memcpy(raw.data() + i, &v, 4);
  }
  ChunkEncoder encoder;
  ASSERT_OK_AND_ASSIGN(const ChunkEncoding e, encoder.Choose(AsBytes(raw), AsBytes(base), 4, true));
  EXPECT_EQ(e.transform, Transform::kDeltaPlanes);
  EXPECT_LT(RoundTrip(raw, base, e).size(), raw.size() * 2 / 3);
  // What has nothing to do with the base is not.
  const std::string other = Floats(rng, 1 << 18, 3.0f);
  ASSERT_OK_AND_ASSIGN(const ChunkEncoding full,
                       encoder.Choose(AsBytes(other), AsBytes(base), 4, true));
  EXPECT_NE(full.transform, Transform::kDeltaPlanes);
}

TEST(ChunkCodecTest, NoiseIsStoredAndZerosAreNot) {
  std::mt19937_64 rng(4);
  ChunkEncoder encoder;
  const std::string noise = RandomBytes(rng, 1 << 20);
  ASSERT_OK_AND_ASSIGN(const ChunkEncoding e, encoder.Choose(AsBytes(noise), {}, 4, true));
  EXPECT_EQ(e, ChunkEncoding{});
  EXPECT_LT(RoundTrip(noise, "", e).size(), noise.size() + 64);
  const std::string zeros(1 << 20, '\0');
  ASSERT_OK_AND_ASSIGN(const ChunkEncoding z, encoder.Choose(AsBytes(zeros), {}, 4, true));
  EXPECT_LT(RoundTrip(zeros, "", z).size(), 1000u);
}

TEST(ChunkCodecTest, DamageIsAnErrorOrOtherBytesNeverACrash) {
  std::mt19937_64 rng(5);
  const std::string raw = Floats(rng, 500, 0.02f);
  for (PlaneCoding coding : {PlaneCoding::kRaw, PlaneCoding::kHuffman, PlaneCoding::kZstd}) {
    ChunkEncoding e;
    e.transform = Transform::kPlanes;
    e.width = 4;
    e.planes.fill(coding);
    const std::string good = RoundTrip(raw, "", e);
    ChunkDecoder decoder;
    std::string out(raw.size(), '\0');
    for (size_t i = 0; i < good.size(); ++i) {
      for (uint8_t mask : {0x01, 0x80, 0xff}) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ mask);
        const Status s = decoder.Decode(AsBytes(bad), 1, 4, {}, Mutable(out));
        EXPECT_TRUE(s.ok() || s.code() == StatusCode::kDataLoss) << s.ToString();
      }
    }
    for (size_t n = 0; n < good.size(); ++n) {
      EXPECT_THAT(decoder.Decode(AsBytes(good).first(n), 1, 4, {}, Mutable(out)),
                  StatusIs(StatusCode::kDataLoss));
    }
    EXPECT_THAT(decoder.Decode(AsBytes(good + "x"), 1, 4, {}, Mutable(out)),
                StatusIs(StatusCode::kDataLoss));
  }
}

TEST(ChunkCodecTest, ABombIsRefusedByItsSize) {
  const std::string zeros(64 << 20, '\0');
  std::string bomb(ZSTD_compressBound(zeros.size()), '\0');
  bomb.resize(ZSTD_compress(bomb.data(), bomb.size(), zeros.data(), zeros.size(), 1));
  ChunkDecoder decoder;
  std::string out(1000, '\0');
  EXPECT_THAT(decoder.Decode(AsBytes(bomb), 0, 1, {}, Mutable(out)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("allowed are 1000")));
}

TEST(ChunkCodecTest, OnlyStandardFramesAreTaken) {
  ChunkDecoder decoder;
  std::string out;
  const std::string skippable("\x50\x2a\x4d\x18\x00\x00\x00\x00", 8);
  EXPECT_THAT(decoder.Decode(AsBytes(skippable), 0, 1, {}, Mutable(out)),
              StatusIs(StatusCode::kDataLoss));
  // Of zstd 0.7, by hand: header, a raw block of 5 bytes, the end.
  const std::string draft("\x27\xb5\x2f\xfd\x20\x05\x40\x00\x05hello\xc0\x00\x00", 17);
  out.resize(5);
  EXPECT_THAT(decoder.Decode(AsBytes(draft), 0, 1, {}, Mutable(out)),
              StatusIs(StatusCode::kDataLoss));
}

TEST(ChunkCodecTest, AnUnknownTransformIsNamed) {
  ChunkDecoder decoder;
  std::string out(8, '\0');
  for (const auto& [transform, width] : {std::pair{4, 4}, {1, 3}, {1, 0}, {0, 4}, {255, 255}}) {
    EXPECT_THAT(decoder.Decode({}, static_cast<uint8_t>(transform), static_cast<uint8_t>(width), {},
                               Mutable(out)),
                StatusIs(StatusCode::kFailedPrecondition,
                         HasSubstr("transform " + std::to_string(transform))));
  }
}

}  // namespace
}  // namespace godwit::ckpt
