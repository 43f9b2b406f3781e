#include "ckpt/engine/base_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/matchers.h"

namespace godwit::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = 1 << 20;

// Four tensors of one chunk each (chunks 0 to 3), and a blob (chunk 4).
Plan FourChunks(Stability stability = Stability::kStable) {
  std::vector<PlanEntry> entries;
  for (const char* name : {"a", "b", "c", "d"}) {
    PlanEntry e;
    e.name = name;
    e.dtype = DType::kF32;
    e.shape = {kMiB / 4};
    e.bytes = kMiB;
    e.stability = stability;
    entries.push_back(e);
  }
  PlanEntry blob;
  blob.name = "rng";
  blob.is_blob = true;
  blob.bytes = 8192;
  blob.stability = Stability::kVolatile;
  entries.push_back(blob);
  auto plan = Plan::Make(entries);
  EXPECT_OK(plan);
  return std::move(plan).value();
}

Digest128 D(uint64_t i) { return {i, ~i}; }

std::vector<StagedChunk> Staged(std::vector<uint64_t> digests) {
  std::vector<StagedChunk> out;
  for (uint64_t i = 0; i < digests.size(); ++i) {
    out.push_back({i, i < 4 ? kMiB : 8192, D(digests[i])});
  }
  return out;
}

PackContents Base(const Plan& plan, std::vector<uint64_t> digests) {
  PackContents base;
  base.pack = {{1, 10, 1}, 0, D(100)};
  base.plan_hash = plan.hash();
  base.world_size = 1;
  for (uint64_t i = 0; i < digests.size(); ++i) {
    PackIndexEntry e;
    e.chunk = i;
    e.raw_bytes = i < 4 ? kMiB : 8192;
    e.digest = D(digests[i]);
    base.index.push_back(e);
  }
  return base;
}

TEST(BaseChoiceTest, WithoutABaseAllIsStored) {
  const Plan plan = FourChunks();
  const BaseChoice c = ChooseBase(plan, 0, 1, Staged({1, 2, 3, 4, 5}), nullptr, {.deltas = true});
  EXPECT_THAT(c.sources, IsEmpty());
  for (const ChunkChoice& chunk : c.chunks) EXPECT_EQ(chunk, ChunkChoice{});
  EXPECT_THAT(c.reason, HasSubstr("no committed save"));
}

TEST(BaseChoiceTest, UnchangedChunksAreReferredToAndTheRestIsStored) {
  const Plan plan = FourChunks();
  const PackContents base = Base(plan, {1, 2, 3, 4, 5});
  const BaseChoice c = ChooseBase(plan, 0, 1, Staged({1, 9, 3, 8, 5}), &base, {});
  EXPECT_THAT(c.sources, ElementsAre(base.pack));
  EXPECT_EQ(c.chunks[0], (ChunkChoice{ChunkKind::kReference, 0, 0, 0}));
  EXPECT_EQ(c.chunks[1], ChunkChoice{});
  EXPECT_EQ(c.chunks[2], (ChunkChoice{ChunkKind::kReference, 0, 2, 0}));
  EXPECT_EQ(c.chunks[3], ChunkChoice{});
  EXPECT_EQ(c.chunks[4], (ChunkChoice{ChunkKind::kReference, 0, 4, 0}));
  EXPECT_EQ(c.referred_bytes, 2 * kMiB + 8192);
}

TEST(BaseChoiceTest, ReferencesAreFlatToThePackThatHoldsTheBytes) {
  const Plan plan = FourChunks();
  PackContents base = Base(plan, {1, 2, 3, 4, 5});
  const PackSource older{{1, 5, 1}, 0, D(99)};
  base.sources = {older};
  base.generation = 1;
  base.index[2].kind = ChunkKind::kReference;
  base.index[2].source = 0;
  base.index[2].source_chunk = 2;
  base.index[2].depth = 3;
  base.index[3].kind = ChunkKind::kReference;  // tied, in its own pack
  base.index[3].source_chunk = 1;
  const BaseChoice c = ChooseBase(plan, 0, 1, Staged({1, 2, 3, 4, 5}), &base, {});
  EXPECT_THAT(c.sources, ElementsAre(base.pack, older));
  EXPECT_EQ(c.chunks[2], (ChunkChoice{ChunkKind::kReference, 1, 2, 3}));
  EXPECT_EQ(c.chunks[3], (ChunkChoice{ChunkKind::kReference, 0, 1, 0}));
}

TEST(BaseChoiceTest, APackIsNotKeptAliveForAFewBytes) {
  const Plan plan = FourChunks();
  const PackContents base = Base(plan, {1, 2, 3, 4, 5});
  const BaseChoice c = ChooseBase(plan, 0, 1, Staged({11, 12, 13, 14, 5}), &base, {});
  EXPECT_THAT(c.sources, IsEmpty());
  EXPECT_EQ(c.chunks[4], ChunkChoice{});
}

TEST(BaseChoiceTest, EachNthSaveRefersToNothing) {
  const Plan plan = FourChunks();
  PackContents base = Base(plan, {1, 2, 3, 4, 5});
  base.generation = 6;
  EXPECT_EQ(ChooseBase(plan, 0, 1, Staged({1, 2, 3, 4, 5}), &base, {}).sources.size(), 1u);
  base.generation = 7;
  const BaseChoice c = ChooseBase(plan, 0, 1, Staged({1, 2, 3, 4, 5}), &base, {});
  EXPECT_THAT(c.sources, IsEmpty());
  EXPECT_THAT(c.reason, HasSubstr("8th"));
}

TEST(BaseChoiceTest, ABaseOfAnotherPlanRankOrWorldIsNotUsed) {
  const Plan plan = FourChunks();
  const PackContents base = Base(plan, {1, 2, 3, 4, 5});
  const auto staged = Staged({1, 2, 3, 4, 5});
  EXPECT_THAT(ChooseBase(plan, 1, 1, staged, &base, {}).sources, IsEmpty());
  EXPECT_THAT(ChooseBase(plan, 0, 2, staged, &base, {}).sources, IsEmpty());
  EXPECT_THAT(ChooseBase(FourChunks(Stability::kVolatile), 0, 1, staged, &base, {}).sources,
              IsEmpty());
}

TEST(BaseChoiceTest, TiedChunksAreStoredOnce) {
  const Plan plan = FourChunks();
  const BaseChoice c = ChooseBase(plan, 0, 1, Staged({1, 2, 1, 4, 5}), nullptr, {});
  EXPECT_EQ(c.chunks[0], ChunkChoice{});
  EXPECT_EQ(c.chunks[2], (ChunkChoice{ChunkKind::kReference, kThisPack, 0, 0}));
}

TEST(BaseChoiceTest, ChangedFloatsMayBeDifferencesUntilTheChainIsLongEnough) {
  const Plan plan = FourChunks();
  PackContents base = Base(plan, {1, 2, 3, 4, 5});
  base.index[1].kind = ChunkKind::kDelta;
  base.index[1].depth = 2;
  base.index[1].source = 0;
  base.index[3].kind = ChunkKind::kDelta;
  base.index[3].depth = 8;
  base.index[3].source = 0;
  base.sources = {{{1, 5, 1}, 0, D(99)}};
  const BaseChoice c =
      ChooseBase(plan, 0, 1, Staged({11, 12, 3, 14, 15}), &base, {.deltas = true, .max_depth = 8});
  EXPECT_EQ(c.chunks[0], (ChunkChoice{ChunkKind::kDelta, 0, 0, 1}));
  EXPECT_EQ(c.chunks[1], (ChunkChoice{ChunkKind::kDelta, 0, 1, 3}));
  EXPECT_EQ(c.chunks[2].kind, ChunkKind::kReference);
  EXPECT_EQ(c.chunks[3], ChunkChoice{}) << "its chain is as long as allowed";
  EXPECT_EQ(c.chunks[4], ChunkChoice{}) << "a blob is no row of floats";
  const BaseChoice without = ChooseBase(plan, 0, 1, Staged({11, 12, 3, 14, 15}), &base, {});
  EXPECT_EQ(without.chunks[0], ChunkChoice{});
}

TEST(BaseChoiceTest, VolatileTensorsAreNoDifferences) {
  const Plan plan = FourChunks(Stability::kVolatile);
  const PackContents base = Base(plan, {1, 2, 3, 4, 5});
  const BaseChoice c =
      ChooseBase(plan, 0, 1, Staged({11, 12, 13, 14, 15}), &base, {.deltas = true});
  for (const ChunkChoice& chunk : c.chunks) EXPECT_EQ(chunk, ChunkChoice{});
}

}  // namespace
}  // namespace godwit::ckpt
