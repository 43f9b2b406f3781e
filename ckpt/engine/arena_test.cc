#include "ckpt/engine/arena.h"

#include <cstring>
#include <map>

#include "base/random.h"
#include "base/testing/matchers.h"
#include "ckpt/engine/arena_rep.h"
#include "ckpt/engine/restore.h"
#include "ckpt/engine/snapshotter.h"
#include "ckpt/testing/toy_rank.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;
using testing::ToyState;

class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest() : plan_(*PlanOf(state_.List())) {
    bytes_.resize(Arena::BytesFor(plan_) + 4096);
    void* p = bytes_.data();
    size_t space = bytes_.size();
    memory_ = {static_cast<std::byte*>(std::align(4096, Arena::BytesFor(plan_), p, space)),
               Arena::BytesFor(plan_)};
  }
  void Stage(Arena& arena, uint64_t step, uint64_t epoch = 1) {
    Snapshotter::Options options;
    options.clock = &RealClock();
    options.epoch = epoch;
    options.term = 5;
    auto s = Snapshotter::Open(state_.List(), arena, options);
    ASSERT_OK(s);
    state_.Fill(step);
    ASSERT_OK((*s)->StageNow(step, std::chrono::seconds(60)));
  }

  ToyState state_{0, 1, 0};
  const Plan plan_;
  std::vector<std::byte> bytes_;
  std::span<std::byte> memory_;
};

TEST_F(ArenaTest, TheAgentSeesWhatTheWorkerStaged) {
  EXPECT_THAT(Arena::Attach(memory_), StatusIs(StatusCode::kFailedPrecondition));
  ASSERT_OK_AND_ASSIGN(Arena worker, Arena::Open(memory_, plan_));
  ASSERT_OK_AND_ASSIGN(Arena agent, Arena::Attach(memory_));
  EXPECT_FALSE(agent.NewestWhole().has_value());
  Stage(worker, 7);
  const auto whole = agent.NewestWhole();
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->step, 7u);
  EXPECT_EQ(whole->epoch, 1u);
  EXPECT_EQ(whole->term, 5u);
  EXPECT_EQ(whole->world_size, 1u);
  Stage(worker, 3, /*epoch=*/2);
  EXPECT_EQ(agent.NewestWhole()->step, 3u);  // by epoch first
  agent.FreeOlder(2, 3);
  EXPECT_FALSE(agent.WholeAt(1, 7).has_value());
  EXPECT_TRUE(agent.WholeAt(2, 3).has_value());
}

TEST_F(ArenaTest, AWorkersSuccessorKeepsWholeSnapshotsAndDropsHalfOnes) {
  {
    ASSERT_OK_AND_ASSIGN(Arena worker, Arena::Open(memory_, plan_));
    Stage(worker, 7);
    ASSERT_TRUE(worker.rep()->TryTakeFree().has_value());  // killed while it filled
  }
  ASSERT_OK_AND_ASSIGN(Arena next, Arena::Open(memory_, plan_));
  EXPECT_TRUE(next.WholeAt(1, 7).has_value());
  int free = 0;
  for (const SlotInfo& s : next.slots()) free += s.state == SlotState::kFree;
  EXPECT_EQ(free, 1);
  state_.Clear();
  ASSERT_OK(RestoreFromMemory(next, 7, 0, 1, state_.List()));
  EXPECT_TRUE(state_.Holds(7));
}

TEST_F(ArenaTest, AnotherPlanClearsTheMemoryAndTheAgentSeesNothingOfTheOldOne) {
  ASSERT_OK_AND_ASSIGN(Arena worker, Arena::Open(memory_, plan_));
  Stage(worker, 7);
  ASSERT_OK_AND_ASSIGN(Arena agent, Arena::Attach(memory_));
  StateList less = state_.List();
  less.tensors.pop_back();
  ASSERT_OK_AND_ASSIGN(const Plan other, PlanOf(less));
  ASSERT_OK_AND_ASSIGN(Arena next, Arena::Open(memory_, other));
  EXPECT_FALSE(agent.NewestWhole().has_value());
  agent.Free(0);  // of the old plan: harmless
  EXPECT_FALSE(next.NewestWhole().has_value());
  ASSERT_OK_AND_ASSIGN(agent, Arena::Attach(memory_));
  EXPECT_EQ(agent.plan().hash(), other.hash());
}

TEST_F(ArenaTest, FreeAllButKeepsTheOneThatAllGoOnFrom) {
  ASSERT_OK_AND_ASSIGN(Arena worker, Arena::Open(memory_, plan_));
  Stage(worker, 20);
  Stage(worker, 30);
  worker.FreeAllBut(1, 20);
  EXPECT_TRUE(worker.WholeAt(1, 20).has_value());
  EXPECT_FALSE(worker.WholeAt(1, 30).has_value());
}

TEST_F(ArenaTest, ASlotThatIsBeingWrittenIsFreedWhenThatEnds) {
  ASSERT_OK_AND_ASSIGN(Arena arena, Arena::Open(memory_, plan_));
  Stage(arena, 20);
  {
    auto pin = Arena::Rep::Pin(arena.rep(), 1, 20);
    ASSERT_TRUE(pin.has_value());
    arena.FreeOlder(9, 9);
    EXPECT_TRUE(arena.WholeAt(1, 20).has_value());
  }
  EXPECT_FALSE(arena.WholeAt(1, 20).has_value());
}

TEST_F(ArenaTest, TooLittleMemoryIsRefused) {
  EXPECT_THAT(Arena::Open(memory_.first(memory_.size() - 1), plan_),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Arena::Attach(memory_.first(100)), StatusIs(StatusCode::kDataLoss));
}

// A worker may write anything into the memory: the agent names it, and neither crashes nor
// allocates what the memory can't hold.
TEST_F(ArenaTest, NonsenseInTheMemoryIsNeverBelieved) {
  const uint64_t seed = SystemRandom64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::memset(memory_.data(), 0, memory_.size());
    ASSERT_OK_AND_ASSIGN(Arena worker, Arena::Open(memory_, plan_));
    if (round % 50 == 0) Stage(worker, 7);
    const uint64_t head = 4096 + plan_.serialized().size();
    const uint64_t slots = worker.rep()->SlotOffset(0);
    for (uint64_t i = 0; i <= random.Below(4); ++i) {
      const uint64_t at = random.OneIn(2)   ? random.Below(64)
                          : random.OneIn(2) ? random.Below(head)
                                            : slots + random.Below(worker.rep()->data_offset);
      memory_[at] = static_cast<std::byte>(random.Next());
    }
    auto agent = Arena::Attach(memory_);
    if (!agent.ok()) {
      EXPECT_THAT(agent.status().message(), HasSubstr("snapshot memory"));
      continue;
    }
    EXPECT_EQ(agent->plan().hash(), plan_.hash());
    for (const SlotInfo& s : agent->slots()) {
      if (s.state != SlotState::kWhole) continue;
      auto table = agent->rep()->CopyTable(s);
      EXPECT_TRUE(!table.ok() || table->size() == plan_.chunks());
      auto state = std::make_unique<ToyState>(0, 1, 0);
      static_cast<void>(RestoreFromMemory(*agent, s.step, 0, 1, state->List()));
    }
  }
}

}  // namespace
}  // namespace godwit::ckpt
