// The master's process over real gRPC: agents and scheduler are fakes in this process, the master
// is a thread of it or, where it is to be killed, a process of its own (this binary with --master).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "base/process.h"
#include "base/real_file_system.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "master/process/master_process.h"
#include "master/process/testing/fake_cluster.h"

namespace godwit::master {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeAgent;
using testing::FakeScheduler;
using testing::FakeStorage;
using Case = proto::MasterOrder::OrderCase;

int RunIn(const MasterOptions& options, const std::string& storage_dir, bool signals) {
  FakeStorage storage(storage_dir);
  ProcessEnvironment environment;
  environment.fs = &RealFileSystem();
  environment.storage = &storage;
  environment.clock = &RealClock();
  environment.handle_signals = signals;
  return RunMasterIn(environment, options);
}

class MasterProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    auto dir = TempDir::Create("gwm");
    ASSERT_TRUE(dir.ok()) << dir.status();
    dir_ = std::make_unique<TempDir>(std::move(dir).value());
    ASSERT_EQ(mkdir(StorageDir().c_str(), 0700), 0);
  }
  void TearDown() override {
    if (master_.joinable()) master_.join();
    if (child_) {
      (void)child_->Signal(SIGKILL);
      (void)child_->Wait(MonotonicClock::now() + seconds(5));
    }
  }

  std::string StorageDir() const { return dir_->File("storage"); }
  std::string RunDir() const { return dir_->File("run"); }

  MasterOptions Standalone(uint32_t nodes, uint32_t workers) const {
    MasterOptions o;
    o.job_id = "job";
    o.run_dir = RunDir();
    o.standalone = true;
    o.nodes = nodes;
    o.workers = workers;
    o.max_restarts = 2;
    o.argv = {"train"};
    return o;
  }
  MasterOptions Scheduled(const FakeScheduler& scheduler) const {
    MasterOptions o;
    o.job_id = "job";
    o.run_dir = RunDir();
    o.scheduler = scheduler.address();
    return o;
  }
  static proto::RegisterMasterReply Spec(uint32_t nodes) {
    proto::RegisterMasterReply reply;
    reply.mutable_spec()->add_argv("train");
    reply.mutable_spec()->set_directory("/ckpt");
    reply.set_nodes(nodes);
    reply.set_workers(nodes);
    return reply;
  }
  // The master as a thread.
  void Start(const MasterOptions& options) {
    master_ = std::thread([this, options] { exit_code_ = RunIn(options, StorageDir(), false); });
  }
  int Join() {
    master_.join();
    return exit_code_;
  }
  // The master as a process.
  void StartChild(const MasterOptions& o) {
    SpawnOptions spawn;
    spawn.argv = {"/proc/self/exe",
                  "--master",
                  o.run_dir,
                  StorageDir(),
                  o.scheduler,
                  std::to_string(o.nodes),
                  std::to_string(o.workers)};
    spawn.parent_death_signal = SIGKILL;
    auto child = Spawn(spawn);
    ASSERT_TRUE(child.ok()) << child.status();
    child_ = std::make_unique<Child>(std::move(child).value());
  }
  void KillChild() {
    ASSERT_OK(child_->Signal(SIGKILL));
    ASSERT_THAT(child_->Wait(MonotonicClock::now() + seconds(10)), godwit::testing::IsOk());
    child_.reset();
  }

  FakeAgent::Options AgentOf(uint32_t node, uint32_t slots = 1) const {
    FakeAgent::Options o;
    o.locate = [this] { return "unix:" + StandaloneSocketPath(RunDir()); };
    o.node = node;
    o.slots = slots;
    return o;
  }
  static FakeAgent::Options AgentOf(uint32_t node, FakeScheduler& scheduler) {
    FakeAgent::Options o;
    o.locate = [&scheduler] { return scheduler.master_address(); };
    o.node = node;
    return o;
  }
  std::optional<uint64_t> Committed() const {
    auto found = FakeStorage(StorageDir()).FindNewest("", {});
    if (!found.ok() || !found->newest) return std::nullopt;
    return found->newest->save.step;
  }

  std::unique_ptr<TempDir> dir_;
  std::thread master_;
  int exit_code_ = -1;
  std::unique_ptr<Child> child_;
};

TEST_F(MasterProcess, PlainRunFinishesAndLeavesNoSocket) {
  Start(Standalone(1, 2));
  FakeAgent agent(AgentOf(0, 2));
  ASSERT_TRUE(agent.WaitRunning(1));
  agent.FinishSteps();
  ASSERT_TRUE(agent.WaitLeft());
  EXPECT_EQ(agent.leave_code(), 0);
  EXPECT_EQ(Join(), 0);
  EXPECT_EQ(Committed(), 100u);
  EXPECT_EQ(RealFileSystem().Stat(StandaloneSocketPath(RunDir())).status().code(),
            StatusCode::kNotFound);
}

TEST_F(MasterProcess, FailedWorkerStartsAgainFromMemory) {
  Start(Standalone(1, 2));
  FakeAgent agent(AgentOf(0, 2));
  ASSERT_TRUE(agent.WaitRunning(1));
  agent.Advance(7, true);
  agent.Advance(9, false);
  agent.KillWorker(1, 9);
  ASSERT_TRUE(agent.WaitRunning(2));
  EXPECT_EQ(agent.resumed_step(), 7u);
  agent.FinishSteps();
  EXPECT_EQ(Join(), 0);
}

TEST_F(MasterProcess, BudgetOfRestartsEndsTheRun) {
  MasterOptions options = Standalone(1, 1);
  options.max_restarts = 1;
  Start(options);
  FakeAgent agent(AgentOf(0));
  ASSERT_TRUE(agent.WaitRunning(1));
  agent.KillWorker(0, 11);
  ASSERT_TRUE(agent.WaitRunning(2));
  agent.KillWorker(0, 11);
  ASSERT_TRUE(agent.WaitLeft());
  EXPECT_EQ(agent.leave_code(), 1);
  EXPECT_EQ(Join(), 1);
}

TEST_F(MasterProcess, NoticeByHandIsAcknowledgedAndObeyed) {
  Start(Standalone(1, 1));
  FakeAgent agent(AgentOf(0));
  ASSERT_TRUE(agent.WaitRunning(1));
  agent.Advance(5, false);
  auto stub = proto::Master::NewStub(grpc::CreateChannel("unix:" + StandaloneSocketPath(RunDir()),
                                                         grpc::InsecureChannelCredentials()));
  proto::NoticeRequest request;
  request.set_reason("operator");
  request.set_time_left_ns(20'000'000'000);
  proto::NoticeReply reply;
  grpc::ClientContext context;
  ASSERT_TRUE(stub->Notify(&context, request, &reply).ok());
  EXPECT_TRUE(reply.accepted());
  EXPECT_FALSE(reply.id().empty());
  EXPECT_GT(reply.eta_ns(), 0u);
  ASSERT_TRUE(agent.WaitLeft());
  EXPECT_EQ(Join(), 75);
  EXPECT_EQ(Committed(), 5u);
}

TEST_F(MasterProcess, StatusTellsStepCommitAndSource) {
  Start(Standalone(1, 1));
  FakeAgent::Options options = AgentOf(0);
  options.persist_every = 5;
  FakeAgent agent(options);
  ASSERT_TRUE(agent.WaitRunning(1));
  agent.Advance(6, true);
  ASSERT_TRUE(agent.WaitFor([&] { return Committed() == 6; }));
  auto stub = proto::Master::NewStub(grpc::CreateChannel("unix:" + StandaloneSocketPath(RunDir()),
                                                         grpc::InsecureChannelCredentials()));
  proto::MasterStatus status;
  grpc::ClientContext context;
  ASSERT_TRUE(stub->GetStatus(&context, proto::MasterStatusRequest(), &status).ok());
  EXPECT_EQ(status.state(), "Running");
  EXPECT_EQ(status.step(), 6u);
  EXPECT_EQ(status.term(), 1u);
  EXPECT_EQ(status.directory(), "/ckpt");
  EXPECT_THAT(status.resumed_from(), ::testing::HasSubstr("fresh"));
  agent.FinishSteps();
  EXPECT_EQ(Join(), 0);
}

TEST_F(MasterProcess, AgentOfAnotherJobIsRefused) {
  Start(Standalone(1, 1));
  FakeAgent::Options stranger = AgentOf(0);
  stranger.job_id = "other";
  {
    FakeAgent agent(stranger);
    EXPECT_TRUE(agent.WaitForOrder(
        [](const proto::MasterOrder& o) { return !o.welcome().refused().empty(); }));
    EXPECT_THAT(agent.refused(), ::testing::HasSubstr("not 'other'"));
  }
  FakeAgent agent(AgentOf(0));
  ASSERT_TRUE(agent.WaitRunning(1));
  agent.FinishSteps();
  EXPECT_EQ(Join(), 0);
}

TEST_F(MasterProcess, WithoutItsAgentAPlainRunsMasterEnds) {
  MasterOptions options = Standalone(1, 1);
  Start(options);
  {
    FakeAgent agent(AgentOf(0));
    ASSERT_TRUE(agent.WaitRunning(1));
  }  // killed
  EXPECT_EQ(Join(), 1);
}

TEST_F(MasterProcess, SecondMasterInARunDirectoryIsRefused) {
  Start(Standalone(1, 1));
  FakeAgent agent(AgentOf(0));
  ASSERT_TRUE(agent.WaitRunning(1));
  EXPECT_EQ(RunIn(Standalone(1, 1), StorageDir(), false), 1);
  agent.FinishSteps();
  EXPECT_EQ(Join(), 0);
}

TEST_F(MasterProcess, OptionsThatCannotBeAreRefused) {
  MasterOptions options = Standalone(1, 1);
  options.argv.clear();
  EXPECT_EQ(RunIn(options, StorageDir(), false), 2);
  options = Standalone(0, 1);
  EXPECT_EQ(RunIn(options, StorageDir(), false), 2);
  options = Standalone(1, 1);
  options.standalone = false;
  EXPECT_EQ(RunIn(options, StorageDir(), false), 2);
}

TEST_F(MasterProcess, SchedulersNoticeIsAckedReleasedRecordedAndReported) {
  FakeScheduler scheduler;
  scheduler.SetSpec(Spec(3));
  Start(Scheduled(scheduler));
  FakeAgent a(AgentOf(0, scheduler)), b(AgentOf(1, scheduler)), c(AgentOf(2, scheduler));
  ASSERT_TRUE(a.WaitRunning(1) && b.WaitRunning(1) && c.WaitRunning(1));
  a.Advance(4, false);
  b.Advance(5, false);
  c.Advance(4, false);
  proto::Directive directive;
  directive.mutable_notice()->set_id("reclaim-1");
  directive.mutable_notice()->set_reason("reclaim");
  directive.mutable_notice()->set_preemptor("team-b");
  directive.mutable_notice()->set_time_left_ns(20'000'000'000);
  scheduler.Direct(directive);
  ASSERT_TRUE(a.WaitLeft() && b.WaitLeft() && c.WaitLeft());
  EXPECT_EQ(Join(), 75);
  EXPECT_EQ(Committed(), 5u);
  EXPECT_TRUE(scheduler.WaitFor([](const auto& r) { return r.ack().id() == "reclaim-1"; }));
  EXPECT_TRUE(scheduler.WaitFor([](const auto& r) { return r.released_gpu() == "reclaim-1"; }));
  EXPECT_TRUE(scheduler.WaitFor([](const auto& r) { return r.released_node() == "reclaim-1"; }));
  EXPECT_TRUE(scheduler.WaitFor([](const auto& r) { return r.acknowledged_number() == 1; }));
  ASSERT_TRUE(scheduler.WaitFor([](const auto& r) { return r.has_notice_record(); }));
  const auto reports = scheduler.reports();
  uint64_t sequence = 0;
  for (const proto::MasterReport& report : reports) {
    EXPECT_GT(report.sequence(), sequence);
    sequence = report.sequence();
    if (!report.has_notice_record()) continue;
    const proto::NoticeRecord& record = report.notice_record();
    EXPECT_EQ(record.agreed_step(), 5u);
    EXPECT_EQ(record.safe_step(), 5u);
    EXPECT_EQ(record.steps_lost(), 0u);
    EXPECT_TRUE(record.in_time());
    EXPECT_GT(record.parked_ns(), 0u);
    EXPECT_LE(record.parked_ns(), record.released_node_ns());
    EXPECT_EQ(record.preemptor(), "team-b");
  }
  ASSERT_TRUE(reports.back().has_outcome());
  EXPECT_EQ(reports.back().outcome().state(), "Preempted");
  EXPECT_EQ(reports.back().outcome().exit_code(), 75);
}

TEST_F(MasterProcess, RescindedNoticeLetsTheJobGoOn) {
  FakeScheduler scheduler;
  scheduler.SetSpec(Spec(2));
  Start(Scheduled(scheduler));
  FakeAgent a(AgentOf(0, scheduler));
  FakeAgent b(AgentOf(1, scheduler));
  ASSERT_TRUE(a.WaitRunning(1) && b.WaitRunning(1));
  proto::Directive notice, rescind;
  notice.mutable_notice()->set_id("n");
  notice.mutable_notice()->set_time_left_ns(20'000'000'000);
  rescind.mutable_rescind()->set_id("n");
  scheduler.Direct(notice);
  scheduler.Direct(rescind);
  ASSERT_TRUE(scheduler.WaitFor([](const auto& r) { return r.acknowledged_number() == 2; }));
  // In place or without a restart: either way it runs, in its first or second epoch.
  ASSERT_TRUE(scheduler.WaitFor([](const auto& r) {
    return r.acknowledged_number() == 2 && r.status().state() == "Running";
  }));
  a.FinishSteps();
  b.FinishSteps();
  ASSERT_TRUE(a.WaitLeft() && b.WaitLeft());
  EXPECT_EQ(Join(), 0);
}

TEST_F(MasterProcess, DisownedMasterStopsItsJobSoon) {
  FakeScheduler scheduler;
  scheduler.SetSpec(Spec(1));
  Start(Scheduled(scheduler));
  FakeAgent a(AgentOf(0, scheduler));
  ASSERT_TRUE(a.WaitRunning(1));
  scheduler.Disown();
  ASSERT_TRUE(a.WaitLeft());
  EXPECT_EQ(Join(), 93);
}

TEST_F(MasterProcess, ExpectedStepThatIsNotThereIsAnErrorAndNoFreshStart) {
  FakeScheduler scheduler;
  proto::RegisterMasterReply spec = Spec(1);
  spec.set_expected_step(40);
  spec.set_expected_step_wait_ns(300'000'000);
  scheduler.SetSpec(spec);
  Start(Scheduled(scheduler));
  FakeAgent a(AgentOf(0, scheduler));
  ASSERT_TRUE(a.WaitLeft());
  EXPECT_EQ(Join(), 78);
  EXPECT_EQ(a.Count(Case::kOpenGates), 0u);
  ASSERT_TRUE(scheduler.WaitFor([](const auto& r) { return r.has_outcome(); }));
  EXPECT_THAT(scheduler.reports().back().outcome().reason(),
              ::testing::HasSubstr("step 40 was committed"));
}

TEST_F(MasterProcess, KilledMasterIsReplacedAndTheWorkersNeverStop) {
  StartChild(Standalone(1, 2));
  FakeAgent agent(AgentOf(0, 2));
  ASSERT_TRUE(agent.WaitRunning(1));
  agent.Advance(11, true);
  const size_t opened = agent.Count(Case::kOpenGates);
  KillChild();
  StartChild(Standalone(1, 2));
  // The new one holds a term of its own, and says so.
  ASSERT_TRUE(agent.WaitForOrder(
      [](const proto::MasterOrder& o) { return o.has_resume() && o.resume().term() == 2; }));
  EXPECT_GT(agent.Count(Case::kOpenGates), opened);
  EXPECT_EQ(agent.Count(Case::kStartEpoch), 1u);
  agent.FinishSteps();
  ASSERT_TRUE(agent.WaitLeft());
  EXPECT_EQ(agent.leave_code(), 0);
  auto status = child_->Wait(MonotonicClock::now() + seconds(10));
  ASSERT_OK(status);
  EXPECT_EQ(status->code, 0);
  child_.reset();
  EXPECT_EQ(Committed(), 100u);
}

// Killed after each order that a notice gives: the next master drives the notice to its end.
TEST_F(MasterProcess, MasterKilledInTheMiddleOfANoticeStillMeetsIt) {
  FakeScheduler scheduler;
  scheduler.SetSpec(Spec(1));
  StartChild(Scheduled(scheduler));
  FakeAgent agent(AgentOf(0, scheduler));
  ASSERT_TRUE(agent.WaitRunning(1));
  agent.Advance(3, false);
  proto::Directive directive;
  directive.mutable_notice()->set_id("n");
  directive.mutable_notice()->set_time_left_ns(20'000'000'000);
  scheduler.Direct(directive);
  ASSERT_TRUE(scheduler.WaitFor([](const auto& r) { return r.ack().id() == "n"; }));
  KillChild();
  StartChild(Scheduled(scheduler));
  ASSERT_TRUE(agent.WaitLeft());
  EXPECT_EQ(agent.leave_code(), 75);
  EXPECT_TRUE(scheduler.WaitFor(
      [](const auto& r) { return r.has_notice_record() && r.notice_record().safe_step() == 3; }));
  EXPECT_TRUE(scheduler.WaitFor([](const auto& r) { return r.has_outcome(); }));
  auto status = child_->Wait(MonotonicClock::now() + seconds(10));
  ASSERT_OK(status);
  EXPECT_EQ(status->code, 75);
  child_.reset();
}

}  // namespace

int ChildMain(int argc, char** argv) {
  if (argc < 7) return 2;
  MasterOptions o;
  o.job_id = "job";
  o.run_dir = argv[2];
  o.scheduler = argv[4];
  o.standalone = o.scheduler.empty();
  o.nodes = static_cast<uint32_t>(std::stoul(argv[5]));
  o.workers = static_cast<uint32_t>(std::stoul(argv[6]));
  o.max_restarts = 2;
  o.argv = {"train"};
  return RunIn(o, argv[3], true);
}

}  // namespace godwit::master

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--master") == 0) {
    return godwit::master::ChildMain(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
