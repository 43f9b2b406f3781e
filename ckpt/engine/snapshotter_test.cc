#include "ckpt/engine/snapshotter.h"

#include <cstdlib>
#include <functional>
#include <future>
#include <new>
#include <thread>

#include "base/testing/matchers.h"
#include "ckpt/engine/arena_rep.h"
#include "ckpt/engine/restore.h"
#include "ckpt/testing/toy_state.h"

namespace {
// Allocations of the calling thread while it counts.
thread_local bool counting = false;
thread_local int allocations = 0;
}  // namespace

// Not inlined: the compiler would see malloc beside delete, and warn.
__attribute__((noinline)) void* operator new(size_t n) {
  if (counting) ++allocations;
  if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ToyState;
using namespace std::chrono_literals;

constexpr Duration kBound = 60s;  // only against hangs

class SnapshotterTest : public ::testing::Test {
 protected:
  void Open() { Open(state_.List()); }
  void Open(const StateList& list) {
    auto plan = PlanOf(list);
    ASSERT_OK(plan);
    auto arena = Arena::Private(*plan);
    ASSERT_OK(arena);
    arena_.emplace(*arena);
    options_.clock = &RealClock();
    options_.epoch = 1;
    options_.on_whole = [this](uint64_t step, uint64_t) { whole_ = step; };
    options_.on_dropped = [this](uint64_t step, const Status& why) {
      dropped_ = step;
      why_ = why;
    };
    auto snapshotter = Snapshotter::Open(list, *arena_, options_);
    ASSERT_OK(snapshotter);
    snapshotter_ = std::move(*snapshotter);
  }
  void WaitIdle() {
    const MonotonicTime end = RealClock().Monotonic() + kBound;
    while (snapshotter_->busy() && RealClock().Monotonic() < end) std::this_thread::yield();
    ASSERT_FALSE(snapshotter_->busy());
  }

  ToyState state_{0, 1};
  std::optional<Arena> arena_;
  Snapshotter::Options options_;
  std::unique_ptr<Snapshotter> snapshotter_;
  uint64_t whole_ = 0;  // read when idle
  uint64_t dropped_ = 0;
  Status why_;
};

TEST_F(SnapshotterTest, TheStateOfTheBoundaryIsStagedBehindTheNextStep) {
  Open();
  for (uint64_t step = 1; step <= 20; ++step) {
    ASSERT_OK(snapshotter_->Fence());
    state_.Fill(step);
    arena_->FreeOlder(2, 0);
    ASSERT_OK(snapshotter_->Begin(step));
    ASSERT_OK(snapshotter_->Fence());
    // From here on the state may change.
    state_.Fill(1000 + step);
    WaitIdle();
    EXPECT_EQ(snapshotter_->last_whole_step(), step);
    EXPECT_EQ(whole_, step);
    ToyState back(0, 1);
    ASSERT_OK(RestoreFromMemory(*arena_, step, 0, 1, back.List()));
    EXPECT_TRUE(back.Holds(step));
  }
  EXPECT_EQ(dropped_, 0u);
}

TEST_F(SnapshotterTest, VolatileStateIsThatOfTheBoundaryWhateverChangesBeforeTheFence) {
  Open();
  state_.Fill(1);
  ASSERT_OK(snapshotter_->Begin(1));
  state_.data(7)[0] ^= std::byte{255};  // running_mean
  state_.blob(0) = "changed in forward";
  ASSERT_OK(snapshotter_->Fence());
  WaitIdle();
  ToyState back(0, 1);
  ASSERT_OK(RestoreFromMemory(*arena_, 1, 0, 1, back.List()));
  EXPECT_TRUE(back.Holds(1));
}

// Holds the snapshot thread at the end of its copy, where it asks for the version of a tensor.
class HeldCopy {
 public:
  std::function<uint64_t()> Version(std::function<uint64_t()> then) {
    return [this, then]() -> uint64_t {
      if (std::this_thread::get_id() != trainer_) {
        reached_.set_value();
        released_.get_future().wait_for(kBound);
      }
      return then ? then() : 0;
    };
  }
  void WaitReached() { reached_.get_future().wait_for(kBound); }
  void Release() { released_.set_value(); }
  // For the next copy.
  void Reset() {
    reached_ = {};
    released_ = {};
  }

 private:
  const std::thread::id trainer_ = std::this_thread::get_id();
  std::promise<void> reached_;
  std::promise<void> released_;
};

TEST_F(SnapshotterTest, AWriterOutsideUpdateIsNamedAndTheSnapshotDropped) {
  StateList list = state_.List();
  HeldCopy held;
  list.tensors[1].version = held.Version(list.tensors[1].version);
  Open(list);
  state_.Fill(1);
  ASSERT_OK(snapshotter_->Begin(1));
  held.WaitReached();
  state_.Touch(2);  // 'scalar', behind the back of the fence
  held.Release();
  ASSERT_OK(snapshotter_->Fence());
  WaitIdle();
  EXPECT_EQ(dropped_, 1u);
  EXPECT_THAT(why_, StatusIs(StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr("'scalar'"), HasSubstr("outside Update"))));
  EXPECT_FALSE(snapshotter_->has_whole());
  EXPECT_FALSE(arena_->NewestWhole().has_value());
  // The slot is free again, and the next one works.
  held.Reset();
  held.Release();
  EXPECT_OK(snapshotter_->StageNow(2, kBound));
}

TEST_F(SnapshotterTest, VerifyBoundaryFindsAWriterWithoutAVersionCounter) {
  options_.verify_boundary = true;
  StateList list = state_.List();
  HeldCopy held;
  for (auto& t : list.tensors) t.version = nullptr;
  list.tensors[0].version = held.Version(nullptr);
  Open(list);
  state_.Fill(1);
  ASSERT_OK(snapshotter_->Begin(1));
  held.WaitReached();
  state_.data(5)[77] ^= std::byte{1};
  held.Release();
  ASSERT_OK(snapshotter_->Fence());
  WaitIdle();
  EXPECT_EQ(dropped_, 1u);
  EXPECT_THAT(why_, StatusIs(StatusCode::kFailedPrecondition, HasSubstr("'h.weight'")));
  held.Reset();
  held.Release();
  EXPECT_OK(snapshotter_->StageNow(2, kBound));
}

TEST_F(SnapshotterTest, StorageThatMovedIsNamed) {
  StateList list = state_.List();
  bool moved = false;
  void* const data = list.tensors[5].data;
  list.tensors[5].data_now = [&moved, data]() -> void* {
    return moved ? static_cast<char*>(data) + 4 : data;
  };
  Open(list);
  EXPECT_OK(snapshotter_->StageNow(1, kBound));
  moved = true;
  EXPECT_THAT(snapshotter_->Begin(2),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("'h.weight'")));
  EXPECT_THAT(snapshotter_->StageNow(2, kBound), StatusIs(StatusCode::kFailedPrecondition));
  moved = false;
  EXPECT_OK(snapshotter_->StageNow(3, kBound));
}

TEST_F(SnapshotterTest, ABlobThatGrewBeyondItsLimitIsNamed) {
  Open();
  state_.Fill(1);
  state_.blob(0).assign(65 * 1024, 'x');
  EXPECT_THAT(snapshotter_->Begin(1), StatusIs(StatusCode::kFailedPrecondition,
                                               AllOf(HasSubstr("'sampler'"), HasSubstr("65536"))));
  state_.Fill(2);
  EXPECT_OK(snapshotter_->StageNow(2, kBound));
}

TEST_F(SnapshotterTest, TheFencesBudgetEndsTheSnapshotAndNotTheTraining) {
  StateList list = state_.List();
  HeldCopy held;
  list.tensors[0].version = held.Version(nullptr);
  options_.fence_budget = 5ms;
  Open(list);
  state_.Fill(1);
  ASSERT_OK(snapshotter_->Begin(1));
  EXPECT_THAT(snapshotter_->Fence(), StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("step 1")));
  EXPECT_OK(snapshotter_->Fence());  // training goes on
  EXPECT_GE(snapshotter_->fence_wait_total(), 5ms);
  EXPECT_THAT(snapshotter_->Begin(2), StatusIs(StatusCode::kUnavailable, HasSubstr("step 1")));
  EXPECT_THAT(snapshotter_->StageNow(2, 1ms), StatusIs(StatusCode::kDeadlineExceeded));
  held.Release();
  WaitIdle();
  EXPECT_EQ(dropped_, 1u);
  EXPECT_THAT(why_, StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(arena_->NewestWhole().has_value());
  held.Reset();
  held.Release();
  EXPECT_OK(snapshotter_->StageNow(3, kBound));
}

TEST_F(SnapshotterTest, ASnapshotIsSkippedWhenNoSlotIsFree) {
  Open();
  EXPECT_OK(snapshotter_->StageNow(1, kBound));
  EXPECT_OK(snapshotter_->StageNow(2, kBound));
  EXPECT_THAT(snapshotter_->Begin(3), StatusIs(StatusCode::kUnavailable, HasSubstr("slots")));
  EXPECT_THAT(snapshotter_->StageNow(3, 1ms),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("no slot")));
  std::thread agent([&] { arena_->FreeOlder(1, 2); });
  EXPECT_OK(snapshotter_->StageNow(3, kBound));  // waits for it
  agent.join();
  EXPECT_FALSE(arena_->WholeAt(1, 1).has_value());
  EXPECT_TRUE(arena_->WholeAt(1, 2).has_value());
  EXPECT_TRUE(arena_->WholeAt(1, 3).has_value());
}

TEST_F(SnapshotterTest, StageNowTakesTheSnapshotOfItsStepThatIsUnderWay) {
  Open();
  state_.Fill(4);
  ASSERT_OK(snapshotter_->Begin(4));
  ASSERT_OK(snapshotter_->StageNow(4, kBound));
  ASSERT_OK(snapshotter_->StageNow(4, kBound));
  int whole = 0;
  for (const SlotInfo& s : arena_->slots()) whole += s.state == SlotState::kWhole;
  EXPECT_EQ(whole, 1);
}

TEST_F(SnapshotterTest, ItCanBeDestroyedAtAnyMoment) {
  for (int i = 0; i < 30; ++i) {
    Open();
    state_.Fill(1);
    ASSERT_OK(snapshotter_->Begin(1));
    snapshotter_.reset();
    for (const SlotInfo& s : arena_->slots()) EXPECT_NE(s.state, SlotState::kFilling);
  }
}

TEST_F(SnapshotterTest, TooMuchVolatileStateIsRefusedAtOpen) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanOf(state_.List()));
  ASSERT_OK_AND_ASSIGN(Arena arena, Arena::Private(plan));
  options_.clock = &RealClock();
  options_.volatile_budget_bytes = 1000;
  EXPECT_THAT(Snapshotter::Open(state_.List(), arena, options_),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("volatile")));
}

TEST_F(SnapshotterTest, AnArenaOfAnotherPlanIsRefused) {
  StateList list = state_.List();
  list.tensors.pop_back();
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanOf(list));
  ASSERT_OK_AND_ASSIGN(Arena arena, Arena::Private(plan));
  options_.clock = &RealClock();
  EXPECT_THAT(Snapshotter::Open(state_.List(), arena, options_),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("plan")));
}

TEST_F(SnapshotterTest, NeitherFenceNorBeginAllocates) {
  StateList list = state_.List();
  list.blobs.clear();  // their bytes come in a string
  Open(list);
  ASSERT_OK(snapshotter_->StageNow(1, kBound));
  allocations = 0;
  counting = true;
  const bool fence = snapshotter_->Fence().ok();
  const bool begin = snapshotter_->Begin(2).ok();
  const bool again = snapshotter_->Fence().ok();
  counting = false;
  EXPECT_TRUE(fence && begin && again);
  EXPECT_EQ(allocations, 0);
}

}  // namespace
}  // namespace godwit::ckpt
