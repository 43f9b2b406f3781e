// The master's decisions against a model of everything around them, in random orders. A failing
// test prints its seed; GODWIT_SIM_SEED=<seed> runs that one alone, GODWIT_SIM_FACTOR=<n> n times
// as many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <string>

#include "master/testing/sim_world.h"

namespace godwit::master {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::SimOptions;
using testing::SimWorld;

std::string Tell(const SimWorld& world, uint64_t seed) {
  std::string text =
      "seed " + std::to_string(seed) + ", phase " + std::string(PhaseName(world.state().phase));
  for (const std::string& p : world.problems()) text += "\n  broken: " + p;
  if (world.outcome()) text += "\n  outcome: " + world.outcome()->reason;
  text += "\n" + world.Dump();
  const auto& log = world.log();
  for (size_t i = log.size() > 60 ? log.size() - 60 : 0; i < log.size(); ++i) {
    text += "\n  " + log[i];
  }
  return text;
}

template <typename F>
void ForSeeds(uint64_t count, F&& run) {
  if (const char* one = std::getenv("GODWIT_SIM_SEED")) {
    run(std::strtoull(one, nullptr, 10));
    return;
  }
  const char* factor = std::getenv("GODWIT_SIM_FACTOR");
  if (factor != nullptr) count *= std::strtoull(factor, nullptr, 10);
  for (uint64_t seed = 1; seed <= count && !::testing::Test::HasFailure(); ++seed) run(seed);
}

SimOptions Sized(uint64_t seed) {
  Random random(seed ^ 0x51ed);
  SimOptions options;
  options.nodes = static_cast<uint32_t>(random.Between(1, 3));
  options.slots = static_cast<uint32_t>(random.Between(1, 2));
  options.total_steps = static_cast<uint64_t>(random.Between(6, 14));
  options.snapshot_every = static_cast<uint64_t>(random.Between(1, 3));
  options.persist_every = static_cast<uint64_t>(random.Between(0, 5));
  return options;
}

TEST(Simulation, RunWithoutFaultsFinishesWithItsLastStepCommitted) {
  ForSeeds(300, [](uint64_t seed) {
    const SimOptions options = Sized(seed);
    SimWorld world(options, seed);
    world.RunToEnd();
    ASSERT_TRUE(world.problems().empty()) << Tell(world, seed);
    ASSERT_TRUE(world.outcome()) << Tell(world, seed);
    ASSERT_EQ(world.outcome()->state, OutcomeState::kSucceeded) << Tell(world, seed);
    ASSERT_EQ(world.committed()->step, options.total_steps) << Tell(world, seed);
  });
}

// The heart of it: whatever the moment, all ranks stop at one S, and S is on storage before the
// node is released.
TEST(Simulation, TenThousandNoticesStopAllRanksAtExactlyS) {
  uint64_t preempted = 0;
  ForSeeds(10'000, [&](uint64_t seed) {
    const SimOptions options = Sized(seed);
    SimWorld world(options, seed);
    Random random(seed * 3);
    uint64_t moves = random.Below(400);
    world.RunUntil([&] { return moves-- == 0; });
    if (!world.outcome()) world.Notice("n1", seconds(20));
    world.RunToEnd();
    ASSERT_TRUE(world.problems().empty()) << Tell(world, seed);
    ASSERT_TRUE(world.outcome()) << Tell(world, seed);
    if (world.outcome()->state == OutcomeState::kSucceeded) return;
    ++preempted;
    ASSERT_EQ(world.outcome()->state, OutcomeState::kPreempted) << Tell(world, seed);
    ASSERT_EQ(world.outcome()->exit_code, 75) << Tell(world, seed);
    ASSERT_EQ(world.records().size(), 1u) << Tell(world, seed);
    const NoticeRecord& record = world.records().front();
    EXPECT_EQ(record.steps_lost, 0u) << Tell(world, seed);
    EXPECT_TRUE(record.in_time) << Tell(world, seed);
    EXPECT_EQ(record.safe_step, world.entered()) << Tell(world, seed);
    EXPECT_EQ(world.committed() ? world.committed()->step : 0, world.entered())
        << Tell(world, seed);
  });
  if (std::getenv("GODWIT_SIM_SEED") == nullptr && !HasFailure()) {
    EXPECT_GT(preempted, 2500u);
  }
}

TEST(Simulation, HungRankLosesOnlyWhatNoSnapshotHolds) {
  uint64_t abandoned = 0;
  ForSeeds(1'000, [&](uint64_t seed) {
    SimOptions options = Sized(seed);
    options.nodes = 2;
    options.hung_rank = 1;
    options.total_steps = 30;
    SimWorld world(options, seed);
    Random random(seed * 5);
    uint64_t moves = 100 + random.Below(400);
    world.RunUntil([&] { return moves-- == 0; });
    if (world.outcome()) return;
    world.Notice("n1", seconds(5));
    const MonotonicTime deadline = world.now() + seconds(5);
    world.RunToEnd();
    ASSERT_TRUE(world.problems().empty()) << Tell(world, seed);
    ASSERT_TRUE(world.outcome()) << Tell(world, seed);
    ASSERT_EQ(world.records().size(), 1u) << Tell(world, seed);
    const NoticeRecord& record = world.records().front();
    ASSERT_LE(world.now(), deadline + seconds(6)) << Tell(world, seed);  // + agents' time to end
    ASSERT_TRUE(record.in_time) << Tell(world, seed);
    // What is being committed when the time is up may still become safe.
    ASSERT_LE(record.safe_step, world.committed() ? world.committed()->step : 0);
    ASSERT_EQ(record.steps_lost, world.entered() - record.safe_step) << Tell(world, seed);
    if (world.outcome()->state == OutcomeState::kSucceeded) return;
    ASSERT_EQ(world.outcome()->exit_code, record.steps_lost > 0 ? 76 : 75) << Tell(world, seed);
    if (record.agreed_step == 0 && record.steps_lost > 0) {
      ++abandoned;
      ASSERT_FALSE(record.message.empty()) << Tell(world, seed);
    }
  });
  if (std::getenv("GODWIT_SIM_SEED") == nullptr && !HasFailure()) {
    EXPECT_GT(abandoned, 100u);
  }
}

TEST(Simulation, RescindedNoticesLeaveNoTrace) {
  ForSeeds(2'000, [](uint64_t seed) {
    SimOptions options = Sized(seed);
    SimWorld world(options, seed);
    Random random(seed * 7);
    for (int i = 0; i < 3; ++i) {
      uint64_t moves = random.Below(150);
      world.RunUntil([&] { return moves-- == 0; });
      if (world.outcome() || world.state().durable.outcome) break;
      const std::string id = "n" + std::to_string(i);
      world.Notice(id, seconds(20));
      moves = random.Below(60);
      world.RunUntil([&] { return moves-- == 0; });
      if (world.outcome()) break;
      world.Rescind(id);
    }
    world.RunToEnd();
    ASSERT_TRUE(world.problems().empty()) << Tell(world, seed);
    ASSERT_TRUE(world.outcome()) << Tell(world, seed);
    if (world.outcome()->state == OutcomeState::kPreempted) {
      // Only if the last rescind came too late.
      if (!world.rescind_replies().empty()) {
        const ReplyRescind& last = world.rescind_replies().back();
        ASSERT_TRUE(!last.accepted || last.id != world.replies().back().id) << Tell(world, seed);
      }
      return;
    }
    ASSERT_EQ(world.outcome()->state, OutcomeState::kSucceeded) << Tell(world, seed);
    ASSERT_EQ(world.committed()->step, options.total_steps) << Tell(world, seed);
    ASSERT_EQ(world.state().durable.restarts_used, 0u) << Tell(world, seed);
  });
}

// Each damaged commit costs the steps since the one before it, and none of the program's restarts.
TEST(Simulation, DamagedCommitsArePassedOverUpToTheNewestThatCanBeRead) {
  uint64_t passed_over = 0;
  ForSeeds(500, [&](uint64_t seed) {
    SimOptions options = Sized(seed);
    options.persist_every = 2;
    SimWorld first(options, seed);
    Random random(seed * 13);
    first.RunUntil([&] { return first.commits() >= 3; });
    if (!first.outcome()) first.Notice("n1", seconds(20));
    first.RunToEnd();
    options.storage = first.storage();
    options.max_restarts = 0;
    options.total_steps += 4;
    const auto count = static_cast<uint64_t>(random.Between(1, 3));
    auto it = options.storage.rbegin();
    for (uint64_t i = 0; i < count && std::next(it) != options.storage.rend(); ++i, ++it) {
      options.damaged.insert(it->first);
    }
    SimWorld world(options, seed + 1);
    world.RunToEnd();
    ASSERT_TRUE(world.problems().empty()) << Tell(world, seed);
    ASSERT_TRUE(world.outcome()) << Tell(world, seed);
    ASSERT_EQ(world.outcome()->state, OutcomeState::kSucceeded) << Tell(world, seed);
    ASSERT_EQ(world.committed()->step, options.total_steps) << Tell(world, seed);
    const Durable& durable = world.state().durable;
    ASSERT_EQ(durable.distrusted.size(), options.damaged.size()) << Tell(world, seed);
    ASSERT_EQ(durable.resumed_step, it->first.step) << Tell(world, seed);
    ASSERT_EQ(durable.restarts_used, 0u) << Tell(world, seed);
    passed_over += options.damaged.size();
  });
  if (std::getenv("GODWIT_SIM_SEED") == nullptr && !HasFailure()) {
    EXPECT_GT(passed_over, 500u);
  }
}

TEST(Simulation, AnAgentThatIsStartedAgainAfterTheEndIsToldToLeave) {
  ForSeeds(50, [](uint64_t seed) {
    SimWorld world(Sized(seed), seed);
    world.RunToEnd();
    ASSERT_TRUE(world.outcome()) << Tell(world, seed);
    EXPECT_TRUE(world.ReturningAgentIsToldToLeave(0)) << Tell(world, seed);
  });
}

SimOptions Faulty(uint64_t seed) {
  SimOptions options = Sized(seed);
  Random random(seed ^ 0xfa17);
  options.max_faults = 3;
  options.max_restarts = 10;
  if (random.OneIn(2)) options.break_stream_one_in = 60;
  if (random.OneIn(2)) options.kill_worker_one_in = 150;
  if (random.OneIn(3)) options.kill_keeper_one_in = 200;
  if (random.OneIn(2)) options.kill_master_one_in = 60;
  if (random.OneIn(3)) options.fail_storage_one_in = 40;
  return options;
}

TEST(Simulation, FaultsDelayTheEndAndNothingElse) {
  ForSeeds(3'000, [](uint64_t seed) {
    const SimOptions options = Faulty(seed);
    SimWorld world(options, seed);
    world.RunToEnd();
    ASSERT_TRUE(world.problems().empty()) << Tell(world, seed);
    ASSERT_TRUE(world.outcome()) << Tell(world, seed);
    ASSERT_EQ(world.outcome()->state, OutcomeState::kSucceeded) << Tell(world, seed);
    ASSERT_EQ(world.committed()->step, options.total_steps) << Tell(world, seed);
  });
}

TEST(Simulation, NoticesAmongFaultsEndWithARecordThatIsTrue) {
  ForSeeds(3'000, [](uint64_t seed) {
    const SimOptions options = Faulty(seed);
    SimWorld world(options, seed);
    Random random(seed * 11);
    uint64_t moves = random.Below(500);
    world.RunUntil([&] { return moves-- == 0; });
    if (!world.outcome() && !world.state().durable.outcome) {
      world.Notice("n1", milliseconds(random.Between(50, 20'000)));
    } else {
      return;
    }
    world.RunToEnd();
    ASSERT_TRUE(world.problems().empty()) << Tell(world, seed);
    ASSERT_TRUE(world.outcome()) << Tell(world, seed);
    const auto& records = world.state().durable.notices;
    ASSERT_EQ(records.size(), 1u) << Tell(world, seed);
    const uint64_t stored = world.committed() ? world.committed()->step : 0;
    EXPECT_LE(records.front().safe_step, stored) << Tell(world, seed);
    if (world.outcome()->state == OutcomeState::kPreempted) {
      EXPECT_EQ(world.outcome()->exit_code, records.front().steps_lost > 0 ? 76 : 75)
          << Tell(world, seed);
    } else {
      EXPECT_EQ(world.outcome()->state, OutcomeState::kSucceeded) << Tell(world, seed);
    }
  });
}

}  // namespace
}  // namespace godwit::master
