#include "ckpt/lineage/checkpoint_dir.h"

#include "base/fault_file_system.h"
#include "base/memory_file_system.h"
#include "base/testing/matchers.h"
#include "ckpt/testing/toy_rank.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ToyJob;

const std::string kDir = "/runs/gpt";

class CheckpointDirTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(OpenCheckpointDir(fs_, kDir, true)); }

  uint64_t Begin() {
    auto term = BeginTerm(fs_, kDir, "job", 1);
    EXPECT_THAT(term, IsOk());
    return term.ok() ? term->record.term : 0;
  }
  Result<Commit> Save(const SaveId& save, uint32_t world_size = 1) {
    return SaveTo(fs_, save, world_size);
  }
  Result<Commit> SaveTo(FileSystem& fs, const SaveId& save, uint32_t world_size = 1) {
    ToyJob& job = Job(world_size);
    GODWIT_RETURN_IF_ERROR(job.Stage(save.step));
    return job.Save(fs, kDir, save);
  }
  ToyJob& Job(uint32_t world_size) {
    auto& job = jobs_[world_size];
    if (!job) job = std::make_unique<ToyJob>(world_size, 1, 1, /*scale=*/0);
    return *job;
  }
  std::optional<SaveId> Newest() {
    auto found = FindNewest(fs_, kDir);
    EXPECT_THAT(found, IsOk());
    if (!found.ok() || !found->newest) return std::nullopt;
    return found->newest->save;
  }
  std::string WhyNot(const SaveId& save) {
    auto found = FindNewest(fs_, kDir);
    EXPECT_THAT(found, IsOk());
    if (!found.ok()) return "";
    for (const Rejected& r : found->rejected) {
      if (r.save == save) return r.reason;
    }
    return "";
  }
  void Damage(const SaveId& save, uint32_t rank = 0) {
    auto info = fs_.Stat(PackPath(kDir, save, rank));
    ASSERT_OK(info);
    ASSERT_OK(fs_.CorruptByte(PackPath(kDir, save, rank), info->size - 40, 1));
  }

  void ReplaceByFolder(const std::string& path) {
    ASSERT_OK(fs_.Unlink(path));
    ASSERT_OK(fs_.CreateDir(path));
  }
  // Two saves, of which the second refers to the first.
  void SaveTwoThatRefer() {
    ToyJob& job = Job(1);
    testing::ToyRank& rank = *job.ranks[0];
    rank.state.change = testing::ToyState::Change::kOneTensor;
    rank.history = std::make_unique<PackHistory>(BaseLimits{.least_share = 0});
    ASSERT_OK(Save({1, 10, 1}));
    ASSERT_OK(Save({1, 20, 2}));
    ASSERT_OK_AND_ASSIGN(const PackTail tail, ReadPackTail(fs_, PackPath(kDir, {1, 20, 2}, 0)));
    ASSERT_EQ(tail.sources, 1u);
  }

  MemoryFileSystem fs_;
  std::map<uint32_t, std::unique_ptr<ToyJob>> jobs_;
};

TEST_F(CheckpointDirTest, AnEmptyDirectoryIsFresh) {
  ASSERT_OK_AND_ASSIGN(const Found found, FindNewest(fs_, kDir));
  EXPECT_FALSE(found.newest.has_value());
  EXPECT_EQ(found.newest_term, 0u);
  EXPECT_OK(OpenCheckpointDir(fs_, kDir, true));
  EXPECT_OK(OpenCheckpointDir(fs_, kDir, false));
  EXPECT_THAT(OpenCheckpointDir(fs_, "/other", false), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(OpenCheckpointDir(fs_, "relative", true),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'relative'")));
}

TEST_F(CheckpointDirTest, AnotherVersionIsRefusedByName) {
  ASSERT_OK(fs_.Unlink(kDir + "/FORMAT"));
  ASSERT_OK(WriteFileExclusive(fs_, kDir + "/FORMAT", AsBytes("godwit checkpoint v0\n"),
                               Durability::kFileAndName));
  const auto refused = StatusIs(
      StatusCode::kFailedPrecondition,
      AllOf(HasSubstr(kDir + "/FORMAT"), HasSubstr("says v0"), HasSubstr("this build reads v1")));
  EXPECT_THAT(OpenCheckpointDir(fs_, kDir, true), refused);
  EXPECT_THAT(FindNewest(fs_, kDir), refused);
  EXPECT_THAT(BeginTerm(fs_, kDir, "job", 1), refused);
  EXPECT_THAT(ListBranches(fs_, kDir, false), refused);
  EXPECT_THAT(Retain(fs_, kDir, 1, 1), refused);
}

TEST_F(CheckpointDirTest, TheNewestCommitOfTheTermIsFound) {
  ASSERT_EQ(Begin(), 1u);
  EXPECT_EQ(Newest(), std::nullopt);
  ASSERT_OK(Save({1, 10, 1}));
  ASSERT_OK(Save({1, 20, 2}, 3));
  EXPECT_EQ(Newest(), (SaveId{1, 20, 2}));
  ASSERT_OK(Save({1, 20, 3}));
  EXPECT_EQ(Newest(), (SaveId{1, 20, 3}));
}

TEST_F(CheckpointDirTest, ATermGoesOnFromWhatItFound) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const Commit commit, Save({1, 10, 1}));
  ASSERT_OK_AND_ASSIGN(const NewTerm term, BeginTerm(fs_, kDir, "job 7", 12345));
  EXPECT_EQ(term.record.term, 2u);
  EXPECT_EQ(term.record.parent.term, 1u);
  EXPECT_EQ(term.record.parent.save, (SaveId{1, 10, 1}));
  EXPECT_EQ(term.record.parent.manifest_digest, commit.manifest_digest);
  EXPECT_EQ(term.found.newest_term, 2u);
  EXPECT_EQ(term.found.newest->save, (SaveId{1, 10, 1}));
  // A term without a commit of its own is passed over.
  EXPECT_EQ(Begin(), 3u);
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
}

TEST_F(CheckpointDirTest, WhatAnOldWriterPublishesAfterItWasSupersededIsADeadBranch) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  Begin();
  EXPECT_THAT(Save({1, 20, 2}), StatusIs(StatusCode::kAborted, HasSubstr("superseded by term 2")));
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
  // As if it had checked before: the manifest is there.
  std::vector<std::string> tails;
  ASSERT_OK_AND_ASSIGN(const PackTail tail, [&]() -> Result<PackTail> {
    GODWIT_ASSIGN_OR_RETURN(auto bytes, fs_.ReadFile(PackPath(kDir, {1, 20, 2}, 0), 1 << 30));
    return ParsePackTail(AsBytes(bytes).last(kPackTailBytes), "pack");
  }());
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, MakeManifest({1, 20, 2}, {EncodePackTail(tail)}));
  ASSERT_OK(WriteFileExclusive(fs_, ManifestPath(kDir, {1, 20, 2}), AsBytes(manifest.encoded),
                               Durability::kFileAndName));
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
  EXPECT_THAT(WhyNot({1, 20, 2}), HasSubstr("dead branch of term 1"));
  ASSERT_OK(Save({2, 15, 1}));
  EXPECT_EQ(Newest(), (SaveId{2, 15, 1}));
  ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs_, kDir, true));
  ASSERT_EQ(branches.size(), 3u);
  EXPECT_EQ(branches[0].save, (SaveId{2, 15, 1}));
  EXPECT_TRUE(branches[0].in_lineage && branches[0].committed && branches[0].intact);
  EXPECT_EQ(branches[1].save, (SaveId{1, 20, 2}));
  EXPECT_TRUE(branches[1].committed && branches[1].intact && !branches[1].in_lineage);
  EXPECT_THAT(branches[1].note, HasSubstr("dead branch"));
  EXPECT_TRUE(branches[2].in_lineage);
}

TEST_F(CheckpointDirTest, NewestIsByLineageNotByStep) {
  Begin();
  ASSERT_OK(Save({1, 80, 1}));
  ASSERT_OK(Save({1, 120, 2}));
  // Someone goes back to step 80: 120 is damaged, and the next term goes on from 80.
  Damage({1, 120, 2});
  ASSERT_EQ(Begin(), 2u);
  ASSERT_OK(Save({2, 90, 1}));
  EXPECT_EQ(Newest(), (SaveId{2, 90, 1}));
  EXPECT_THAT(WhyNot({1, 120, 2}), HasSubstr("dead branch"));
}

TEST_F(CheckpointDirTest, ADamagedOneIsRejectedWithItsReasonAndTheNextOlderTaken) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ASSERT_OK(Save({1, 20, 2}, 2));
  ASSERT_OK(Save({1, 30, 3}));
  Damage({1, 30, 3});
  ASSERT_OK(fs_.Unlink(PackPath(kDir, {1, 20, 2}, 1)));
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
  EXPECT_THAT(WhyNot({1, 30, 3}), AllOf(HasSubstr("damaged"), HasSubstr("00000.pack")));
  EXPECT_THAT(WhyNot({1, 20, 2}), AllOf(HasSubstr("missing"), HasSubstr("00001.pack")));
}

TEST_F(CheckpointDirTest, ADamagedManifestIsRejected) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ASSERT_OK(Save({1, 20, 2}));
  ASSERT_OK_AND_ASSIGN(const FileInfo info, fs_.Stat(ManifestPath(kDir, {1, 20, 2})));
  for (uint64_t i = 0; i < info.size; ++i) {
    ASSERT_OK(fs_.CorruptByte(ManifestPath(kDir, {1, 20, 2}), i, 2));
    EXPECT_EQ(Newest(), (SaveId{1, 10, 1})) << i;
    ASSERT_OK(fs_.CorruptByte(ManifestPath(kDir, {1, 20, 2}), i, 2));
  }
  EXPECT_EQ(Newest(), (SaveId{1, 20, 2}));
}

TEST_F(CheckpointDirTest, AFolderInAFilesPlaceIsDamage) {
  Begin();
  for (uint32_t i = 1; i <= 3; ++i) ASSERT_OK(Save({1, 10 * i, i}));
  ReplaceByFolder(PackPath(kDir, {1, 30, 3}, 0));
  EXPECT_EQ(Newest(), (SaveId{1, 20, 2}));
  EXPECT_THAT(WhyNot({1, 30, 3}), HasSubstr("damaged: "));
  ReplaceByFolder(ManifestPath(kDir, {1, 20, 2}));
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
  EXPECT_EQ(Begin(), 2u);
  ReplaceByFolder(TermPath(kDir, 2));
  // Its parent can't be read any more.
  EXPECT_THAT(FindNewest(fs_, kDir), StatusIs(StatusCode::kDataLoss, HasSubstr("term 2")));
}

TEST_F(CheckpointDirTest, ADamagedRecordIsReportedBesideWhatIsFound) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ASSERT_OK_AND_ASSIGN(Found found, FindNewest(fs_, kDir));
  EXPECT_EQ(found.damaged_term, "");
  ASSERT_OK(fs_.CorruptByte(TermPath(kDir, 1), 20, 1));
  ASSERT_OK_AND_ASSIGN(found, FindNewest(fs_, kDir));
  ASSERT_TRUE(found.newest.has_value());
  EXPECT_EQ(found.newest->save, (SaveId{1, 10, 1}));
  EXPECT_THAT(found.damaged_term, HasSubstr("the record of term 1 is damaged"));
}

TEST_F(CheckpointDirTest, WhatASaveRefersToMustBeCommittedAndThere) {
  Begin();
  SaveTwoThatRefer();
  EXPECT_EQ(Newest(), (SaveId{1, 20, 2}));
  ToyJob& job = Job(1);
  ASSERT_OK(job.Stage(30));
  ASSERT_OK_AND_ASSIGN(const WrittenPack pack, job.ranks[0]->Write(fs_, kDir, {1, 30, 3}));
  ASSERT_OK(fs_.Unlink(ManifestPath(kDir, {1, 10, 1})));
  EXPECT_THAT(CommitSave(fs_, kDir, {1, 30, 3}, {pack.tail}),
              StatusIs(StatusCode::kDataLoss, HasSubstr("not committed")));
  EXPECT_THAT(FindNewest(fs_, kDir), StatusIs(StatusCode::kDataLoss, HasSubstr("not committed")));
  // And the next save doesn't refer to it any more.
  ASSERT_OK(Save({1, 40, 4}).status());
  EXPECT_EQ(Newest(), (SaveId{1, 40, 4}));
}

TEST_F(CheckpointDirTest, NothingReadableIsNeverFresh) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  Begin();
  Damage({1, 10, 1});
  const auto lost = StatusIs(
      StatusCode::kDataLoss,
      AllOf(HasSubstr("no readable checkpoint"), HasSubstr("t00000001-s0000000010-a0001")));
  EXPECT_THAT(FindNewest(fs_, kDir), lost);
  EXPECT_THAT(BeginTerm(fs_, kDir, "job", 1), lost);
  // Nor when everything was deleted.
  ASSERT_OK(fs_.Unlink(ManifestPath(kDir, {1, 10, 1})));
  EXPECT_THAT(FindNewest(fs_, kDir), StatusIs(StatusCode::kDataLoss));
}

TEST_F(CheckpointDirTest, ATermThatGoesBackBehindAnUnreadableSaveCountsFromItsFirstCommit) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ASSERT_OK(Save({1, 20, 2}));
  Begin();  // finds the newest, whose chunks turn out to be damaged
  const std::set<SaveId> distrusted = {{1, 20, 2}};
  ASSERT_OK_AND_ASSIGN(const NewTerm term, BeginTerm(fs_, kDir, "job", 1, distrusted));
  EXPECT_EQ(term.record.term, 3u);
  EXPECT_EQ(term.record.parent.save, (SaveId{1, 10, 1}));
  ASSERT_EQ(term.found.rejected.size(), 1u);
  EXPECT_EQ(term.found.rejected[0].save, (SaveId{1, 20, 2}));
  EXPECT_TRUE(term.found.rejected[0].damaged);
  // Nobody else has to know: it is a dead branch now.
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
  ASSERT_OK(Save({3, 15, 1}));
  EXPECT_EQ(Newest(), (SaveId{3, 15, 1}));
  // When there is nothing else, it is an error and no fresh start.
  EXPECT_THAT(BeginTerm(fs_, kDir, "job", 1, {{3, 15, 1}, {1, 10, 1}}),
              StatusIs(StatusCode::kDataLoss, HasSubstr("no readable checkpoint")));
}

TEST_F(CheckpointDirTest, ADamagedTermRecordDoesNotHideItsCommits) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  Begin();
  ASSERT_OK(fs_.CorruptByte(TermPath(kDir, 2), 30, 1));
  EXPECT_THAT(FindNewest(fs_, kDir), StatusIs(StatusCode::kDataLoss, HasSubstr("term 2")));
  ASSERT_OK(Save({2, 20, 1}));
  EXPECT_EQ(Newest(), (SaveId{2, 20, 1}));
}

TEST_F(CheckpointDirTest, EveryFlippedByteOfATermIsDamage) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string good, fs_.ReadFile(TermPath(kDir, 1), 4096));
  ASSERT_OK(ParseTerm(AsBytes(good), "term"));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 8);
    EXPECT_THAT(ParseTerm(AsBytes(bad), "term"), StatusIs(StatusCode::kDataLoss)) << i;
    EXPECT_THAT(ParseTerm(AsBytes(good).first(i), "term"), StatusIs(StatusCode::kDataLoss));
  }
}

TEST_F(CheckpointDirTest, AnIncompleteSaveIsReportedAndNeverChosen) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ToyJob& job = Job(3);
  ASSERT_OK(job.Stage(20));
  ASSERT_OK(job.ranks[1]->Write(fs_, kDir, {1, 20, 2}));
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
  EXPECT_EQ(WhyNot({1, 20, 2}), "incomplete: 2 of 3 packs are not whole");
  EXPECT_THAT(CommitComplete(fs_, kDir),
              ::godwit::testing::IsOkAndHolds(::testing::Eq(std::nullopt)));
}

TEST_F(CheckpointDirTest, AResumerCommitsACompleteSaveOfTheParentTermFirst) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ToyJob& job = Job(3);
  ASSERT_OK(job.Stage(20));
  std::vector<std::string> tails;
  for (auto& r : job.ranks) {
    ASSERT_OK_AND_ASSIGN(const WrittenPack pack, r->Write(fs_, kDir, {1, 20, 2}));
    tails.push_back(pack.tail);
  }
  EXPECT_EQ(WhyNot({1, 20, 2}), "complete, but not committed");
  ASSERT_OK_AND_ASSIGN(const NewTerm term, BeginTerm(fs_, kDir, "job", 1));
  EXPECT_EQ(term.record.parent.save, (SaveId{1, 20, 2}));
  // The same bytes as the master's commit would have been.
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, MakeManifest({1, 20, 2}, tails));
  EXPECT_EQ(term.record.parent.manifest_digest, manifest.digest);
}

TEST_F(CheckpointDirTest, ACompleteSaveThatIsOlderThanTheNewestCommitStaysUncommitted) {
  Begin();
  ToyJob& job = Job(1);
  ASSERT_OK(job.Stage(10));
  ASSERT_OK(job.ranks[0]->Write(fs_, kDir, {1, 10, 1}));
  ASSERT_OK(Save({1, 20, 2}));
  ASSERT_OK(CommitComplete(fs_, kDir));
  EXPECT_THAT(fs_.Stat(ManifestPath(kDir, {1, 10, 1})), StatusIs(StatusCode::kNotFound));
}

TEST_F(CheckpointDirTest, CommittingTwiceIsOk) {
  Begin();
  ToyJob& job = Job(2);
  ASSERT_OK(job.Stage(10));
  ASSERT_OK_AND_ASSIGN(const Commit a, job.Save(fs_, kDir, {1, 10, 1}));
  ASSERT_OK_AND_ASSIGN(const Commit b, job.Save(fs_, kDir, {1, 10, 1}));
  EXPECT_EQ(a.manifest_digest, b.manifest_digest);
}

TEST_F(CheckpointDirTest, TailsThatDontBelongTogetherAreNamed) {
  Begin();
  ToyJob& two = Job(2);
  ToyJob& three = Job(3);
  ASSERT_OK(two.Stage(10));
  ASSERT_OK(three.Stage(10));
  ASSERT_OK_AND_ASSIGN(auto a, two.ranks[0]->Write(fs_, kDir, {1, 10, 1}));
  ASSERT_OK_AND_ASSIGN(auto b, two.ranks[1]->Write(fs_, kDir, {1, 10, 1}));
  ASSERT_OK_AND_ASSIGN(auto other_attempt, two.ranks[1]->Write(fs_, kDir, {1, 10, 2}));
  ASSERT_OK_AND_ASSIGN(auto of_three, three.ranks[1]->Write(fs_, kDir, {1, 10, 3}));
  const SaveId save{1, 10, 1};
  EXPECT_THAT(CommitSave(fs_, kDir, save, {a.tail}),
              StatusIs(StatusCode::kDataLoss, HasSubstr("world size 2, allowed is 1")));
  EXPECT_THAT(CommitSave(fs_, kDir, save, {a.tail, a.tail}),
              StatusIs(StatusCode::kDataLoss, HasSubstr("two packs of rank 0")));
  EXPECT_THAT(CommitSave(fs_, kDir, save, {a.tail, other_attempt.tail}),
              StatusIs(StatusCode::kDataLoss, HasSubstr("save id")));
  EXPECT_THAT(CommitSave(fs_, kDir, {1, 10, 3}, {of_three.tail, a.tail}),
              StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(CommitSave(fs_, kDir, save, {a.tail, "nonsense"}), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(CommitSave(fs_, kDir, save, {}), StatusIs(StatusCode::kDataLoss));
  EXPECT_OK(CommitSave(fs_, kDir, save, {b.tail, a.tail}));  // in any order
}

TEST_F(CheckpointDirTest, ATermThatWasNeverBegunCommitsNothing) {
  Begin();
  EXPECT_THAT(Save({2, 10, 1}),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("no such term")));
}

TEST_F(CheckpointDirTest, OfTwoWritersOneGetsTheTerm) {
  Begin();
  // The second takes the number between the first's look and its claim.
  FaultFileSystem faulty(fs_);
  bool raced = false;
  faulty.SetHook([&](const FileCall& call) {
    if (call.op == FileOp::kCreateExclusive && !raced) {
      raced = true;
      EXPECT_OK(BeginTerm(fs_, kDir, "the other", 1));
    }
    return 0;
  });
  EXPECT_THAT(BeginTerm(faulty, kDir, "job", 1),
              StatusIs(StatusCode::kAborted, HasSubstr("took term 2 first")));
  EXPECT_EQ(Begin(), 3u);
}

// An old writer commits at each call of a new one's start: it's in the new lineage, or it was told
// that it isn't.
TEST_F(CheckpointDirTest, ACommitIsEitherRefusedOrInTheLineageOfATermThatBeginsMeanwhile) {
  int seen = 0;
  int refused = 0;
  for (uint64_t n = 1;; ++n) {
    MemoryFileSystem fs;
    ASSERT_OK(OpenCheckpointDir(fs, kDir, true));
    ASSERT_OK(BeginTerm(fs, kDir, "job", 1));
    if (n % 2 == 0) {
      ASSERT_OK(SaveTo(fs, {1, 10, 1}));
    }
    FaultFileSystem faulty(fs);
    Status committed = UnknownError("the commit was not tried");
    uint64_t calls = 0;
    faulty.SetHook([&](const FileCall&) {
      if (++calls == (n + 1) / 2) committed = SaveTo(fs, {1, 20, 2}).status();
      return 0;
    });
    ASSERT_OK_AND_ASSIGN(const NewTerm term, BeginTerm(faulty, kDir, "job", 1));
    if (calls < (n + 1) / 2) break;
    ASSERT_OK_AND_ASSIGN(const Found found, FindNewest(fs, kDir));
    if (committed.ok()) {
      ++seen;
      ASSERT_TRUE(found.newest.has_value()) << "call " << calls;
      EXPECT_EQ(found.newest->save, (SaveId{1, 20, 2}));
      EXPECT_EQ(term.record.parent.save, (SaveId{1, 20, 2}));
    } else {
      ++refused;
      EXPECT_THAT(committed, StatusIs(StatusCode::kAborted));
    }
  }
  EXPECT_GT(seen, 2);
  EXPECT_GT(refused, 10);
}

TEST_F(CheckpointDirTest, AWriterThatDiedWhileItBeganLeavesOnlyANumber) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  FaultFileSystem faulty(fs_);
  faulty.SetHook([&](const FileCall& call) { return call.op == FileOp::kLink ? EIO : 0; });
  EXPECT_FALSE(BeginTerm(faulty, kDir, "job", 1).ok());
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
  EXPECT_EQ(Begin(), 3u);
  EXPECT_EQ(Newest(), (SaveId{1, 10, 1}));
}

TEST_F(CheckpointDirTest, RetentionKeepsTheNewestAndWhatIsYounger) {
  Begin();
  for (uint64_t step : {10, 20, 30, 40}) ASSERT_OK(Save({1, step, 1}));
  ToyJob& job = Job(2);
  ASSERT_OK(job.Stage(25));
  ASSERT_OK(job.ranks[0]->Write(fs_, kDir, {1, 25, 7}));  // given up
  ASSERT_OK(job.Stage(50));
  ASSERT_OK(job.ranks[0]->Write(fs_, kDir, {1, 50, 8}));  // under way
  ASSERT_OK(Retain(fs_, kDir, 1, 2));
  ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs_, kDir, true));
  ASSERT_EQ(branches.size(), 3u);
  EXPECT_EQ(branches[0].save, (SaveId{1, 50, 8}));
  EXPECT_EQ(branches[1].save, (SaveId{1, 40, 1}));
  EXPECT_EQ(branches[2].save, (SaveId{1, 30, 1}));
  ASSERT_OK_AND_ASSIGN(auto packs, fs_.List(kDir + "/packs"));
  EXPECT_EQ(packs.size(), 3u);
}

TEST_F(CheckpointDirTest, RetentionNeedsTheTermAndItsOwnCommit) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ASSERT_OK(Save({1, 20, 1}));
  Begin();
  EXPECT_THAT(Retain(fs_, kDir, 1, 1), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(Retain(fs_, kDir, 2, 1),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("its own first commit")));
  EXPECT_THAT(Retain(fs_, kDir, 2, 0), StatusIs(StatusCode::kInvalidArgument));
  ASSERT_OK(Save({2, 30, 1}));
  ASSERT_OK(Retain(fs_, kDir, 2, 2));
  ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs_, kDir, false));
  ASSERT_EQ(branches.size(), 2u);
  EXPECT_EQ(branches[1].save, (SaveId{1, 20, 1}));
}

TEST_F(CheckpointDirTest, RetentionEndsWhenANewerTermIsClaimed) {
  Begin();
  for (uint32_t i = 1; i <= 3; ++i) ASSERT_OK(Save({1, 10 * i, i}));
  // A successor that has its number, but not yet its record.
  ASSERT_OK(WriteFileExclusive(fs_, TermPath(kDir, 2) + ".claim", {}, Durability::kNone));
  EXPECT_THAT(Retain(fs_, kDir, 1, 1),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("that is 2, not 1")));
  ASSERT_OK_AND_ASSIGN(const auto branches, ListBranches(fs_, kDir, false));
  EXPECT_EQ(branches.size(), 3u);
}

TEST_F(CheckpointDirTest, RetentionLeavesOlderStateWhenYoungerIsDamaged) {
  Begin();
  for (uint64_t step : {10, 20, 30, 40}) ASSERT_OK(Save({1, step, 1}));
  Damage({1, 30, 1});
  ASSERT_OK(Retain(fs_, kDir, 1, 2));
  ASSERT_OK_AND_ASSIGN(auto branches, ListBranches(fs_, kDir, true));
  ASSERT_EQ(branches.size(), 3u);  // 40, 30 (damaged), 20
  EXPECT_FALSE(branches[1].intact);
  EXPECT_TRUE(branches[2].intact);
  ASSERT_OK(Retain(fs_, kDir, 1, 3));  // only two are intact: nothing goes
  ASSERT_OK_AND_ASSIGN(branches, ListBranches(fs_, kDir, true));
  EXPECT_EQ(branches.size(), 3u);
}

TEST_F(CheckpointDirTest, RetentionRemovesDeadBranchesAndWhatKilledWritersLeft) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  Begin();
  EXPECT_THAT(Save({1, 20, 2}), StatusIs(StatusCode::kAborted));
  ASSERT_OK(Save({2, 30, 1}));
  const std::string part = PackPath(kDir, {2, 30, 1}, 0) + ".part-0011223344556677";
  const std::string temp = kDir + "/manifests/.tmp-t00000001-0011223344556677";
  const std::string live = kDir + "/manifests/.tmp-t00000003-0011223344556677";
  for (const std::string& path : {part, temp, live}) {
    ASSERT_OK(WriteFileExclusive(fs_, path, AsBytes("x"), Durability::kNone));
  }
  ASSERT_OK(Retain(fs_, kDir, 2, 3));
  EXPECT_THAT(fs_.Stat(SaveDir(kDir, {1, 20, 2})), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.Stat(part), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.Stat(temp), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.Stat(TermPath(kDir, 1) + ".claim"), StatusIs(StatusCode::kNotFound));
  EXPECT_OK(fs_.Stat(TermPath(kDir, 2) + ".claim"));
  EXPECT_OK(fs_.Stat(live));
  EXPECT_OK(fs_.Stat(SaveDir(kDir, {1, 10, 1})));
}

TEST_F(CheckpointDirTest, AReaderStartsOverWhenTheWriterRetainsUnderIt) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ASSERT_OK(Save({1, 20, 1}));
  FaultFileSystem faulty(fs_);
  bool raced = false;
  faulty.SetHook([&](const FileCall& call) {
    if (!raced && call.op == FileOp::kOpenRead && call.path == ManifestPath(kDir, {1, 20, 1})) {
      raced = true;
      EXPECT_OK(Save({1, 30, 1}));
      EXPECT_OK(Retain(fs_, kDir, 1, 1));
    }
    return 0;
  });
  ASSERT_OK_AND_ASSIGN(const Found found, FindNewest(faulty, kDir));
  EXPECT_EQ(found.newest->save, (SaveId{1, 30, 1}));
}

TEST_F(CheckpointDirTest, AReadErrorIsAnErrorAndNotAnOlderCheckpoint) {
  Begin();
  ASSERT_OK(Save({1, 10, 1}));
  ASSERT_OK(Save({1, 20, 1}));
  FaultFileSystem faulty(fs_);
  faulty.SetHook([&](const FileCall& call) {
    return call.op == FileOp::kReadAt && call.path == PackPath(kDir, {1, 20, 1}, 0) ? EIO : 0;
  });
  const auto found = FindNewest(faulty, kDir);
  EXPECT_FALSE(found.ok());
  EXPECT_THAT(found.status().message(), HasSubstr("00000.pack"));
}

}  // namespace
}  // namespace godwit::ckpt
