#include "scheduler/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

// Notes what it's told; ends attempts when the test says so.
class FakeExecutor : public Executor {
 public:
  void Start(const AttemptPlan& plan) override { calls.push_back("start " + plan.job_id); }
  void Adopt(const AttemptPlan& plan, const std::vector<ProcessRecord>&) override {
    calls.push_back("adopt " + plan.job_id);
  }
  void SetDeadline(const std::string& job_id, uint32_t, MonotonicTime deadline) override {
    calls.push_back("deadline " + job_id);
    last_deadline = deadline;
  }
  void Finish(const std::string& job_id, uint32_t, Duration) override {
    calls.push_back("finish " + job_id);
  }
  std::vector<std::string> Take() { return std::exchange(calls, {}); }

  std::vector<std::string> calls;
  MonotonicTime last_deadline{};
};

class ControllerTest : public ::testing::Test {
 protected:
  ControllerTest() : dir_(TempDir::Create("godwit-controller").value()) {
    config_.quotas = {{.name = "team-a", .guaranteed = 1}, {.name = "team-b", .guaranteed = 2}};
    config_.notice = std::chrono::seconds(20);
    Open();
  }
  void Open() {
    controller_.reset();
    store_.reset();
    loop_ = EventLoop::Open().value();
    store_ = Store::Open(dir_.path()).value();
    controller_ = std::make_unique<Controller>(
        config_, std::vector<policy::Node>{{"node-0", 1}, {"node-1", 1}, {"node-2", 1}}, "/run",
        *store_, *loop_, clock_);
  }
  void Begin() { ASSERT_THAT(controller_->Begin(executor_), IsOk()); }
  static proto::JobSpec Spec(const std::string& quota, const std::string& idle, uint32_t min,
                             uint32_t max) {
    proto::JobSpec spec;
    spec.set_quota(quota);
    spec.set_idle(idle);
    spec.set_min_workers(min);
    spec.set_max_workers(max);
    spec.set_slots_per_worker(1);
    return spec;
  }
  const Controller::Job& job(const std::string& id) { return **controller_->Find(id); }
  bool Report(const std::string& id, proto::MasterReport report) {
    report.set_job_id(id);
    report.set_attempt(job(id).record.attempt);
    report.set_pid(7);
    report.set_sequence(++sequence_);
    return controller_->Report(report);
  }
  void Register(const std::string& id) {
    proto::RegisterMasterRequest request;
    request.set_job_id(id);
    request.set_attempt(job(id).record.attempt);
    request.set_pid(7);
    request.set_address("unix:/m");
    proto::RegisterMasterReply reply;
    ASSERT_OK(controller_->RegisterMaster(request, &reply));
  }
  void Running(const std::string& id) {
    proto::MasterReport report;
    report.mutable_status()->set_state("Running");
    EXPECT_TRUE(Report(id, report));
  }

  TempDir dir_;
  ClusterConfig config_;
  FakeClock clock_;
  FakeExecutor executor_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Controller> controller_;
  uint64_t sequence_ = 0;
};

TEST_F(ControllerTest, NothingIsBegunThatIsNotWrittenDown) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string a, controller_->Submit(Spec("team-a", "only", 3, 3), ""));
  EXPECT_THAT(executor_.Take(), ElementsAre("start job-1"));
  Register(a);
  Running(a);

  ASSERT_OK(store_->LimitPagesForTest(1));  // full
  proto::MasterReport last;
  last.mutable_outcome()->set_state("Succeeded");
  // A report that is larger than what is free in the pages there are.
  last.mutable_status()->set_state(std::string(1 << 20, 'x'));
  EXPECT_TRUE(Report(a, last));
  EXPECT_THAT(controller_->store_status(), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(executor_.Take(), IsEmpty()) << "the outcome is not safe yet";
  EXPECT_THAT(controller_->Submit(Spec("team-b", "forbid", 2, 2), ""),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("scheduler.db")));
  EXPECT_EQ(controller_->jobs().size(), 1u);

  ASSERT_OK(store_->LimitPagesForTest(1000000));
  ASSERT_OK_AND_ASSIGN(const std::string b,
                       controller_->Submit(Spec("team-b", "forbid", 2, 2), ""));
  EXPECT_OK(controller_->store_status());
  EXPECT_EQ(executor_.Take().front(), "finish job-1") << "what waited is done, nothing is lost";
  EXPECT_EQ(job(a).attempt->outcome->state(), "Succeeded");
}

TEST_F(ControllerTest, ARestartGoesOnWithPlansDeadlinesAndSeniority) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string a,
                       controller_->Submit(Spec("team-a", "accept", 1, 3), ""));
  Register(a);
  Running(a);
  ASSERT_OK_AND_ASSIGN(const std::string b,
                       controller_->Submit(Spec("team-b", "forbid", 2, 2), ""));
  ASSERT_TRUE(job(a).Leaving());
  const MonotonicTime deadline = executor_.last_deadline;
  EXPECT_EQ(deadline, clock_.Monotonic() + config_.notice);
  executor_.Take();

  Open();
  clock_.Advance(std::chrono::seconds(3));
  Begin();
  EXPECT_THAT(executor_.Take(), ElementsAre("adopt job-1", "deadline job-1"));
  EXPECT_EQ(executor_.last_deadline, deadline) << "a restart gives no extra time";
  ASSERT_OK_AND_ASSIGN(const auto directives, controller_->Directives(a, 1, 0));
  ASSERT_EQ(directives.size(), 1u);
  EXPECT_EQ(directives[0].notice().time_left_ns(), 17'000'000'000u);
  EXPECT_EQ(job(b).record.reason, "waits for job-1 to leave");
  controller_->OnAttemptGone(a, 1);
  EXPECT_THAT(executor_.Take(), ElementsAre("start job-2", "start job-1"));
  EXPECT_EQ(job(a).attempt->workers.size(), 1u);
  EXPECT_EQ(job(a).record.preemptions, 1u);
}

TEST_F(ControllerTest, AJobWhoseProcessesAreLostQueuesAgainUncharged) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string a,
                       controller_->Submit(Spec("team-a", "forbid", 1, 1), ""));
  controller_->OnAttemptLost(a, 1, "the master ended 6 times in a row", false);
  controller_->OnAttemptGone(a, 1);
  EXPECT_EQ(job(a).record.attempt, 2u);
  EXPECT_EQ(job(a).record.restarts, 0u);
  controller_->OnAttemptLost(a, 2, "cannot execute './x'", true);
  controller_->OnAttemptGone(a, 2);
  EXPECT_EQ(job(a).record.state, JobState::kFailed);
  EXPECT_EQ(job(a).record.reason, "cannot execute './x'");
}

TEST_F(ControllerTest, FinishingInTheGraceIsASuccess) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string a, controller_->Submit(Spec("team-a", "only", 3, 3), ""));
  Register(a);
  Running(a);
  ASSERT_OK(controller_->Submit(Spec("team-b", "forbid", 2, 2), "").status());
  ASSERT_TRUE(job(a).Leaving());
  proto::MasterReport last;
  last.mutable_outcome()->set_state("Succeeded");
  EXPECT_TRUE(Report(a, last));
  controller_->OnAttemptGone(a, 1);
  EXPECT_EQ(job(a).record.state, JobState::kSucceeded);
  EXPECT_EQ(job(a).record.preemptions, 0u);
}

TEST_F(ControllerTest, AClusterWithoutPlaceForARunningJobIsRefusedByName) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string a,
                       controller_->Submit(Spec("team-b", "forbid", 1, 1), ""));
  config_.quotas = {{.name = "team-a", .guaranteed = 1}};
  Open();
  EXPECT_THAT(
      controller_->Begin(executor_),
      StatusIs(StatusCode::kFailedPrecondition, HasSubstr("job-1 belongs to quota 'team-b'")));
}

TEST_F(ControllerTest, AnEarlierNoticeByHandShortensTheDeadline) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string a,
                       controller_->Submit(Spec("team-a", "forbid", 1, 1), ""));
  Register(a);
  Running(a);
  ASSERT_OK_AND_ASSIGN(const std::string first,
                       controller_->Preempt(a, std::chrono::seconds(30), "maintenance"));
  ASSERT_OK_AND_ASSIGN(const std::string same,
                       controller_->Preempt(a, std::chrono::seconds(60), ""));
  EXPECT_EQ(first, same);
  ASSERT_OK_AND_ASSIGN(const std::string shorter,
                       controller_->Preempt(a, std::chrono::seconds(5), ""));
  EXPECT_NE(first, shorter);
  EXPECT_EQ(executor_.last_deadline, clock_.Monotonic() + std::chrono::seconds(5));
  EXPECT_THAT(controller_->Preempt(a, std::chrono::hours(1), ""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("at most max_notice_s")));
}

TEST_F(ControllerTest, AStopDuringANoticeEndsTheJob) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string a,
                       controller_->Submit(Spec("team-a", "forbid", 1, 1), ""));
  Register(a);
  Running(a);
  ASSERT_OK(controller_->Preempt(a, std::chrono::seconds(10), "").status());
  const MonotonicTime deadline = executor_.last_deadline;
  ASSERT_OK(controller_->Stop(a, "enough"));
  EXPECT_EQ(executor_.last_deadline, deadline) << "no longer than the notice";
  proto::MasterReport last;
  last.mutable_outcome()->set_state("Preempted");
  EXPECT_TRUE(Report(a, last));
  controller_->OnAttemptGone(a, 1);
  EXPECT_EQ(job(a).record.state, JobState::kStopped);
}

TEST_F(ControllerTest, FailuresAreKeptOnceEachOverAttempts) {
  Begin();
  ASSERT_OK_AND_ASSIGN(const std::string a,
                       controller_->Submit(Spec("team-a", "forbid", 1, 1), ""));
  Register(a);
  proto::MasterReport report;
  report.mutable_status()->set_state("Running");
  report.mutable_status()->add_failures()->set_sequence(1);
  EXPECT_TRUE(Report(a, report));
  report.mutable_status()->add_failures()->set_sequence(2);
  EXPECT_TRUE(Report(a, report));
  EXPECT_EQ(store_->Failures(a)->size(), 2u);
  report.mutable_status()->mutable_failures(1)->set_action("restarted in place from memory");
  EXPECT_TRUE(Report(a, report));
  ASSERT_EQ(store_->Failures(a)->size(), 2u);
  EXPECT_EQ(store_->Failures(a)->at(1).action(), "restarted in place from memory");
  controller_->OnAttemptGone(a, 1);
  Register(a);
  EXPECT_TRUE(Report(a, report));
  EXPECT_EQ(store_->Failures(a)->size(), 4u) << "another attempt numbers its own";
}

}  // namespace
}  // namespace godwit
