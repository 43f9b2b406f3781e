#include "control/step_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/testing/matchers.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GODWIT_TSAN
#elif __has_feature(address_sanitizer)
#define GODWIT_ASAN
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define GODWIT_TSAN
#elif defined(__SANITIZE_ADDRESS__)
#define GODWIT_ASAN
#endif
#if defined(GODWIT_TSAN)
#include <sanitizer/tsan_interface.h>
#elif defined(GODWIT_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

namespace godwit {
namespace {

using testing::IsOk;
using testing::StatusIs;

TEST(StepGateTest, WordKeepsEveryFieldAtItsLimits) {
  for (const uint32_t entered : {0u, 1u, kMaxGateStep}) {
    for (const uint32_t limit : {0u, 5u, kMaxGateStep}) {
      for (const bool closed : {false, true}) {
        for (const bool finished : {false, true}) {
          const GateView view =
              StepGate::Unpack(StepGate::Pack({entered, limit, closed, finished}));
          EXPECT_EQ(view.entered, entered);
          EXPECT_EQ(view.limit, limit);
          EXPECT_EQ(view.closed, closed);
          EXPECT_EQ(view.finished, finished);
        }
      }
    }
  }
}

TEST(StepGateTest, StartsClosedAndOpens) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(80);
  EXPECT_FALSE(gate.TryEnter());
  gate.Open();
  EXPECT_TRUE(gate.TryEnter());
  EXPECT_EQ(gate.Load().entered, 81u);
}

TEST(StepGateTest, CloseSaysExactlyWhatWasEntered) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(0);
  gate.Open();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(gate.TryEnter());
  const GateView view = gate.Close();
  EXPECT_EQ(view.entered, 3u);
  EXPECT_TRUE(view.closed);
  EXPECT_FALSE(gate.TryEnter());
}

TEST(StepGateTest, CloseDuringAnEntryIsSeenByIt) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(0);
  gate.Open();
  GateView view;
  EXPECT_FALSE(gate.TryEnter([&] { view = gate.Close(); }));
  EXPECT_EQ(view.entered, 0u);
  EXPECT_EQ(gate.Load().entered, 0u);
}

TEST(StepGateTest, LimitLetsRunUpToItAndNoFurther) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(7);
  ASSERT_THAT(gate.SetLimit(9), IsOk());
  EXPECT_TRUE(gate.TryEnter());
  EXPECT_TRUE(gate.TryEnter());
  EXPECT_FALSE(gate.TryEnter());
  EXPECT_EQ(gate.Load().entered, 9u);
}

TEST(StepGateTest, ClosingAClosedGateKeepsItsLimit) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(7);
  ASSERT_THAT(gate.SetLimit(9), IsOk());
  EXPECT_EQ(gate.Close().limit, 9u);
}

TEST(StepGateTest, OpeningForgetsTheLimit) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(7);
  ASSERT_THAT(gate.SetLimit(9), IsOk());
  gate.Open();
  EXPECT_EQ(gate.Close().limit, 0u);
}

TEST(StepGateTest, LimitNeedsAClosedGate) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(0);
  gate.Open();
  EXPECT_THAT(gate.SetLimit(9), StatusIs(StatusCode::kFailedPrecondition));
}

TEST(StepGateTest, LimitBehindTheRankIsRefusedNamingBoth) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(7);
  const Status status = gate.SetLimit(6);
  EXPECT_THAT(status, StatusIs(StatusCode::kOutOfRange));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("6"));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("7"));
  EXPECT_THAT(gate.SetLimit(kMaxGateStep + 1), StatusIs(StatusCode::kOutOfRange));
}

TEST(StepGateTest, FinishShowsInLaterCloses) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(7);
  gate.Finish();
  EXPECT_TRUE(gate.Close().finished);
  gate.Open();
  EXPECT_TRUE(gate.Load().finished);
}

TEST(StepGateTest, CountDoesNotOverflowIntoTheLimit) {
  std::atomic<uint64_t> word{0};
  StepGate gate(&word);
  gate.Reset(kMaxGateStep);
  gate.Open();
  EXPECT_FALSE(gate.TryEnter());
  EXPECT_EQ(gate.Load().entered, kMaxGateStep);
  EXPECT_EQ(gate.Load().limit, 0u);
}

// ---- Forced interleavings ----
//
// Ranks and the agents' closing are bodies of which exactly one moves at a time: from one of
// its points to the next, in an order that a seeded generator chooses. So each rank is held at each
// point (before it looks at the gate, between looking and changing the word, inside the
// collective, after it) while everything else happens.

// A gate as one would first write it: the flag is published, then the count is read. The tests
// below must catch it, or they prove nothing.
struct PublishThenCheckGate {
  std::atomic<bool> closed{false};
  std::atomic<uint32_t> limit{0};
  std::atomic<uint32_t> entered{0};

  void Reset(uint32_t step) {
    entered = step;
    limit = 0;
    closed = true;
  }
  template <typename Hook>
  bool TryEnter(Hook&& hook) {
    if (closed && entered >= limit) return false;
    hook();
    ++entered;
    return true;
  }
  void Open() { closed = false; }
  void Finish() {}
  uint32_t Close() {
    closed = true;
    return entered;
  }
  bool SetLimit(uint32_t step) {
    if (entered > step) return false;
    limit = step;
    return true;
  }
  uint32_t Entered() { return entered; }
};

struct RealGate {
  std::atomic<uint64_t> word{0};
  StepGate gate{&word};

  void Reset(uint32_t step) { gate.Reset(step); }
  template <typename Hook>
  bool TryEnter(Hook&& hook) {
    return gate.TryEnter(hook);
  }
  void Open() { gate.Open(); }
  void Finish() { gate.Finish(); }
  uint32_t Close() { return gate.Close().entered; }
  bool SetLimit(uint32_t step) { return gate.SetLimit(step).ok(); }
  uint32_t Entered() { return gate.Load().entered; }
};

// Moves one of several bodies at a time, each on a stack of its own (threads would do, at a hundred
// times the cost).
class Stepper {
 public:
  explicit Stepper(int bodies) : fibers_(bodies) {
    for (Fiber& fiber : fibers_) fiber.stack.resize(kStackBytes);
  }

  // Runs all bodies until they have returned, in an order that `random` chooses. After `max_moves`
  // the rest is told to unwind (Point returns false); the result is then false.
  bool Run(std::vector<std::function<void()>> bodies, Random* random, int max_moves) {
    bodies_ = std::move(bodies);
    unwind_ = false;
    for (size_t i = 0; i < fibers_.size(); ++i) Start(i);
    int moves = 0;
    std::vector<size_t> runnable;
    for (;;) {
      runnable.clear();
      for (size_t i = 0; i < fibers_.size(); ++i) {
        if (fibers_[i].runs) runnable.push_back(i);
      }
      if (runnable.empty()) break;
      if (++moves > max_moves) unwind_ = true;
      current_ = runnable[random->Below(runnable.size())];
      SwitchTo(current_);
    }
    for (Fiber& fiber : fibers_) fiber.Free();
    return !unwind_;
  }

  // Called by a body: others may move now. False: return at once.
  bool Point() {
    SwitchBack(false);
    return !unwind_;
  }

 private:
  static constexpr size_t kStackBytes = 128 * 1024;

  // The sanitizers are told of each switch, or they take one stack for another.
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool runs = false;
#if defined(GODWIT_TSAN)
    void* tsan = nullptr;
    void Free() { __tsan_destroy_fiber(tsan); }
#else
    void* asan = nullptr;
    void Free() {}
#endif
  };

  void Start(size_t i) {
    Fiber& fiber = fibers_[i];
    fiber.runs = true;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Stepper::Main), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
#if defined(GODWIT_TSAN)
    fiber.tsan = __tsan_create_fiber(0);
#endif
  }

  static void Main(unsigned low, unsigned high) {
    auto* self = reinterpret_cast<Stepper*>(uintptr_t{low} | (uintptr_t{high} << 32));
#if defined(GODWIT_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &self->main_stack_, &self->main_stack_bytes_);
#endif
    self->bodies_[self->current_]();
    self->fibers_[self->current_].runs = false;
    self->SwitchBack(true);
  }

  void SwitchTo(size_t i) {
    Fiber& fiber = fibers_[i];
#if defined(GODWIT_TSAN)
    main_tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber.tsan, 0);
#elif defined(GODWIT_ASAN)
    void* main_fake = nullptr;
    __sanitizer_start_switch_fiber(&main_fake, fiber.stack.data(), fiber.stack.size());
#endif
    swapcontext(&main_, &fiber.context);
#if defined(GODWIT_ASAN)
    __sanitizer_finish_switch_fiber(main_fake, nullptr, nullptr);
#endif
  }

  void SwitchBack([[maybe_unused]] bool last) {
    Fiber& fiber = fibers_[current_];
#if defined(GODWIT_TSAN)
    __tsan_switch_to_fiber(main_tsan_, 0);
#elif defined(GODWIT_ASAN)
    __sanitizer_start_switch_fiber(last ? nullptr : &fiber.asan, main_stack_, main_stack_bytes_);
#endif
    swapcontext(&fiber.context, &main_);
#if defined(GODWIT_ASAN)
    __sanitizer_finish_switch_fiber(fiber.asan, &main_stack_, &main_stack_bytes_);
#endif
  }

  std::vector<Fiber> fibers_;
  std::vector<std::function<void()>> bodies_;
  ucontext_t main_;
  size_t current_ = 0;
  bool unwind_ = false;
#if defined(GODWIT_TSAN)
  void* main_tsan_ = nullptr;
#elif defined(GODWIT_ASAN)
  const void* main_stack_ = nullptr;
  size_t main_stack_bytes_ = 0;
#endif
};

enum class RankKind { kTrains, kHangs, kInInit };

struct Outcome {
  uint32_t agreed = 0;     // S
  bool s_refused = false;  // a rank was past S when it got its limit
  bool deadlock = false;
  std::vector<uint32_t> entered;
  std::vector<uint32_t> completed;
  std::vector<RankKind> kinds;
};

// One notice. Ranks train in lockstep through a collective in each step (nobody leaves it before
// all have entered the step), the agents close, agree on S and let the others run up to it.
template <typename Gate>
Outcome RunNotice(Stepper* stepper, Random* random, int ranks, bool with_faults) {
  std::vector<std::unique_ptr<Gate>> gates;
  const uint32_t start = static_cast<uint32_t>(random->Below(3));
  Outcome out;
  out.completed.assign(ranks, start);
  out.kinds.assign(ranks, RankKind::kTrains);
  if (with_faults) {
    // One rank hangs inside a step, or all are still in init when the notice comes.
    const uint64_t fault = random->Below(3);
    if (fault == 0) out.kinds[random->Below(ranks)] = RankKind::kHangs;
    if (fault == 1) out.kinds.assign(ranks, RankKind::kInInit);
  }
  for (int i = 0; i < ranks; ++i) {
    gates.push_back(std::make_unique<Gate>());
    gates.back()->Reset(start);
    // In an epoch that is forming nobody has been let go yet.
    if (out.kinds[i] != RankKind::kInInit) gates.back()->Open();
  }
  // The run may end, for some ranks before the gates close and for others after.
  const uint32_t total = start + 1 + static_cast<uint32_t>(random->Below(12));
  const int notice_after = static_cast<int>(random->Below(40));
  bool limits_set = false;
  std::vector<bool> hung(ranks, false);
  std::vector<std::function<void()>> bodies;
  for (int i = 0; i < ranks; ++i) {
    bodies.push_back([&, i] {
      Gate& gate = *gates[i];
      for (;;) {
        if (!stepper->Point()) return;
        bool unwound = false;
        if (!gate.TryEnter([&] { unwound = !stepper->Point(); })) {
          // At the gate. When the limit has been reached the rank parks.
          if (limits_set && gate.Entered() >= out.agreed) return;
          continue;
        }
        if (unwound) return;
        const uint32_t step = gate.Entered();
        if (out.kinds[i] == RankKind::kHangs && step == start + 1) {
          hung[i] = true;
          return;
        }
        for (;;) {  // the collective
          bool all = true;
          for (const auto& other : gates) all = all && other->Entered() >= step;
          if (std::find(hung.begin(), hung.end(), true) != hung.end()) all = false;
          if (all) break;
          if (!stepper->Point()) return;
        }
        if (!stepper->Point()) return;
        out.completed[i] = step;
        if (step == total) {
          gate.Finish();
          return;
        }
      }
    });
  }
  bodies.push_back([&] {
    for (int i = 0; i < notice_after; ++i) {
      if (!stepper->Point()) return;
    }
    uint32_t agreed = 0;
    for (const auto& gate : gates) {
      agreed = std::max(agreed, gate->Close());
      if (!stepper->Point()) return;
    }
    out.agreed = agreed;
    for (const auto& gate : gates) {
      if (!gate->SetLimit(agreed)) out.s_refused = true;
      if (!stepper->Point()) return;
    }
    limits_set = true;
  });
  // 40 points before the notice, each rank at most a few steps after it; many times what is needed.
  out.deadlock = !stepper->Run(std::move(bodies), random, 1000);
  for (const auto& gate : gates) out.entered.push_back(gate->Entered());
  return out;
}

// Empty, or what went wrong.
std::string Violation(const Outcome& out) {
  const bool hangs = std::count(out.kinds.begin(), out.kinds.end(), RankKind::kHangs) > 0;
  if (out.s_refused) return "a rank was past S when it got its limit";
  for (size_t i = 0; i < out.entered.size(); ++i) {
    if (out.entered[i] > out.agreed) return "rank " + std::to_string(i) + " is past S";
    if (hangs) continue;  // S is not reached then, which is for the deadline to handle
    if (out.entered[i] < out.agreed) return "rank " + std::to_string(i) + " is short of S";
    if (out.completed[i] != out.agreed) return "rank " + std::to_string(i) + " did not complete S";
  }
  if (out.deadlock && !hangs) return "the ranks wait for each other";
  return "";
}

uint64_t Seed() {
  if (const char* text = std::getenv("GODWIT_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

TEST(StepGateInterleavingTest, NoRankPastOrShortOfSInTenThousandInterleavings) {
  const uint64_t seed = Seed();
  SCOPED_TRACE("GODWIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  constexpr int kRanks = 3;
  Stepper stepper(kRanks + 1);
  for (int i = 0; i < 10'000; ++i) {
    const Outcome out = RunNotice<RealGate>(&stepper, &random, kRanks, i % 4 == 0);
    ASSERT_EQ(Violation(out), "") << "interleaving " << i << ", S=" << out.agreed;
  }
}

TEST(StepGateInterleavingTest, AGateThatPublishesThenChecksIsCaught) {
  const uint64_t seed = Seed();
  SCOPED_TRACE("GODWIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  constexpr int kRanks = 3;
  Stepper stepper(kRanks + 1);
  int caught = 0;
  constexpr int kInterleavings = 500;
  for (int i = 0; i < kInterleavings; ++i) {
    if (!Violation(RunNotice<PublishThenCheckGate>(&stepper, &random, kRanks, false)).empty()) {
      ++caught;
    }
  }
  // It goes wrong in a good part of them; a harness that sees it rarely sees too little.
  EXPECT_GT(caught, kInterleavings / 50) << "of " << kInterleavings;
  RecordProperty("caught", caught);
}

// The same without a baton: real concurrency on the real word.
TEST(StepGateTest, CloseIsExactAgainstARunningRank) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<uint64_t> word{0};
    StepGate gate(&word);
    gate.Reset(0);
    gate.Open();
    std::atomic<uint32_t> entered{0};
    std::atomic<bool> running{false};
    std::thread rank([&] {
      while (gate.TryEnter()) {
        entered.fetch_add(1);
        running.store(true);
      }
    });
    while (!running.load()) std::this_thread::yield();
    const uint32_t closed_at = gate.Close().entered;
    rank.join();
    ASSERT_EQ(entered.load(), closed_at);
  }
}

}  // namespace
}  // namespace godwit
