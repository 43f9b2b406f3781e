#include "ckpt/format/plan.h"

#include <map>

#include "base/random.h"
#include "base/testing/matchers.h"
#include "ckpt/testing/toy_state.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;
using testing::ToyState;

PlanEntry Tensor(std::string name, std::vector<int64_t> shape,
                 Placement placement = Placement::kReplicated,
                 Stability stability = Stability::kStable) {
  PlanEntry e;
  e.name = std::move(name);
  e.dtype = DType::kF32;
  e.shape = std::move(shape);
  e.bytes = 4;
  for (int64_t d : e.shape) e.bytes *= static_cast<uint64_t>(d);
  e.placement = placement;
  e.stability = stability;
  return e;
}

PlanEntry Blob(std::string name, uint64_t max, Placement placement = Placement::kReplicated) {
  PlanEntry e;
  e.name = std::move(name);
  e.is_blob = true;
  e.bytes = max;
  e.stability = Stability::kVolatile;
  e.placement = placement;
  return e;
}

// Each byte of each entry lies in exactly one chunk, and no two chunks overlap.
void ExpectCovers(const Plan& plan) {
  std::vector<uint64_t> covered(plan.entries().size(), 0);
  uint64_t end = 0;
  for (uint64_t i = 0; i < plan.chunks(); ++i) {
    const Chunk chunk = plan.chunk(i);
    EXPECT_EQ(chunk.index, i);
    EXPECT_EQ(chunk.offset % 64, 0u);
    EXPECT_GE(chunk.offset, end);
    end = chunk.offset + chunk.bytes;
    EXPECT_LE(end, plan.data_bytes());
    EXPECT_TRUE(chunk.is_blob || chunk.bytes <= kChunkBytes);
    EXPECT_LE(chunk.bytes, plan.max_chunk_bytes());
    EXPECT_EQ(chunk.placement == Placement::kReplicated, i < plan.replicated_chunks());
    uint64_t in_chunk = 0;
    for (uint32_t s = 0; s < chunk.segments; ++s) {
      const Segment segment = plan.segment(chunk, s);
      const PlanEntry& e = plan.entries()[segment.entry];
      EXPECT_EQ(segment.chunk_offset, in_chunk);
      EXPECT_EQ(segment.entry_offset, covered[segment.entry]);
      EXPECT_EQ(e.placement, chunk.placement);
      EXPECT_EQ(e.stability, chunk.stability);
      EXPECT_EQ(e.is_blob, chunk.is_blob);
      in_chunk += segment.bytes;
      covered[segment.entry] += segment.bytes;
    }
    EXPECT_EQ(in_chunk, chunk.bytes);
  }
  for (size_t i = 0; i < covered.size(); ++i) EXPECT_EQ(covered[i], plan.entries()[i].bytes);
}

TEST(PlanTest, EachByteOfStateIsInExactlyOneChunk) {
  ToyState state(0, 1);
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanOf(state.List()));
  ExpectCovers(plan);
  EXPECT_EQ(plan.tensor_bytes(), state.bytes());
  EXPECT_EQ(plan.volatile_bytes(), 33u * 4);
}

TEST(PlanTest, EachByteOfRandomStateIsInExactlyOneChunk) {
  const uint64_t seed = SystemRandom64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<PlanEntry> entries;
    const uint64_t n = random.Below(60);
    for (uint64_t i = 0; i < n; ++i) {
      const auto placement = random.OneIn(3) ? Placement::kPerRank : Placement::kReplicated;
      const auto stability = random.OneIn(4) ? Stability::kVolatile : Stability::kStable;
      const std::string name = "e" + std::to_string(i);
      const auto size =
          static_cast<int64_t>(random.OneIn(3) ? random.Below(5'000'000) : random.Below(100'000));
      if (random.OneIn(5)) {
        entries.push_back(Blob(name, random.Below(100000), placement));
      } else {
        entries.push_back(Tensor(name, {size}, placement, stability));
      }
    }
    ASSERT_OK_AND_ASSIGN(const Plan plan, Plan::Make(entries));
    ExpectCovers(plan);
    ASSERT_OK_AND_ASSIGN(const Plan again, Plan::Parse(AsBytes(plan.serialized()), "plan"));
    EXPECT_EQ(again.hash(), plan.hash());
    EXPECT_EQ(again.shared_hash(), plan.shared_hash());
    EXPECT_EQ(again.chunks(), plan.chunks());
    const uint32_t world = 1 + static_cast<uint32_t>(random.Below(5));
    uint64_t shares = 0;
    for (uint32_t r = 0; r < world; ++r) {
      uint64_t mine = 0;
      for (uint64_t i = 0; i < plan.chunks(); ++i) {
        mine += plan.Owner(plan.chunk(i), r, world) == r;
      }
      EXPECT_EQ(plan.ShareChunks(r, world), mine);
      shares += mine;
    }
    EXPECT_EQ(shares,
              plan.replicated_chunks() + world * (plan.chunks() - plan.replicated_chunks()));
  }
}

TEST(PlanTest, SmallTensorsShareChunksEvenBetweenLargeOnes) {
  std::vector<PlanEntry> entries;
  for (int i = 0; i < 20; ++i) {
    entries.push_back(Tensor("large" + std::to_string(i), {1 << 18}));
    entries.push_back(Tensor("small" + std::to_string(i), {100}));
  }
  ASSERT_OK_AND_ASSIGN(const Plan plan, Plan::Make(entries));
  EXPECT_EQ(plan.chunks(), 21u);
}

TEST(PlanTest, ReplicatedChunksAreTheSameOnRanksWhoseOwnStateDiffers) {
  ASSERT_OK_AND_ASSIGN(const Plan a, Plan::Make({Tensor("own", {9}, Placement::kPerRank),
                                                 Tensor("w", {700'000}), Tensor("b", {3})}));
  ASSERT_OK_AND_ASSIGN(
      const Plan b, Plan::Make({Tensor("w", {700'000}),
                                Tensor("other", {5, 5}, Placement::kPerRank), Tensor("b", {3})}));
  EXPECT_NE(a.hash(), b.hash());
  EXPECT_EQ(a.shared_hash(), b.shared_hash());
  ASSERT_EQ(a.replicated_chunks(), b.replicated_chunks());
  for (uint64_t i = 0; i < a.replicated_chunks(); ++i) {
    EXPECT_EQ(a.chunk(i).bytes, b.chunk(i).bytes);
    EXPECT_EQ(a.Describe(a.chunk(i)), b.Describe(b.chunk(i)));
  }
}

TEST(PlanTest, RefusesStateByNameOfTheEntry) {
  EXPECT_THAT(Plan::Make({Tensor("a", {2}), Tensor("a", {2})}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'a'")));
  EXPECT_THAT(Plan::Make({Tensor("", {2})}), StatusIs(StatusCode::kInvalidArgument));
  PlanEntry e = Tensor("w", {2});
  e.bytes = 9;
  EXPECT_THAT(Plan::Make({e}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("give 8")));
  e = Tensor("w", {2});
  e.shape = {-2};
  EXPECT_THAT(Plan::Make({e}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("-2")));
  e = Tensor("w", {2});
  e.shard = {{4}, {3}};
  EXPECT_THAT(Plan::Make({e}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("shard")));
  e.shard = {{5}, {3}};
  EXPECT_THAT(Plan::Make({e}), IsOk());
  e = Tensor("w", {2});
  e.dtype = static_cast<DType>(99);
  EXPECT_THAT(Plan::Make({e}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("99")));
  EXPECT_THAT(Plan::Make({Blob("b", kMaxBlobBytes + 1)}), StatusIs(StatusCode::kInvalidArgument));
}

TEST(PlanTest, ShapesThatOverflowAreRefusedBeforeAllocating) {
  PlanEntry e = Tensor("w", {1});
  e.shape = {int64_t{1} << 40, int64_t{1} << 40};
  e.bytes = 0;
  EXPECT_THAT(Plan::Make({e}), StatusIs(StatusCode::kInvalidArgument));
  e.shape = {int64_t{1} << 62, 4};  // 2^64: wraps to 0
  EXPECT_THAT(Plan::Make({e}), StatusIs(StatusCode::kInvalidArgument));
  e.shape = {0, int64_t{1} << 62, int64_t{1} << 62};  // but this is empty
  EXPECT_THAT(Plan::Make({e}), IsOk());
}

TEST(PlanTest, ALargePlanCostsNoMemoryPerChunk) {
  // 60 TiB: 63 million chunks.
  ASSERT_OK_AND_ASSIGN(const Plan plan, Plan::Make({Tensor("w", {15ll << 40})}));
  EXPECT_EQ(plan.chunks(), 60ull << 20);
  EXPECT_EQ(plan.segment(plan.chunk(1 << 20), 0).entry_offset, 1ull << 40);
}

TEST(PlanTest, TensorsBeyond2To31ElementsKeepTheirOffsets) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, Plan::Make({Tensor("w", {3'000'000'000})}));
  const Chunk last = plan.chunk(plan.chunks() - 1);
  const Segment s = plan.segment(last, 0);
  EXPECT_EQ(s.entry_offset + s.bytes, 12'000'000'000u);
}

TEST(PlanTest, EveryCutAndFlippedByteIsRefusedOrHarmless) {
  ToyState state(0, 1);
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanOf(state.List()));
  const std::string& good = plan.serialized();
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_THAT(Plan::Parse(AsBytes(good).first(n), "plan"), StatusIs(StatusCode::kDataLoss)) << n;
  }
  for (size_t i = 0; i < good.size(); ++i) {
    for (uint8_t mask : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ mask);
      auto parsed = Plan::Parse(AsBytes(bad), "plan");  // a flipped letter of a name may pass
      if (parsed.ok()) {
        EXPECT_NE(parsed->hash(), plan.hash());
      } else {
        EXPECT_THAT(parsed.status().message(), HasSubstr("plan"));
      }
    }
  }
}

TEST(PlanTest, AnotherVersionIsNamed) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, Plan::Make({Tensor("w", {2})}));
  std::string next = plan.serialized();
  next[8] = 2;
  EXPECT_THAT(Plan::Parse(AsBytes(next), "x.pack: plan"),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("x.pack: plan says v2, this build reads v1")));
}

TEST(PlanTest, ACountThatTheBytesCantHoldIsRefused) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, Plan::Make({Tensor("w", {2})}));
  std::string bad = plan.serialized();
  bad[36] = '\xff';
  bad[37] = '\xff';
  EXPECT_THAT(Plan::Parse(AsBytes(bad), "plan"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("entries")));
}

}  // namespace
}  // namespace godwit::ckpt
