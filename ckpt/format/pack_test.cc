#include "ckpt/format/pack.h"

#include "base/testing/matchers.h"
#include "ckpt/format/version.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

PackTail ATail() {
  PackTail t;
  t.save = {3, 120, 1};
  t.rank = 1;
  t.world_size = 3;
  t.snapshot_epoch = 2;
  t.snapshot_step = 120;
  t.plan_offset = 1000;
  t.plan_bytes = 50;
  t.index_offset = 1050;
  t.chunks = 2;
  t.raw_bytes = 5000;
  t.file_bytes = 1050 + 2 * kPackIndexEntryBytes + kPackTailBytes;
  return t;
}

TEST(PackFormatTest, TailAndHeaderComeBackAsTheyWere) {
  const std::string bytes = EncodePackTail(ATail());
  EXPECT_EQ(bytes.size(), kPackTailBytes);
  ASSERT_OK_AND_ASSIGN(const PackTail tail, ParsePackTail(AsBytes(bytes), "x"));
  EXPECT_EQ(tail, ATail());
  const std::string head = EncodePackHeader({{3, 120, 1}, 1, 3});
  EXPECT_EQ(head.size(), kPackHeaderBytes);
  ASSERT_OK_AND_ASSIGN(const PackHeader header, ParsePackHeader(AsBytes(head), "x"));
  EXPECT_EQ(header.save, (SaveId{3, 120, 1}));
  EXPECT_EQ(header.rank, 1u);
  EXPECT_EQ(header.world_size, 3u);
}

// docs/formats/checkpoint-v1.md, "Pack".
TEST(PackFormatTest, FieldsLieWhereTheFormatPageSays) {
  const auto u64 = [](const std::string& bytes, size_t at) {
    return ByteReader(AsBytes(bytes).subspan(at, 8), "field").ReadU64();
  };
  const auto u32 = [](const std::string& bytes, size_t at) {
    return ByteReader(AsBytes(bytes).subspan(at, 4), "field").ReadU32();
  };
  PackTail t = ATail();
  t.plan_hash = {11, 12};
  t.shared_hash = {13, 14};
  t.sources_digest = {15, 16};
  t.index_digest = {17, 18};
  t.must_understand = kFeatureReferences;
  t.may_ignore = 1 << 20;
  t.generation = 5;
  const std::string tail = EncodePackTail(t);
  ASSERT_EQ(tail.size(), 256u);
  EXPECT_EQ(tail.substr(0, 8), std::string("GWTAIL\0\n", 8));
  EXPECT_EQ(u32(tail, 8), 1u);
  EXPECT_EQ(u64(tail, 12), t.save.term);
  EXPECT_EQ(u64(tail, 32), t.must_understand);
  EXPECT_EQ(u64(tail, 40), t.may_ignore);
  EXPECT_EQ(u32(tail, 48), t.rank);
  EXPECT_EQ(u64(tail, 56), t.snapshot_epoch);
  EXPECT_EQ(u64(tail, 72), t.plan_hash.hi);
  EXPECT_EQ(u64(tail, 96), t.shared_hash.lo);
  EXPECT_EQ(u64(tail, 104), t.plan_offset);
  EXPECT_EQ(u64(tail, 128), t.index_offset);
  EXPECT_EQ(u64(tail, 144), t.sources_digest.hi);
  EXPECT_EQ(u64(tail, 160), t.index_digest.hi);
  EXPECT_EQ(u64(tail, 184), t.file_bytes);
  EXPECT_EQ(u32(tail, 192), t.generation);
  EXPECT_EQ(TailDigest(tail), DigestOf(AsBytes(tail).first(240)));

  PackIndexEntry e;
  e.chunk = 21;
  e.kind = ChunkKind::kDelta;
  e.transform = 3;
  e.width = 4;
  e.depth = 2;
  e.source = 6;
  e.source_chunk = 22;
  e.frame_offset = 23;
  e.digest = {24, 25};
  const std::string entry = EncodePackIndex({e});
  ASSERT_EQ(entry.size(), 64u);
  EXPECT_EQ(u64(entry, 0), 21u);
  EXPECT_EQ(entry.substr(16, 4), std::string("\x02\x03\x04\x02", 4));
  EXPECT_EQ(u32(entry, 20), 6u);
  EXPECT_EQ(u64(entry, 24), 22u);
  EXPECT_EQ(u64(entry, 32), 23u);
  EXPECT_EQ(u64(entry, 48), 24u);

  const std::string source = EncodePackSources({{{7, 8, 9}, 10, {26, 27}}});
  ASSERT_EQ(source.size(), 40u);
  EXPECT_EQ(u64(source, 0), 7u);
  EXPECT_EQ(u32(source, 16), 9u);
  EXPECT_EQ(u32(source, 20), 10u);
  EXPECT_EQ(u64(source, 24), 26u);
}

TEST(PackFormatTest, EveryFlippedBitOfTailAndHeaderIsDamage) {
  for (const std::string& good : {EncodePackTail(ATail()), EncodePackHeader({{3, 120, 1}, 1, 3})}) {
    for (size_t i = 0; i < good.size() * 8; ++i) {
      std::string bad = good;
      bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << i % 8));
      if (good.size() == kPackTailBytes) {
        EXPECT_THAT(ParsePackTail(AsBytes(bad), "x.pack"),
                    StatusIs(StatusCode::kDataLoss, HasSubstr("x.pack")));
      } else {
        EXPECT_THAT(ParsePackHeader(AsBytes(bad), "x.pack"),
                    StatusIs(StatusCode::kDataLoss, HasSubstr("x.pack")));
      }
    }
  }
}

// As a writer of another version, or a forger, would seal it.
std::string Sealed(std::string bytes, size_t at, uint8_t value) {
  bytes[at] = static_cast<char>(value);
  bytes.resize(bytes.size() - kSealBytes);
  ByteWriter out;
  out.Bytes(bytes);
  Seal(out);
  return out.Take();
}

TEST(PackFormatTest, AnotherVersionIsRefusedByNameAndNotCalledDamage) {
  // Version 2 seals its own bytes, version field included.
  EXPECT_THAT(ParsePackTail(AsBytes(Sealed(EncodePackTail(ATail()), 8, 2)), "x.pack"),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("x.pack"), HasSubstr("says v2, this build reads v1"))));
}

TEST(PackFormatTest, AFeatureThatMustBeUnderstoodIsRefused) {
  EXPECT_THAT(ParsePackTail(AsBytes(Sealed(EncodePackTail(ATail()), 32, 4)), "x.pack"),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("features 0x4")));
}

TEST(PackFormatTest, HostileSizesAreRefusedWhateverTheirDigestSays) {
  const auto refused = [](PackTail t) {
    return ParsePackTail(AsBytes(EncodePackTail(t)), "x.pack").status().code() ==
           StatusCode::kDataLoss;
  };
  EXPECT_FALSE(refused(ATail()));
  for (uint64_t huge : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 40}) {
    for (auto field : {&PackTail::plan_offset, &PackTail::plan_bytes, &PackTail::index_offset,
                       &PackTail::chunks, &PackTail::file_bytes}) {
      PackTail t = ATail();
      t.*field = huge;
      EXPECT_TRUE(refused(t));
    }
  }
  PackTail t = ATail();
  t.chunks = (uint64_t{1} << 63) / 24;  // times 48 wraps
  EXPECT_TRUE(refused(t));
  t = ATail();
  t.rank = 3;
  EXPECT_TRUE(refused(t));
  t = ATail();
  t.world_size = 0;
  EXPECT_TRUE(refused(t));
  t.world_size = kMaxWorldSize + 1;
  EXPECT_TRUE(refused(t));
  t = ATail();
  t.plan_offset = 10;
  EXPECT_TRUE(refused(t));
}

}  // namespace
}  // namespace godwit::ckpt
