#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/memory_file_system.h"
#include "base/testing/matchers.h"
#include "ckpt/engine/arena_rep.h"
#include "ckpt/engine/restore.h"
#include "ckpt/format/pack.h"
#include "ckpt/testing/toy_rank.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ToyJob;
using testing::ToyState;
using ::testing::UnorderedElementsAre;

const std::string kDir = "/ckpt";

class SaveRestoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(OpenCheckpointDir(fs_, kDir, true));
    ASSERT_OK(BeginTerm(fs_, kDir, "job", 1));
  }
  MemoryFileSystem fs_;
};

TEST_F(SaveRestoreTest, WhatIsReadBackIsWhatWasStagedAtAnyWorldSize) {
  for (uint32_t saved : {1u, 2u, 3u}) {
    const SaveId save{1, 10 * saved, 1};
    ToyJob job(saved, 1, 1);
    ASSERT_OK(job.Stage(save.step));
    ASSERT_OK(job.Save(fs_, kDir, save));
    for (uint32_t world : {1u, 2u, 3u, 5u}) {
      for (uint32_t rank = 0; rank < world; ++rank) {
        ToyState state(rank, world);
        state.Clear();
        ASSERT_OK_AND_ASSIGN(const RestoreStats stats,
                             RestoreFromStorage(fs_, kDir, save, rank, world, state.List()));
        if (rank < saved) {
          EXPECT_TRUE(state.Holds(save.step));
          EXPECT_THAT(stats.missing, ElementsAre());
          EXPECT_EQ(state.derived(), "");
        } else {
          EXPECT_TRUE(state.Holds(save.step, /*with_per_rank=*/false));
          EXPECT_THAT(stats.missing, UnorderedElementsAre("expert", "rng"));
          EXPECT_EQ(state.derived(), std::to_string(save.step) + "/" + std::to_string(rank) + "/" +
                                         std::to_string(world));
        }
        EXPECT_GT(stats.bytes_read, 0u);
      }
    }
    EXPECT_OK(VerifySave(fs_, kDir, save));
  }
}

TEST_F(SaveRestoreTest, MemoryGivesBackTheSnapshotOfItsRank) {
  ToyJob job(2, 1, 1);
  ASSERT_OK(job.Stage(5));
  auto& r = *job.ranks[1];
  r.state.Clear();
  ASSERT_OK(RestoreFromMemory(r.arena, 5, 1, 2, r.state.List()));
  EXPECT_TRUE(r.state.Holds(5));
  EXPECT_THAT(RestoreFromMemory(r.arena, 6, 1, 2, r.state.List()), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(RestoreFromMemory(r.arena, 5, 0, 2, r.state.List()),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("rank 1 of 2")));
  EXPECT_THAT(RestoreFromMemory(r.arena, 5, 1, 3, r.state.List()),
              StatusIs(StatusCode::kFailedPrecondition));
}

TEST_F(SaveRestoreTest, AReplicatedChunkIsWrittenByOneRankOnly) {
  ToyJob job(3, 1, 1);
  ASSERT_OK(job.Stage(7));
  const SaveId save{1, 7, 1};
  uint64_t raw = 0;
  for (auto& r : job.ranks) {
    ASSERT_OK_AND_ASSIGN(const WrittenPack pack, r->Write(fs_, kDir, save));
    raw += pack.raw_bytes;
  }
  const uint64_t own = 90 * 1024 * 4;  // "expert"
  const uint64_t all = job.ranks[0]->state.bytes();
  EXPECT_GE(raw, all - own + 3 * own);
  EXPECT_LT(raw, all - own + 3 * own + 1000);  // blobs
}

TEST_F(SaveRestoreTest, ASecondTryOfTheSamePackGivesTheSameTail) {
  ToyJob job(1, 1, 1);
  ASSERT_OK(job.Stage(3));
  ASSERT_OK_AND_ASSIGN(const WrittenPack a, job.ranks[0]->Write(fs_, kDir, {1, 3, 1}));
  ASSERT_OK_AND_ASSIGN(const WrittenPack b, job.ranks[0]->Write(fs_, kDir, {1, 3, 1}));
  EXPECT_EQ(a.tail, b.tail);
  EXPECT_EQ(a.bytes, b.bytes);
  ASSERT_OK(job.Stage(4));
  auto other = job.ranks[0]->Write(fs_, kDir, {1, 4, 1});
  ASSERT_OK(other);
}

TEST_F(SaveRestoreTest, DamageInSnapshotMemoryIsFoundBeforeAnythingIsWritten) {
  ToyJob job(1, 1, 1);
  auto& r = *job.ranks[0];
  ASSERT_OK(r.Stage(3));
  std::byte* data = r.arena.rep()->data(r.arena.NewestWhole()->index);
  data[5] ^= std::byte{4};
  EXPECT_THAT(r.Write(fs_, kDir, {1, 3, 1}),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("chunk 0"), HasSubstr("'wte'"))));
  EXPECT_THAT(RestoreFromMemory(r.arena, 3, 0, 1, r.state.List()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("'wte'")));
  EXPECT_THAT(fs_.Stat(PackPath(kDir, {1, 3, 1}, 0)), StatusIs(StatusCode::kNotFound));
  ASSERT_OK_AND_ASSIGN(auto entries, fs_.List(SaveDir(kDir, {1, 3, 1})));
  EXPECT_TRUE(entries.empty());
  data[5] ^= std::byte{4};
  r.arena.rep()->table(r.arena.NewestWhole()->index)[0].bytes -= 1;
  EXPECT_THAT(r.Write(fs_, kDir, {1, 3, 1}), StatusIs(StatusCode::kDataLoss, HasSubstr("table")));
}

TEST_F(SaveRestoreTest, EveryFlippedByteOfAPackIsFoundAndNamed) {
  ToyJob job(1, 1, 1);
  ASSERT_OK(job.Stage(3));
  const SaveId save{1, 3, 1};
  ASSERT_OK_AND_ASSIGN(const Commit commit, job.Save(fs_, kDir, save));
  const std::string path = PackPath(kDir, save, 0);
  ASSERT_OK(VerifySave(fs_, kDir, save));
  const uint64_t stride = std::max<uint64_t>(1, commit.bytes / 150);
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < commit.bytes; i += stride) offsets.push_back(i);
  for (uint64_t i = 1; i <= 300; ++i) offsets.push_back(commit.bytes - i);  // tail, index
  for (uint64_t offset : offsets) {
    ASSERT_OK(fs_.CorruptByte(path, offset, 0x10));
    const Status s = VerifySave(fs_, kDir, save);
    EXPECT_THAT(s, StatusIs(StatusCode::kDataLoss, HasSubstr(path))) << offset;
    ASSERT_OK(fs_.CorruptByte(path, offset, 0x10));
  }
  EXPECT_OK(VerifySave(fs_, kDir, save));
}

TEST_F(SaveRestoreTest, AChunkThatIsDamagedIsNamedWithItsTensorAtRestore) {
  ToyJob job(1, 1, 1);
  ASSERT_OK(job.Stage(3));
  const SaveId save{1, 3, 1};
  ASSERT_OK(job.Save(fs_, kDir, save));
  ASSERT_OK(fs_.CorruptByte(PackPath(kDir, save, 0), kPackHeaderBytes + 1000, 1));
  ToyState state(0, 1);
  EXPECT_THAT(RestoreFromStorage(fs_, kDir, save, 0, 1, state.List()),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("00000.pack"), HasSubstr("chunk 0"),
                                                    HasSubstr("tensor 'wte'"))));
}

TEST_F(SaveRestoreTest, StateThatDoesNotFitIsRefusedByName) {
  ToyJob job(1, 1, 1);
  ASSERT_OK(job.Stage(3));
  const SaveId save{1, 3, 1};
  ASSERT_OK(job.Save(fs_, kDir, save));
  ToyState state(0, 1);
  StateList list = state.List();
  list.tensors[1].shape = {32, 2};
  EXPECT_THAT(RestoreFromStorage(fs_, kDir, save, 0, 1, list),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("ln.weight"), HasSubstr("[32, 2]"), HasSubstr("[64]"))));
  list = state.List();
  list.tensors[1].name = "ln.bias";
  EXPECT_THAT(RestoreFromStorage(fs_, kDir, save, 0, 1, list),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("'ln.bias'")));
  list = state.List();
  list.tensors[1].placement = Placement::kPerRank;
  EXPECT_THAT(RestoreFromStorage(fs_, kDir, save, 0, 1, list),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("replicated")));
  list = state.List();
  list.tensors.erase(list.tensors.begin() + 1);
  ASSERT_OK_AND_ASSIGN(const RestoreStats stats, RestoreFromStorage(fs_, kDir, save, 0, 1, list));
  EXPECT_THAT(stats.unexpected, ElementsAre("ln.weight"));
  list = state.List();
  list.blobs[0].load = [](std::string_view) { return InvalidArgumentError("bad cursor"); };
  EXPECT_THAT(RestoreFromStorage(fs_, kDir, save, 0, 1, list),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'sampler'"), HasSubstr("bad cursor"))));
}

TEST_F(SaveRestoreTest, BlobsCanBeReadAlone) {
  ToyJob job(3, 1, 1);
  ASSERT_OK(job.Stage(12));
  const SaveId save{1, 12, 2};
  ASSERT_OK(job.Save(fs_, kDir, save));
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_THAT(ReadBlob(fs_, kDir, save, "sampler", r),
                ::godwit::testing::IsOkAndHolds(std::string("sampler cursor 12")));
    EXPECT_THAT(ReadBlob(fs_, kDir, save, "rng", r),
                ::godwit::testing::IsOkAndHolds("rng of rank " + std::to_string(r) + " at 12"));
  }
  EXPECT_THAT(ReadBlob(fs_, kDir, save, "none", 0), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(ReadBlob(fs_, kDir, save, "wte", 0), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(ReadBlob(fs_, kDir, save, "rng", 3), StatusIs(StatusCode::kNotFound));
}

TEST_F(SaveRestoreTest, AFullDiskIsNamedWithPathAndNeedAndLeavesNothing) {
  MemoryFileSystem small(1 << 20);
  ASSERT_OK(OpenCheckpointDir(small, kDir, true));
  ASSERT_OK(BeginTerm(small, kDir, "job", 1));
  ToyJob job(1, 1, 1);
  ASSERT_OK(job.Stage(3));
  // With a deadline it tries.
  EXPECT_THAT(job.Save(small, kDir, {1, 3, 1}),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("00000.pack"), HasSubstr("needs up to"))));
  ASSERT_OK_AND_ASSIGN(auto entries, small.List(SaveDir(kDir, {1, 3, 1})));
  EXPECT_TRUE(entries.empty());
  // Without one it looks before the first byte.
  WritePackOptions o;
  o.directory = kDir;
  o.save = {1, 3, 2};
  o.snapshot_epoch = 1;
  o.snapshot_step = 3;
  o.world_size = 1;
  EXPECT_THAT(WritePack(small, RealClock(), job.ranks[0]->arena, o),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("00000.pack"), HasSubstr("are free"))));
  small.SetCapacity(1 << 30);
  o.save.attempt = 3;
  EXPECT_OK(WritePack(small, RealClock(), job.ranks[0]->arena, o));
}

TEST_F(SaveRestoreTest, AWriteCanBeCancelledAndHasADeadline) {
  ToyJob job(1, 1, 1);
  ASSERT_OK(job.Stage(3));
  std::atomic<bool> cancel{true};
  WritePackOptions o;
  o.directory = kDir;
  o.save = {1, 3, 1};
  o.snapshot_epoch = 1;
  o.snapshot_step = 3;
  o.world_size = 1;
  o.cancel = &cancel;
  EXPECT_THAT(WritePack(fs_, RealClock(), job.ranks[0]->arena, o),
              StatusIs(StatusCode::kCancelled));
  cancel = false;
  FakeClock clock;
  o.deadline = clock.Monotonic();
  EXPECT_THAT(WritePack(fs_, clock, job.ranks[0]->arena, o),
              StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(fs_.Stat(PackPath(kDir, {1, 3, 1}, 0)), StatusIs(StatusCode::kNotFound));
}

TEST_F(SaveRestoreTest, ASnapshotOfAnotherRankOrNoneIsNotWritten) {
  ToyJob job(2, 1, 1);
  ASSERT_OK(job.Stage(3));
  WritePackOptions o;
  o.directory = kDir;
  o.save = {1, 3, 1};
  o.snapshot_epoch = 1;
  o.snapshot_step = 3;
  o.rank = 0;
  o.world_size = 2;
  EXPECT_THAT(WritePack(fs_, RealClock(), job.ranks[1]->arena, o),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("rank 1 of 2")));
  o.snapshot_step = 4;
  EXPECT_THAT(WritePack(fs_, RealClock(), job.ranks[0]->arena, o), StatusIs(StatusCode::kNotFound));
  o.directory = "relative";
  EXPECT_THAT(WritePack(fs_, RealClock(), job.ranks[0]->arena, o),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("absolute")));
}

TEST_F(SaveRestoreTest, StateOfNothingCanBeSaved) {
  StateList nothing;
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanOf(nothing));
  ASSERT_OK_AND_ASSIGN(Arena arena, Arena::Private(plan));
  Snapshotter::Options options;
  options.clock = &RealClock();
  options.epoch = 1;
  ASSERT_OK_AND_ASSIGN(auto snapshotter, Snapshotter::Open(nothing, arena, options));
  ASSERT_OK(snapshotter->StageNow(1, std::chrono::seconds(30)));
  WritePackOptions o;
  o.directory = kDir;
  o.save = {1, 1, 1};
  o.snapshot_epoch = 1;
  o.snapshot_step = 1;
  o.world_size = 1;
  ASSERT_OK_AND_ASSIGN(const WrittenPack pack, WritePack(fs_, RealClock(), arena, o));
  ASSERT_OK(CommitSave(fs_, kDir, {1, 1, 1}, {pack.tail}));
  EXPECT_OK(RestoreFromStorage(fs_, kDir, {1, 1, 1}, 0, 1, nothing));
}

}  // namespace
}  // namespace godwit::ckpt
