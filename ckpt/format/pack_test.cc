#include "ckpt/format/pack.h"

#include "base/memory_file_system.h"
#include "base/random.h"
#include "base/testing/matchers.h"
#include "ckpt/codec/frame.h"
#include "ckpt/engine/restore.h"
#include "ckpt/format/version.h"
#include "ckpt/io/pack_reader.h"
#include "ckpt/testing/toy_rank.h"

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
  // Version 1 seals its own bytes, version field included.
  EXPECT_THAT(ParsePackTail(AsBytes(Sealed(EncodePackTail(ATail()), 8, 1)), "x.pack"),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("x.pack"), HasSubstr("says v1, this build reads v0"))));
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

// A file whose digests all fit, but whose index or frames are not what the plan allows.
class HostilePackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(OpenCheckpointDir(fs_, "/c", true));
    ASSERT_OK(BeginTerm(fs_, "/c", "job", 1));
    testing::ToyJob job(1, 1, 1, 0);
    ASSERT_OK(job.Stage(1));
    ASSERT_OK(job.Save(fs_, "/c", save_));
    path_ = PackPath("/c", save_, 0);
    ASSERT_OK_AND_ASSIGN(const PackTail tail, ReadPackTail(fs_, path_));
    tail_ = tail;
    ASSERT_OK_AND_ASSIGN(auto reader, PackReader::Open(fs_, path_, tail_));
    index_ = reader->index();
    ASSERT_OK_AND_ASSIGN(file_, fs_.ReadFile(path_, 1 << 30));
  }
  // With another index, all digests made to fit.
  Status OpenWith(const std::vector<PackIndexEntry>& index) {
    const std::string bytes = EncodePackIndex(index);
    PackTail tail = tail_;
    tail.index_digest = DigestOf(AsBytes(bytes));
    tail.chunks = index.size();
    tail.file_bytes = tail.index_offset + bytes.size() + kPackTailBytes;
    std::string file = file_.substr(0, tail.index_offset) + bytes + EncodePackTail(tail);
    static_cast<void>(fs_.Unlink("/hostile"));
    GODWIT_RETURN_IF_ERROR(WriteFileExclusive(fs_, "/hostile", AsBytes(file), Durability::kNone));
    GODWIT_ASSIGN_OR_RETURN(auto reader, PackReader::Open(fs_, "/hostile", tail));
    std::string raw;
    for (const PackIndexEntry& e : reader->index()) {
      GODWIT_RETURN_IF_ERROR(reader->ReadChunk(e.chunk, raw));
    }
    return OkStatus();
  }

  MemoryFileSystem fs_;
  const SaveId save_{1, 1, 1};
  std::string path_;
  PackTail tail_;
  std::vector<PackIndexEntry> index_;
  std::string file_;
};

TEST_F(HostilePackTest, AnIndexThatThePlanDoesNotAllowIsRefused) {
  ASSERT_OK(OpenWith(index_));
  ASSERT_GE(index_.size(), 3u);
  for (size_t i = 0; i < index_.size(); ++i) {
    for (uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0}}) {
      for (auto field : {&PackIndexEntry::chunk, &PackIndexEntry::raw_bytes,
                         &PackIndexEntry::frame_offset, &PackIndexEntry::frame_bytes}) {
        auto bad = index_;
        if (bad[i].*field == value) continue;
        bad[i].*field = value;
        EXPECT_THAT(OpenWith(bad), StatusIs(StatusCode::kDataLoss, HasSubstr("/hostile")))
            << i << " " << value;
      }
    }
  }
  auto fewer = index_;
  fewer.pop_back();
  EXPECT_THAT(OpenWith(fewer), StatusIs(StatusCode::kDataLoss));
  auto twice = index_;
  twice[1] = twice[0];
  EXPECT_THAT(OpenWith(twice), StatusIs(StatusCode::kDataLoss));
  auto swapped = index_;
  std::swap(swapped[0].digest, swapped[1].digest);
  EXPECT_THAT(OpenWith(swapped), StatusIs(StatusCode::kDataLoss, HasSubstr("digest")));
}

TEST_F(HostilePackTest, EveryCutOfAPackIsTorn) {
  for (uint64_t n = 0; n < file_.size(); n += 1 + n / 50) {
    static_cast<void>(fs_.Unlink("/cut"));
    ASSERT_OK(WriteFileExclusive(fs_, "/cut", AsBytes(file_).first(n), Durability::kNone));
    EXPECT_THAT(ReadPackTail(fs_, "/cut"), StatusIs(StatusCode::kDataLoss, HasSubstr("/cut")));
  }
}

}  // namespace
}  // namespace godwit::ckpt
