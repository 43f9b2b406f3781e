#include "scheduler/policy/decide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/testing/matchers.h"
#include "scheduler/policy/capacity.h"

namespace godwit::policy {
namespace {

using godwit::testing::IsOk;
using godwit::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DecideTest : public ::testing::Test {
 protected:
  // Three nodes of one slot; team-a is guaranteed 1, team-b 2.
  DecideTest() {
    Nodes({1, 1, 1});
    state_.quotas = {{.name = "team-a", .guaranteed = 1}, {.name = "team-b", .guaranteed = 2}};
    state_.grow_after = std::chrono::seconds(5);
  }

  void Nodes(const std::vector<uint32_t>& slots) {
    state_.nodes.clear();
    for (const uint32_t n : slots) {
      state_.nodes.push_back({"node-" + std::to_string(state_.nodes.size()), n});
    }
  }
  static Job Make(const std::string& id, uint32_t quota, IdleUse idle, uint32_t min, uint32_t max) {
    Job job;
    job.id = id;
    job.quota = quota;
    job.idle = idle;
    job.min_workers = min;
    job.max_workers = max;
    return job;
  }
  std::vector<Action> Submit(Job job) {
    job.seniority = ++seniority_;
    return Do(JobSubmitted{job});
  }
  std::vector<Action> Do(const Event& event) {
    Decision decision = Decide(state_, event, now_);
    wake_at_ = decision.wake_at;
    return decision.actions;
  }
  std::vector<Action> SubmitAndRun(Job job) {
    const std::string id = job.id;
    auto actions = Submit(std::move(job));
    Do(JobRunning{id});
    return actions;
  }
  const Job& job(const std::string& id) { return state_.jobs.at(id); }
  size_t workers(const std::string& id) { return job(id).workers.size(); }
  uint32_t guaranteed(const std::string& id) { return job(id).Slots(Claim::kGuaranteed); }
  uint32_t idle(const std::string& id) { return job(id).Slots(Claim::kIdle); }

  ClusterState state_;
  MonotonicTime now_ = MonotonicTime(std::chrono::seconds(100));
  std::optional<MonotonicTime> wake_at_;
  uint64_t seniority_ = 0;
};

TEST_F(DecideTest, AcceptTakesItsGuaranteeAndIdleSlotsForTheRest) {
  const auto actions = Submit(Make("a", 0, IdleUse::kAccept, 1, 3));
  ASSERT_THAT(actions, SizeIs(1));
  const auto& start = std::get<StartJob>(actions[0]);
  EXPECT_THAT(start.workers, SizeIs(3));
  EXPECT_EQ(guaranteed("a"), 1u);
  EXPECT_EQ(idle("a"), 2u);
}

TEST_F(DecideTest, OnlyTakesIdleSlotsAlsoOfItsOwnQuota) {
  Submit(Make("a", 1, IdleUse::kOnly, 1, 3));
  EXPECT_EQ(guaranteed("a"), 0u);
  EXPECT_EQ(idle("a"), 3u);
}

TEST_F(DecideTest, ForbidNeverExceedsTheGuarantee) {
  Submit(Make("b", 1, IdleUse::kForbid, 1, 3));
  EXPECT_EQ(guaranteed("b"), 2u);
  EXPECT_EQ(idle("b"), 0u);
  EXPECT_THAT(Submit(Make("b2", 1, IdleUse::kForbid, 1, 1)), IsEmpty());
  EXPECT_EQ(job("b2").wait.kind, WaitKind::kQuota);
  EXPECT_EQ(job("b2").wait.text, "waits for quota 'team-b': needs 1 slot of its 2, 0 free");
}

// The path of the demo: lend, reclaim, resume on what is left, grow.
TEST_F(DecideTest, LenderReclaimsAndBorrowerResumesOnItsGuaranteeAndGrowsAfterwards) {
  SubmitAndRun(Make("a", 0, IdleUse::kAccept, 1, 3));
  auto actions = Submit(Make("b", 1, IdleUse::kForbid, 2, 2));
  ASSERT_THAT(actions, SizeIs(1));
  const auto& notice = std::get<NotifyJob>(actions[0]);
  EXPECT_EQ(notice.job, "a");
  EXPECT_EQ(notice.reason, LeaveReason::kReclaim);
  EXPECT_EQ(notice.preemptor, "b");
  EXPECT_EQ(job("b").wait.kind, WaitKind::kRelease);
  EXPECT_EQ(job("b").wait.text, "waits for a to leave");
  EXPECT_THAT(Do(Tick{}), IsEmpty()) << "a plan is made once";

  actions = Do(JobReleased{"a", true});
  ASSERT_THAT(actions, SizeIs(2));
  EXPECT_EQ(guaranteed("b"), 2u);
  EXPECT_EQ(workers("b"), 2u);
  EXPECT_EQ(workers("a"), 1u);
  EXPECT_EQ(guaranteed("a"), 1u);

  Do(JobRunning{"a"});
  Do(JobRunning{"b"});
  now_ += std::chrono::seconds(60);
  actions = Do(JobReleased{"b", false});
  ASSERT_THAT(actions, SizeIs(1));
  const auto& grow = std::get<NotifyJob>(actions[0]);
  EXPECT_EQ(grow.job, "a");
  EXPECT_EQ(grow.reason, LeaveReason::kGrow);
  EXPECT_THAT(Do(Tick{}), IsEmpty());

  actions = Do(JobReleased{"a", true});
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(workers("a"), 3u);
  EXPECT_EQ(guaranteed("a"), 1u);
}

TEST_F(DecideTest, GrowthWaitsUntilTheJobHasRunForAWhile) {
  SubmitAndRun(Make("b", 1, IdleUse::kForbid, 2, 2));
  SubmitAndRun(Make("a", 0, IdleUse::kAccept, 1, 3));
  EXPECT_EQ(workers("a"), 1u);
  EXPECT_THAT(Do(JobReleased{"b", false}), IsEmpty());
  ASSERT_TRUE(wake_at_.has_value());
  EXPECT_EQ(*wake_at_, now_ + state_.grow_after);
  now_ = *wake_at_;
  EXPECT_THAT(Do(Tick{}), SizeIs(1));
}

TEST_F(DecideTest, NobodyGrowsWhileAJobWaitsForCapacity) {
  SubmitAndRun(Make("b", 1, IdleUse::kForbid, 2, 2));
  SubmitAndRun(Make("a", 0, IdleUse::kAccept, 1, 3));
  Submit(Make("big", 0, IdleUse::kOnly, 3, 3));
  now_ += std::chrono::seconds(60);
  EXPECT_THAT(Do(JobReleased{"b", false}), IsEmpty());
  EXPECT_THAT(Do(JobReleased{"big", false}), SizeIs(1)) << "withdrawn: now it may";
}

TEST_F(DecideTest, AMoveThatBroughtNothingIsTriedAgainLater) {
  SubmitAndRun(Make("b", 1, IdleUse::kForbid, 2, 2));
  SubmitAndRun(Make("a", 0, IdleUse::kAccept, 1, 3));
  now_ += std::chrono::seconds(60);
  ASSERT_THAT(Do(JobReleased{"b", false}), SizeIs(1));
  Submit(Make("b2", 1, IdleUse::kForbid, 2, 2));  // takes what it would have grown into
  EXPECT_EQ(workers("b2"), 2u);
  Do(JobReleased{"a", true});
  EXPECT_EQ(workers("a"), 1u);
  EXPECT_EQ(job("a").grow_not_before, now_ + 2 * state_.grow_after);
}

TEST_F(DecideTest, AMovedJobHasAtLeastWhatItHadBeforeOthersGetIdleSlots) {
  SubmitAndRun(Make("b", 1, IdleUse::kForbid, 1, 1));
  SubmitAndRun(Make("a", 0, IdleUse::kAccept, 1, 3));
  ASSERT_EQ(workers("a"), 2u);
  now_ += std::chrono::seconds(60);
  ASSERT_THAT(Do(JobReleased{"b", false}), SizeIs(1));
  EXPECT_THAT(Submit(Make("c1", 1, IdleUse::kOnly, 1, 1)), IsEmpty());
  EXPECT_THAT(Submit(Make("c2", 1, IdleUse::kOnly, 1, 1)), IsEmpty());
  Do(JobReleased{"a", true});
  EXPECT_EQ(workers("a"), 2u);
  EXPECT_EQ(workers("c1"), 1u) << "growth comes after all who wait";
  EXPECT_EQ(workers("c2"), 0u);
}

TEST_F(DecideTest, AWaitingJobThatUsesIdleCapacityNeverReclaims) {
  SubmitAndRun(Make("a", 0, IdleUse::kOnly, 3, 3));
  EXPECT_THAT(Submit(Make("b", 1, IdleUse::kAccept, 2, 2)), IsEmpty());
  EXPECT_THAT(Submit(Make("c", 1, IdleUse::kOnly, 1, 1)), IsEmpty());
  EXPECT_EQ(job("b").wait.text, "waits for capacity: needs 2 slots, 0 usable by quota 'team-b'");
}

TEST_F(DecideTest, LenderBeatsTheBorrowersClass) {
  Job high = Make("a", 0, IdleUse::kAccept, 1, 3);
  high.job_class = JobClass::kHigh;
  SubmitAndRun(high);
  Job low = Make("b", 1, IdleUse::kForbid, 2, 2);
  low.job_class = JobClass::kLow;
  EXPECT_THAT(Submit(low), SizeIs(1));
}

TEST_F(DecideTest, AJobBehindTheHeadOfAStrictQueueDoesNotReclaim) {
  state_.quotas[1].queue = QueueStrategy::kStrictFifo;
  SubmitAndRun(Make("b", 1, IdleUse::kForbid, 1, 1));
  SubmitAndRun(Make("a", 0, IdleUse::kAccept, 1, 3));
  ASSERT_EQ(idle("a"), 1u);
  Submit(Make("head", 1, IdleUse::kForbid, 2, 2));  // does not fit the guarantee's rest
  EXPECT_THAT(Submit(Make("next", 1, IdleUse::kForbid, 1, 1)), IsEmpty());
  EXPECT_EQ(job("next").wait.kind, WaitKind::kBehind);
  EXPECT_EQ(job("next").wait.text, "waits behind head, the head of quota 'team-b' (strict fifo)");
  EXPECT_EQ(job("a").phase, Phase::kRunning);
}

TEST_F(DecideTest, ARoundRobinQueueSkipsAnUnplaceableJob) {
  SubmitAndRun(Make("b", 1, IdleUse::kForbid, 1, 1));
  Submit(Make("head", 1, IdleUse::kForbid, 2, 2));
  EXPECT_THAT(Submit(Make("next", 1, IdleUse::kForbid, 1, 1)), SizeIs(1));
}

TEST_F(DecideTest, StrictQueueGoesOnOnceItsHeadIsPlaced) {
  state_.quotas[1].queue = QueueStrategy::kStrictFifo;
  SubmitAndRun(Make("b", 1, IdleUse::kForbid, 2, 2));
  Submit(Make("head", 1, IdleUse::kForbid, 1, 1));
  Submit(Make("next", 1, IdleUse::kForbid, 1, 1));
  EXPECT_THAT(Do(JobReleased{"b", false}), SizeIs(2));
}

TEST_F(DecideTest, OtherQuotasGuaranteedSlotsAreNotTouched) {
  Nodes({1, 1, 1, 1});
  state_.quotas.push_back({.name = "team-c", .guaranteed = 1});
  SubmitAndRun(Make("a", 0, IdleUse::kForbid, 1, 1));
  SubmitAndRun(Make("c", 2, IdleUse::kOnly, 1, 1));
  SubmitAndRun(Make("x", 2, IdleUse::kAccept, 2, 2));  // one guaranteed, one idle
  const auto actions = Submit(Make("b", 1, IdleUse::kForbid, 2, 2));
  // x leaves two slots free, of which one stays team-c's: c must go too.
  EXPECT_THAT(actions, SizeIs(2));
  EXPECT_EQ(job("a").phase, Phase::kRunning);
}

TEST_F(DecideTest, FewestVictimsGo) {
  Nodes({2, 2, 2});
  state_.quotas = {{.name = "team-a", .guaranteed = 0}, {.name = "team-b", .guaranteed = 6}};
  SubmitAndRun(Make("one", 0, IdleUse::kOnly, 1, 1));
  SubmitAndRun(Make("two", 0, IdleUse::kOnly, 2, 2));
  SubmitAndRun(Make("three", 0, IdleUse::kOnly, 3, 3));
  const auto actions = Submit(Make("b", 1, IdleUse::kForbid, 3, 3));
  // In the order of preference: one, two, three; one and two together suffice.
  ASSERT_THAT(actions, SizeIs(2));
  const auto& notice = std::get<NotifyJob>(actions[0]);
  ASSERT_TRUE(notice.certificate.has_value());
  EXPECT_THAT(notice.certificate->victims, SizeIs(2));
  EXPECT_EQ(notice.certificate->victims[0].slots_without, 2u);
  EXPECT_THAT(notice.certificate->considered, ::testing::ElementsAre("one", "two", "three"));
}

TEST_F(DecideTest, NoVictimIsSuperfluous) {
  Nodes({2, 2, 2});
  state_.quotas = {{.name = "team-a", .guaranteed = 0}, {.name = "team-b", .guaranteed = 6}};
  SubmitAndRun(Make("one", 0, IdleUse::kOnly, 1, 1));
  SubmitAndRun(Make("five", 0, IdleUse::kOnly, 5, 5));
  const auto actions = Submit(Make("b", 1, IdleUse::kForbid, 4, 4));
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<NotifyJob>(actions[0]).job, "five");
}

TEST_F(DecideTest, AnInfeasibleJobEvictsNobody) {
  Nodes({2, 1, 1});
  state_.quotas = {{.name = "team-a", .guaranteed = 2}, {.name = "team-b", .guaranteed = 2}};
  SubmitAndRun(Make("a", 0, IdleUse::kForbid, 2, 2));  // on the node of two
  SubmitAndRun(Make("x", 0, IdleUse::kOnly, 2, 2));
  Job wide = Make("b", 1, IdleUse::kForbid, 1, 1);
  wide.slots_per_worker = 2;
  EXPECT_THAT(Submit(wide), IsEmpty());
  EXPECT_EQ(job("x").phase, Phase::kRunning);
  EXPECT_EQ(job("b").wait.kind, WaitKind::kCapacity);
  EXPECT_THAT(job("b").wait.text, HasSubstr("even if all 1 jobs on idle capacity left"));
}

TEST_F(DecideTest, ReleasedSlotsAreReservedForWhomTheyWereReclaimed) {
  SubmitAndRun(Make("a", 0, IdleUse::kOnly, 2, 2));
  Submit(Make("b", 1, IdleUse::kForbid, 2, 2));
  ASSERT_EQ(job("a").phase, Phase::kLeaving);
  EXPECT_THAT(Submit(Make("other", 0, IdleUse::kOnly, 1, 1)), SizeIs(1)) << "one slot stays free";
  EXPECT_THAT(Submit(Make("late", 0, IdleUse::kOnly, 1, 1)), IsEmpty());
  Do(JobReleased{"a", true});
  EXPECT_EQ(workers("b"), 2u);
  EXPECT_EQ(workers("late"), 0u);
}

TEST_F(DecideTest, AQuotaThatDoesNotLendKeepsItsFreeSlots) {
  state_.quotas[1].lendable = false;
  Submit(Make("a", 0, IdleUse::kAccept, 1, 3));
  EXPECT_EQ(workers("a"), 1u);
  EXPECT_THAT(Submit(Make("b", 1, IdleUse::kOnly, 2, 2)), SizeIs(1)) << "its own may use them";
}

TEST_F(DecideTest, MaxBoundsBorrowing) {
  state_.quotas[0].max = 2;
  Submit(Make("a", 0, IdleUse::kAccept, 1, 3));
  EXPECT_EQ(workers("a"), 2u);
}

TEST_F(DecideTest, FreeIdleSlotsGoToTheClassThenTheSmallestBorrowedShareThenTheSenior) {
  Nodes({4});
  state_.quotas = {{.name = "a", .guaranteed = 1},
                   {.name = "b", .guaranteed = 1},
                   {.name = "owner", .guaranteed = 2}};
  SubmitAndRun(Make("full", 2, IdleUse::kForbid, 2, 2));
  SubmitAndRun(Make("a1", 0, IdleUse::kOnly, 1, 1));
  SubmitAndRun(Make("hold", 0, IdleUse::kOnly, 1, 1));
  Submit(Make("a2", 0, IdleUse::kOnly, 1, 1));
  Submit(Make("b1", 1, IdleUse::kOnly, 1, 1));
  Job high = Make("a3", 0, IdleUse::kOnly, 1, 1);
  high.job_class = JobClass::kHigh;
  Submit(high);
  Do(JobReleased{"hold", false});
  EXPECT_EQ(workers("a3"), 1u) << "the higher class first";
  Do(JobReleased{"a3", false});
  EXPECT_EQ(workers("b1"), 1u) << "its quota has borrowed less";
  Do(JobReleased{"b1", false});
  EXPECT_EQ(workers("a2"), 1u);
}

TEST_F(DecideTest, IdleClaimsBecomeGuaranteedInPlaceWhenThereIsRoom) {
  Submit(Make("first", 0, IdleUse::kForbid, 1, 1));
  SubmitAndRun(Make("a", 0, IdleUse::kAccept, 2, 2));
  EXPECT_EQ(idle("a"), 2u);
  const auto actions = Do(JobReleased{"first", false});
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<PromoteJob>(actions[0]).workers, 1u);
  EXPECT_EQ(guaranteed("a"), 1u);
  EXPECT_EQ(idle("a"), 1u);
}

TEST_F(DecideTest, NobodyIsPromotedIntoRoomThatAnOrdinaryJobWaitsFor) {
  Nodes({1, 1, 1, 1});
  state_.quotas = {{.name = "team-a", .guaranteed = 2}, {.name = "team-b", .guaranteed = 2}};
  Submit(Make("first", 0, IdleUse::kForbid, 2, 2));
  SubmitAndRun(Make("a", 0, IdleUse::kAccept, 2, 2));
  Submit(Make("second", 0, IdleUse::kForbid, 2, 2));
  const auto actions = Do(JobReleased{"first", false});
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<StartJob>(actions[0]).job, "second");
  EXPECT_EQ(idle("a"), 2u);
}

TEST_F(DecideTest, SeniorityIsKeptThroughPreemption) {
  SubmitAndRun(Make("a", 0, IdleUse::kOnly, 3, 3));
  Submit(Make("b", 1, IdleUse::kForbid, 2, 2));
  Submit(Make("late", 0, IdleUse::kOnly, 1, 1));
  state_.jobs.at("a").min_workers = 1;  // may resume on fewer
  Do(JobReleased{"a", true});
  EXPECT_EQ(workers("a"), 1u);
  EXPECT_EQ(workers("late"), 0u);
}

TEST_F(DecideTest, AJobThatCanNeverFitIsNamedWithTheReason) {
  Job b = Make("b", 1, IdleUse::kForbid, 3, 3);
  EXPECT_THAT(NeverFits(state_, b).value(), HasSubstr("quota 'team-b' guarantees 2"));
  b.idle = IdleUse::kAccept;
  EXPECT_FALSE(NeverFits(state_, b).has_value());
  b.min_workers = 4;
  EXPECT_THAT(NeverFits(state_, b).value(), HasSubstr("the whole cluster has room for 3"));
  b.min_workers = 1;
  b.slots_per_worker = 2;
  EXPECT_THAT(NeverFits(state_, b).value(), HasSubstr("the largest node has 1"));
  state_.quotas[1].lendable = false;
  EXPECT_THAT(NeverFits(state_, Make("a", 0, IdleUse::kAccept, 2, 2)).value(),
              HasSubstr("at most 1 can ever be free"));
  state_.quotas[0].max = 1;
  state_.quotas[1].lendable = true;
  EXPECT_THAT(NeverFits(state_, Make("a", 0, IdleUse::kAccept, 2, 2)).value(),
              HasSubstr("may use at most 1"));
}

TEST_F(DecideTest, ACertificateChecksAndAForgedOneDoesNot) {
  SubmitAndRun(Make("a", 0, IdleUse::kOnly, 1, 1));
  SubmitAndRun(Make("x", 0, IdleUse::kOnly, 2, 2));
  Job b = Make("b", 1, IdleUse::kForbid, 2, 2);
  b.seniority = 9;
  state_.jobs.emplace("b", b);
  const ClusterState before = state_;
  auto plan = PlanReclaim(before, b, Capacity(before, Capacity::At::kReleased));
  const auto certificate = std::get<Certificate>(plan);
  EXPECT_OK(CheckCertificate(before, certificate));
  Certificate superset = certificate;
  superset.victims.push_back({"a"});
  EXPECT_THAT(CheckCertificate(before, superset),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("a need not have left")));
  Certificate short_of = certificate;
  short_of.victims = {{"a"}};
  EXPECT_THAT(CheckCertificate(before, short_of),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("would not fit")));
}

TEST_F(DecideTest, LateReportsChangeNothing) {
  EXPECT_THAT(Do(JobRunning{"ghost"}), IsEmpty());
  EXPECT_THAT(Do(JobReleased{"ghost", true}), IsEmpty());
  EXPECT_THAT(Do(JobLeaving{"ghost", LeaveReason::kStop}), IsEmpty());
}

}  // namespace
}  // namespace godwit::policy
