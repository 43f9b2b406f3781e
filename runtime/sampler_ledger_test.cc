#include "runtime/sampler_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/memory_file_system.h"
#include "base/random.h"
#include "base/testing/matchers.h"
#include "godwit/runtime/sampler.h"

namespace godwit {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

uint64_t Seed() { return std::random_device{}(); }

TEST(PassOrderTest, IsAPermutationOfEverySize) {
  for (const bool shuffle : {false, true}) {
    for (uint64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4097}) {
      const PassOrder order(size, 7, 3, shuffle);
      std::vector<bool> seen(size);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t id = order[i];
        ASSERT_LT(id, size);
        ASSERT_FALSE(seen[id]) << "size " << size << ": " << id << " comes twice";
        seen[id] = true;
      }
    }
  }
}

TEST(PassOrderTest, PassesAndSeedsDifferAndRepeat) {
  const auto list = [](uint64_t seed, uint64_t pass) {
    const PassOrder order(1000, seed, pass, true);
    std::vector<uint64_t> ids;
    for (uint64_t i = 0; i < 1000; ++i) ids.push_back(order[i]);
    return ids;
  };
  EXPECT_EQ(list(1, 0), list(1, 0));
  EXPECT_NE(list(1, 0), list(1, 1));
  EXPECT_NE(list(1, 0), list(2, 0));
  EXPECT_FALSE(std::is_sorted(list(1, 0).begin(), list(1, 0).end()));
}

TEST(PassOrderTest, OfOneSeedIsTheSameForEver) {
  // Checkpoints rely on it: these must never change.
  const PassOrder order(1000, 42, 0, true);
  std::vector<uint64_t> first;
  for (uint64_t i = 0; i < 6; ++i) first.push_back(order[i]);
  EXPECT_THAT(first, ::testing::ElementsAre(799, 457, 842, 881, 640, 373));
}

TEST(DealTest, AdvancingAtOnceIsAdvancingStepByStep) {
  for (uint64_t size = 1; size <= 12; ++size) {
    for (uint64_t batch = 1; batch <= 14; ++batch) {
      DealCursor slow;
      for (uint64_t steps = 0; steps < 40; ++steps) {
        ASSERT_EQ(Advance({}, steps, size, batch), slow)
            << "size " << size << " batch " << batch << " steps " << steps;
        slow.position += BatchSize(slow, size, batch);
        if (slow.position == size) slow = {slow.pass + 1, 0};
      }
    }
  }
}

TEST(DealTest, SharesFollowEachOtherAndDifferByAtMostOne) {
  for (uint64_t count = 0; count < 20; ++count) {
    for (uint32_t world = 1; world < 8; ++world) {
      uint64_t next = 0;
      for (uint32_t rank = 0; rank < world; ++rank) {
        const Share share = ShareOf(count, rank, world);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.last - share.first, count / world);
        EXPECT_LE(share.last - share.first, count / world + 1);
        next = share.last;
      }
      EXPECT_EQ(next, count);
    }
  }
}

// A run through restarts, shrinks, growths and failures: what each incarnation reads goes to the
// audit, what it completed and saved decides from where the next one goes on.
struct History {
  SamplerLedger ledger;  // of the final state
  std::vector<std::string> audit;
  std::vector<std::vector<uint64_t>> final_batches;  // ids of each step in the final lineage
};

History RandomHistory(Random* random, const SamplerOptions& options) {
  History h;
  std::string saved;  // the newest checkpoint
  uint64_t saved_step = 0;
  const uint64_t incarnations = 2 + random->Below(6);
  for (uint64_t epoch = 1; epoch <= incarnations; ++epoch) {
    const uint32_t world = 1 + static_cast<uint32_t>(random->Below(5));
    const uint64_t term = 1 + epoch / 2;
    std::vector<std::unique_ptr<Sampler>> ranks;
    for (uint32_t r = 0; r < world; ++r) {
      ranks.push_back(std::make_unique<Sampler>(options));
      if (!saved.empty()) {
        EXPECT_THAT(ranks.back()->Load(saved), IsOk());
      }
    }
    h.final_batches.resize(saved_step);
    uint64_t step = saved_step;
    for (uint64_t n = random->Below(30); n > 0; --n) {
      std::vector<uint64_t> batch;
      for (uint32_t r = 0; r < world; ++r) {
        std::string line = std::to_string(term) + " " + std::to_string(epoch) + " " +
                           std::to_string(step) + " " + std::to_string(r) + " " +
                           std::to_string(ranks[r]->pass());
        for (const auto& micro : ranks[r]->Deal(r, world)) {
          EXPECT_LE(micro.ids().size(), options.micro_batch);
          for (const uint64_t id : micro.ids()) {
            line += " " + std::to_string(id);
            batch.push_back(id);
          }
        }
        h.audit.push_back(line);
      }
      // Some incarnations die between reading and updating.
      if (n == 1 && random->OneIn(2)) break;
      for (auto& rank : ranks) rank->Complete(step, term, epoch, world);
      ++step;
      h.final_batches.push_back(batch);
      if (random->OneIn(4) || (epoch == incarnations && n == 1)) {
        saved = ranks[random->Below(world)]->Save();
        saved_step = step;
      }
    }
  }
  h.final_batches.resize(saved_step);
  if (saved.empty()) saved = Sampler(options).Save();
  auto ledger = ParseLedger(saved);
  EXPECT_THAT(ledger, IsOk());
  h.ledger = *ledger;
  return h;
}

TEST(SamplerHistoryTest, EachSampleOnceThroughAnyWorldSizesAndRestarts) {
  const uint64_t seed = Seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int i = 0; i < 300; ++i) {
    SamplerOptions options;
    options.dataset_size = 1 + random.Below(60);
    options.global_batch = 1 + random.Below(20);
    options.micro_batch = 1 + random.Below(5);
    options.seed = random.Next();
    const History h = RandomHistory(&random, options);

    // Against a plain count of what the final lineage used.
    std::vector<uint64_t> used(options.dataset_size);
    uint64_t samples = 0;
    for (const auto& batch : h.final_batches) {
      for (const uint64_t id : batch) ++used[id], ++samples;
    }
    const auto [least, most] = std::minmax_element(used.begin(), used.end());
    ASSERT_LE(*most - *least, 1u) << "some samples were used more often than others";
    ASSERT_EQ(*least, samples / options.dataset_size);

    const auto summary = CheckLedger(h.ledger);
    ASSERT_THAT(summary, IsOk());
    EXPECT_EQ(summary->steps, h.final_batches.size());
    EXPECT_EQ(summary->samples, samples);

    AuditCheck check(h.ledger);
    for (const std::string& line : h.audit) ASSERT_THAT(check.AddLine(line, "log"), IsOk());
    const auto report = check.Finish();
    ASSERT_THAT(report, IsOk());
    EXPECT_EQ(report->samples, samples);
    EXPECT_EQ(report->steps, h.final_batches.size());
  }
}

TEST(SamplerHistoryTest, TheBatchesDoNotDependOnTheWorldSize) {
  const auto batches = [](uint32_t world) {
    const SamplerOptions options{.dataset_size = 50, .global_batch = 8, .seed = 3};
    std::vector<std::unique_ptr<Sampler>> ranks;
    for (uint32_t r = 0; r < world; ++r) ranks.push_back(std::make_unique<Sampler>(options));
    std::vector<uint64_t> ids;
    for (uint64_t step = 0; step < 20; ++step) {
      for (uint32_t r = 0; r < world; ++r) {
        for (const auto& micro : ranks[r]->Deal(r, world)) {
          ids.insert(ids.end(), micro.ids().begin(), micro.ids().end());
        }
        ranks[r]->Complete(step, 1, 1, world);
      }
    }
    return ids;
  };
  EXPECT_EQ(batches(1), batches(3));
  EXPECT_EQ(batches(1), batches(11));
}

TEST(SamplerHistoryTest, WeightsOfAStepAddUpToOneInShortBatchesToo) {
  const SamplerOptions options{.dataset_size = 10, .global_batch = 4, .micro_batch = 1};
  Sampler a(options), b(options);
  for (uint64_t step = 0; step < 6; ++step) {
    double sum = 0;
    for (uint32_t r = 0; r < 2; ++r) {
      Sampler& sampler = r == 0 ? a : b;
      for (const auto& micro : sampler.Deal(r, 2)) sum += micro.weight();
      sampler.Complete(step, 1, 1, 2);
    }
    EXPECT_DOUBLE_EQ(sum, 1.0);
  }
}

TEST(SamplerTest, DealingAgainWithoutAnUpdateGivesTheSame) {
  Sampler sampler({.dataset_size = 10, .global_batch = 4, .seed = 5});
  const auto first = sampler.Deal(0, 1);
  const std::vector<uint64_t> ids(first[0].ids().begin(), first[0].ids().end());
  const auto second = sampler.Deal(0, 1);
  EXPECT_THAT(second[0].ids(), ::testing::ElementsAreArray(ids));
}

TEST(SamplerTest, ARankWithoutSamplesGetsNoMicroBatch) {
  Sampler sampler({.dataset_size = 10, .global_batch = 2});
  EXPECT_TRUE(sampler.Deal(2, 3).empty());
}

TEST(SamplerTest, OptionsThatMakeNoSenseAreNamed) {
  EXPECT_THAT(Sampler({.global_batch = 1}).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("dataset_size")));
  EXPECT_THAT(Sampler({.dataset_size = 1}).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("global_batch")));
}

TEST(SamplerTest, ACheckpointOfOtherDataIsRefusedNamingBoth) {
  const std::string saved = Sampler({.dataset_size = 10, .global_batch = 2}).Save();
  Sampler other({.dataset_size = 11, .global_batch = 2});
  const Status status = other.Load(saved);
  EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition, HasSubstr("dataset_size is 11")));
  EXPECT_THAT(status.message(), HasSubstr("10"));
  Sampler reseeded({.dataset_size = 10, .global_batch = 2, .seed = 9});
  EXPECT_THAT(reseeded.Load(saved), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("seed")));
}

TEST(SamplerTest, AnotherGlobalBatchGoesOnAtTheCursor) {
  Sampler before({.dataset_size = 20, .global_batch = 3, .seed = 1});
  for (uint64_t step = 0; step < 3; ++step) before.Complete(step, 1, 1, 1);
  Sampler after({.dataset_size = 20, .global_batch = 5, .seed = 1});
  ASSERT_THAT(after.Load(before.Save()), IsOk());
  EXPECT_EQ(after.position(), 9u);
  after.Complete(3, 2, 1, 1);
  EXPECT_EQ(after.position(), 14u);
  EXPECT_THAT(CheckLedger(*ParseLedger(after.Save())), IsOk());
}

SamplerLedger TwoRuns() {
  SamplerLedger ledger;
  ledger.dataset_size = 10;
  for (uint64_t step = 0; step < 3; ++step) AppendStep(&ledger, step, 4, 1, 1, 2);
  for (uint64_t step = 3; step < 6; ++step) AppendStep(&ledger, step, 4, 1, 2, 1);
  return ledger;
}

TEST(LedgerTest, StepsOfOneMembershipAreOneRun) { EXPECT_EQ(TwoRuns().runs.size(), 2u); }

TEST(LedgerTest, SkippedSamplesAreFound) {
  SamplerLedger ledger = TwoRuns();
  ledger.runs[1].start.position = 4;
  EXPECT_THAT(CheckLedger(ledger), StatusIs(StatusCode::kDataLoss, HasSubstr("step 3")));
}

TEST(LedgerTest, SkippedStepsAreFound) {
  SamplerLedger ledger = TwoRuns();
  ledger.runs[1].first_step = 4;
  EXPECT_THAT(CheckLedger(ledger), StatusIs(StatusCode::kDataLoss));
}

TEST(LedgerTest, ACursorThatIsElsewhereIsFound) {
  SamplerLedger ledger = TwoRuns();
  ledger.cursor.position = 1;
  EXPECT_THAT(CheckLedger(ledger), StatusIs(StatusCode::kDataLoss, HasSubstr("cursor")));
}

TEST(LedgerTest, StaysBoundedByMergingItsOldestRuns) {
  SamplerLedger ledger;
  ledger.dataset_size = 7;
  for (uint64_t step = 0; step < kMaxLedgerRuns + 100; ++step) {
    AppendStep(&ledger, step, 3, 1, step + 1, 1);
  }
  EXPECT_EQ(ledger.runs.size(), kMaxLedgerRuns);
  EXPECT_LE(SerializeLedger(ledger).size(), kMaxLedgerBytes);
  EXPECT_THAT(CheckLedger(ledger), IsOk());
}

TEST(LedgerTest, EveryCutOrDamagedByteIsRefusedOrHarmless) {
  const std::string good = SerializeLedger(TwoRuns());
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_THAT(ParseLedger(good.substr(0, n)), StatusIs(StatusCode::kDataLoss)) << n;
  }
  EXPECT_THAT(ParseLedger(good + "x"), StatusIs(StatusCode::kDataLoss));
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char c : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string bad = good;
      bad[i] = c;
      const auto parsed = ParseLedger(bad);
      if (parsed.ok()) (void)CheckLedger(*parsed).ok();
    }
  }
}

class AuditTest : public ::testing::Test {
 protected:
  // The lines that a faithful data set writes for TwoRuns().
  std::vector<std::string> Lines() {
    std::vector<std::string> lines;
    for (const DealtRun& run : ledger_.runs) {
      for (uint64_t step = run.first_step; step <= run.last_step; ++step) {
        const DealCursor at = Advance(run.start, step - run.first_step, 10, 4);
        const PassOrder order(10, ledger_.seed, at.pass, true);
        for (uint32_t rank = 0; rank < run.world_size; ++rank) {
          std::string line = std::to_string(run.term) + " " + std::to_string(run.epoch) + " " +
                             std::to_string(step) + " " + std::to_string(rank) + " " +
                             std::to_string(at.pass);
          const Share share = ShareOf(BatchSize(at, 10, 4), rank, run.world_size);
          for (uint64_t i = share.first; i < share.last; ++i) {
            line += " " + std::to_string(order[at.position + i]);
          }
          lines.push_back(line);
        }
      }
    }
    return lines;
  }
  Result<AuditCheck::Report> Check(const std::vector<std::string>& lines) {
    AuditCheck check(ledger_);
    for (const std::string& line : lines) GODWIT_RETURN_IF_ERROR(check.AddLine(line, "log"));
    return check.Finish();
  }
  SamplerLedger ledger_ = TwoRuns();
};

TEST_F(AuditTest, AFaithfulLogPassesInAnyOrder) {
  auto lines = Lines();
  std::reverse(lines.begin(), lines.end());
  const auto report = Check(lines);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->steps, 6u);
  EXPECT_EQ(report->passes, 2u);
  EXPECT_EQ(report->samples, 20u);
  EXPECT_EQ(report->redone_lines, 0u);
}

TEST_F(AuditTest, WorkThatWasRedoneIsCounted) {
  auto lines = Lines();
  lines.push_back("1 1 3 0 1 0 1 2");  // step 3 was completed in epoch 2
  const auto report = Check(lines);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->redone_lines, 1u);
}

TEST_F(AuditTest, AMissingRankIsNamed) {
  auto lines = Lines();
  lines.erase(lines.begin() + 3);
  EXPECT_THAT(Check(lines), StatusIs(StatusCode::kDataLoss, HasSubstr("step 1 rank 1")));
}

TEST_F(AuditTest, ALineReadTwiceIsNamed) {
  auto lines = Lines();
  lines.push_back(lines[0]);
  EXPECT_THAT(Check(lines), StatusIs(StatusCode::kDataLoss, HasSubstr("twice")));
}

TEST_F(AuditTest, ASampleThatWasNotDueIsNamed) {
  auto lines = Lines();
  const size_t space = lines[0].rfind(' ');
  const size_t other = lines[5].rfind(' ');
  lines[0] = lines[0].substr(0, space) + lines[5].substr(other);
  EXPECT_THAT(Check(lines), StatusIs(StatusCode::kDataLoss, HasSubstr("step 0 rank 0")));
}

TEST_F(AuditTest, MoreOrFewerSamplesThanTheShareAreNamed) {
  auto lines = Lines();
  lines[0] += " 3";
  EXPECT_THAT(Check(lines), StatusIs(StatusCode::kDataLoss, HasSubstr("more samples")));
  lines = Lines();
  lines[0] = lines[0].substr(0, lines[0].rfind(' '));
  EXPECT_THAT(Check(lines), StatusIs(StatusCode::kDataLoss, HasSubstr("fewer samples")));
}

TEST_F(AuditTest, AMalformedLineIsNamedWithItsPlace) {
  AuditCheck check(ledger_);
  EXPECT_THAT(check.AddLine("1 1 x 0 0", "audit-1-1-0.log:7"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("audit-1-1-0.log:7")));
}

TEST_F(AuditTest, ReadsAFolderAndForgivesATornLastLine) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("/audit"), IsOk());
  std::string text;
  for (const std::string& line : Lines()) text += line + "\n";
  text += "1 2 6 0 2 1";
  ASSERT_THAT(WriteFileExclusive(fs, "/audit/audit-1-1-0.log", AsBytes(text), Durability::kNone),
              IsOk());
  ASSERT_THAT(WriteFileExclusive(fs, "/audit/notes.txt", AsBytes("hello\n"), Durability::kNone),
              IsOk());
  const auto report = CheckAudit(fs, ledger_, "/audit");
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->steps, 6u);
  EXPECT_THAT(CheckAudit(fs, ledger_, "/audit/audit-1-1-0.log"), IsOk());
  EXPECT_THAT(CheckAudit(fs, ledger_, "/nothing"), StatusIs(StatusCode::kNotFound));
}

}  // namespace
}  // namespace godwit
