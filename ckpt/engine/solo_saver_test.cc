#include "ckpt/engine/solo_saver.h"

#include <atomic>
#include <cerrno>

#include "base/fault_file_system.h"
#include "base/memory_file_system.h"
#include "base/testing/matchers.h"
#include "ckpt/engine/restore.h"
#include "ckpt/testing/toy_rank.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;
using testing::ToyRank;
using testing::ToyState;

constexpr Duration kBound = std::chrono::seconds(60);
const std::string kDir = "/runs/solo";

TEST(SoloSaverTest, SavesWhatItIsOfferedAndASuccessorGoesOnFromIt) {
  MemoryFileSystem fs;
  {
    ToyRank rank(0, 1, 1, 1);
    ASSERT_OK_AND_ASSIGN(auto saver,
                         SoloSaver::Open(fs, RealClock(), {kDir, "job", 2}, rank.arena));
    EXPECT_EQ(saver->term(), 1u);
    EXPECT_FALSE(saver->found().newest.has_value());
    for (uint64_t step : {10, 20, 30}) {
      rank.state.Fill(step);
      ASSERT_OK(rank.snapshotter->StageNow(step, kBound));
      saver->Offer(step, 1);
      ASSERT_OK(saver->Drain(kBound));
      EXPECT_EQ(saver->committed_step(), step);
      EXPECT_OK(saver->last_error());
    }
  }
  ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs, kDir, true));
  EXPECT_EQ(branches.size(), 2u);  // keep
  ToyRank next(0, 1, 2, 1);
  ASSERT_OK_AND_ASSIGN(auto saver, SoloSaver::Open(fs, RealClock(), {kDir, "job", 2}, next.arena));
  EXPECT_EQ(saver->term(), 2u);
  ASSERT_TRUE(saver->found().newest.has_value());
  EXPECT_EQ(saver->found().newest->save.step, 30u);
  ASSERT_OK(RestoreFromStorage(fs, kDir, saver->found().newest->save, 0, 1, next.state.List()));
  EXPECT_TRUE(next.state.Holds(30));
}

TEST(SoloSaverTest, WhatDidNotChangeIsNotWrittenAgain) {
  MemoryFileSystem fs;
  ToyRank rank(0, 1, 1, 1, /*scale=*/4);
  SoloSaver::Options options{kDir, "job", 9};
  options.base.full_every = 3;
  ASSERT_OK_AND_ASSIGN(auto saver, SoloSaver::Open(fs, RealClock(), options, rank.arena));
  // The same state three times over.
  rank.state.Fill(7);
  for (uint64_t step : {10, 20, 30, 40}) {
    ASSERT_OK(rank.snapshotter->StageNow(step, kBound));
    saver->Offer(step, 1);
    ASSERT_OK(saver->Drain(kBound));
  }
  ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs, kDir, true));
  ASSERT_EQ(branches.size(), 4u);  // newest first
  for (const BranchEntry& b : branches) EXPECT_TRUE(b.intact) << b.note;
  const uint64_t full = branches[3].bytes;
  EXPECT_LT(branches[2].bytes, full / 4);
  EXPECT_LT(branches[1].bytes, full / 4);
  EXPECT_EQ(branches[0].bytes, full) << "each third save refers to nothing";
  for (const BranchEntry& b : branches) {
    ToyRank next(0, 1, 2, 1, 4);
    ASSERT_OK(RestoreFromStorage(fs, kDir, b.save, 0, 1, next.state.List()));
    EXPECT_TRUE(next.state.Holds(7));
  }
}

TEST(SoloSaverTest, WithAThirdSlotSmallStepsAreDifferences) {
  MemoryFileSystem fs;
  ToyState state(0, 1, /*scale=*/4);
  state.change = ToyState::Change::kLowestByte;
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanOf(state.List()));
  ASSERT_OK_AND_ASSIGN(Arena arena, Arena::Private(plan, 3));
  Snapshotter::Options snapshots;
  snapshots.term = 1;
  snapshots.epoch = 1;
  snapshots.clock = &RealClock();
  ASSERT_OK_AND_ASSIGN(auto snapshotter, Snapshotter::Open(state.List(), arena, snapshots));
  SoloSaver::Options options{kDir, "job", 99};
  options.base.deltas = true;
  options.base.full_every = 4;
  ASSERT_OK_AND_ASSIGN(auto saver, SoloSaver::Open(fs, RealClock(), options, arena));
  std::vector<uint64_t> bytes;
  for (uint64_t step = 1; step <= 9; ++step) {
    state.Fill(step);
    ASSERT_OK(snapshotter->StageNow(step, kBound));
    saver->Offer(step, 1);
    ASSERT_OK(saver->Drain(kBound));
    ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs, kDir, false));
    bytes.push_back(branches.front().bytes);
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i % 4 == 0) {
      EXPECT_GT(bytes[i], bytes[0] * 9 / 10) << i;
    } else {
      EXPECT_LT(bytes[i], bytes[0] * 3 / 4) << i;
    }
  }
  ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs, kDir, true));
  ASSERT_EQ(branches.size(), 9u);
  for (const BranchEntry& b : branches) {
    EXPECT_TRUE(b.intact) << b.note;
    ToyState back(0, 1, 4);
    back.change = ToyState::Change::kLowestByte;
    ASSERT_OK(RestoreFromStorage(fs, kDir, b.save, 0, 1, back.List()));
    EXPECT_TRUE(back.Holds(b.save.step)) << b.save.step;
  }
}

TEST(SoloSaverTest, RetentionKeepsWhatAKeptSaveRefersTo) {
  MemoryFileSystem fs;
  ToyRank rank(0, 1, 1, 1, /*scale=*/4);
  ASSERT_OK_AND_ASSIGN(auto saver, SoloSaver::Open(fs, RealClock(), {kDir, "job", 1}, rank.arena));
  rank.state.Fill(7);
  const auto save = [&](uint64_t step) {
    ASSERT_OK(rank.snapshotter->StageNow(step, kBound));
    saver->Offer(step, 1);
    ASSERT_OK(saver->Drain(kBound));
  };
  save(10);
  save(20);
  save(30);
  ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs, kDir, true));
  ASSERT_EQ(branches.size(), 2u) << "step 30, and step 10 that holds its bytes";
  EXPECT_EQ(branches[0].save.step, 30u);
  EXPECT_TRUE(branches[0].intact) << branches[0].note;
  EXPECT_EQ(branches[1].save.step, 10u);
  EXPECT_TRUE(branches[1].committed);
  rank.state.Fill(8);
  save(40);
  ASSERT_OK_AND_ASSIGN(branches, ListBranches(fs, kDir, true));
  ASSERT_EQ(branches.size(), 1u) << "nothing refers to the others any more";
  EXPECT_EQ(branches[0].save.step, 40u);
}

TEST(SoloSaverTest, ASaveThatFailsIsReportedAndTheNextOneWorks) {
  MemoryFileSystem fs;
  FaultFileSystem faulty(fs);
  std::atomic<bool> full{false};
  faulty.SetHook(
      [&](const FileCall& call) { return full && call.op == FileOp::kAppend ? ENOSPC : 0; });
  ToyRank rank(0, 1, 1, 1);
  ASSERT_OK_AND_ASSIGN(auto saver,
                       SoloSaver::Open(faulty, RealClock(), {kDir, "job", 2}, rank.arena));
  full = true;
  ASSERT_OK(rank.snapshotter->StageNow(1, kBound));
  saver->Offer(1, 1);
  EXPECT_THAT(saver->Drain(kBound), StatusIs(StatusCode::kResourceExhausted, HasSubstr(kDir)));
  EXPECT_THAT(saver->last_error(), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_EQ(saver->committed_step(), 0u);
  full = false;
  ASSERT_OK(rank.snapshotter->StageNow(2, kBound));
  saver->Offer(2, 1);
  EXPECT_OK(saver->Drain(kBound));
  EXPECT_EQ(saver->committed_step(), 2u);
}

TEST(SoloSaverTest, SnapshotsThatAreNotToBeSavedOnlyFreeOlderOnes) {
  MemoryFileSystem fs;
  ToyRank rank(0, 1, 1, 1);
  ASSERT_OK_AND_ASSIGN(auto saver, SoloSaver::Open(fs, RealClock(), {kDir, "job", 2}, rank.arena));
  for (uint64_t step = 1; step <= 10; ++step) {
    ASSERT_OK(rank.snapshotter->StageNow(step, kBound));
    saver->Whole(step, 1);
  }
  ASSERT_OK(saver->Drain(kBound));
  EXPECT_EQ(saver->committed_step(), 0u);
}

TEST(SoloSaverTest, WhatWaitsToBeSavedIsNotFreedAndItEndsWhileItWrites) {
  MemoryFileSystem fs;
  FaultFileSystem faulty(fs);
  std::atomic<bool> hold{false};
  std::atomic<bool> held{false};
  faulty.SetHook([&](const FileCall& call) {
    if (call.op == FileOp::kAppend && hold) {
      held = true;
      held.notify_all();
      hold.wait(true);
    }
    return 0;
  });
  ToyRank rank(0, 1, 1, 1);
  ASSERT_OK_AND_ASSIGN(auto saver,
                       SoloSaver::Open(faulty, RealClock(), {kDir, "job", 2}, rank.arena));
  hold = true;
  ASSERT_OK(rank.snapshotter->StageNow(1, kBound));
  saver->Offer(1, 1);
  held.wait(false);
  ASSERT_OK(rank.snapshotter->StageNow(2, kBound));
  saver->Offer(2, 1);  // waits; 1 is being written
  EXPECT_THAT(rank.snapshotter->Begin(3), StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT(saver->Drain(std::chrono::milliseconds(1)), StatusIs(StatusCode::kDeadlineExceeded));
  hold = false;
  hold.notify_all();
  EXPECT_OK(saver->Drain(kBound));
  EXPECT_EQ(saver->committed_step(), 2u);
  hold = true;
  held = false;
  ASSERT_OK(rank.snapshotter->StageNow(3, kBound));
  saver->Offer(3, 1);
  held.wait(false);
  hold = false;
  hold.notify_all();
  saver.reset();  // whatever came of step 3, the directory is in order
  ASSERT_OK_AND_ASSIGN(const Found found, FindNewest(fs, kDir));
  EXPECT_GE(found.newest->save.step, 2u);
}

}  // namespace
}  // namespace godwit::ckpt
