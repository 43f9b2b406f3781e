#include "master/core/planner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace godwit::master {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Planner, PartsAddUp) {
  PlanInput input;
  input.measured.longest_step = milliseconds(200);
  input.measured.snapshot_bytes = 100 << 20;
  const Plan plan = PlanLeave(input);
  EXPECT_GE(plan.agree, milliseconds(200));
  EXPECT_EQ(plan.to_gpu, plan.agree + plan.stage + plan.exit);
  EXPECT_GE(plan.to_node, plan.agree + plan.stage + plan.write + plan.commit);
  EXPECT_GE(plan.to_node, plan.to_gpu);
}

TEST(Planner, NothingToSaveTakesNoTimeToSave) {
  PlanInput input;
  input.needs_save = false;
  const Plan plan = PlanLeave(input);
  EXPECT_EQ(plan.write + plan.commit, Duration(0));
}

TEST(Planner, StandingAtSTakesNoTimeToAgree) {
  PlanInput input;
  input.from = PlanFrom::kStaged;
  EXPECT_EQ(PlanLeave(input).agree, Duration(0));
}

// A plan is a promise: what was measured before, and up to a third worse, is covered.
TEST(Planner, PredictionCoversWhatWasMeasured) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    Measured m;
    m.longest_step = milliseconds(random.Between(1, 5000));
    m.snapshot_bytes = random.Below(1 << 30) + 1;
    m.pack_ns_per_byte = 0.5 + 10 * random.Uniform();
    m.commit = milliseconds(random.Between(1, 500));
    m.stage = milliseconds(random.Between(1, 2000));
    m.exit = milliseconds(random.Between(1, 3000));
    const auto worse = [&](Duration d) {
      return Duration(
          static_cast<int64_t>(static_cast<double>(d.count()) * (1 + random.Uniform() / 3)));
    };
    const Duration write(
        static_cast<int64_t>(m.pack_ns_per_byte * static_cast<double>(m.snapshot_bytes)));
    // A rank in the middle of its longest step finishes it: that is what the longest step says.
    const Duration real =
        m.longest_step + worse(m.stage) + std::max(worse(m.exit), worse(write) + worse(m.commit));
    ASSERT_GE(PlanLeave({m, PlanFrom::kRunning, true}).to_node, real) << "seed " << seed;
    ASSERT_GE(FallbackLead(m), worse(write) + worse(m.commit)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace godwit::master
