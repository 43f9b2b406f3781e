#include "launcher/agent/node_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "ckpt/engine/snapshotter.h"
#include "control/worker_channel.h"

namespace godwit {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const MonotonicTime kStart = MonotonicFromNanos(1'000'000'000'000);

// Records what the node wants.
class FakeEffects : public NodeEffects {
 public:
  bool SendToMaster(proto::AgentReport report) override {
    if (!stream) return false;
    reports.push_back(std::move(report));
    return true;
  }
  void SendToKeeper(const KeeperMessage& message) override { keeper.push_back(message); }
  void WatchDoorbell(uint32_t slot, int) override { watched.push_back(slot); }
  void UnwatchDoorbell(int) override {}
  Status StartPersist(PersistJob job) override {
    if (!persist_error.ok()) return persist_error;
    persists.push_back(std::move(job));
    return OkStatus();
  }
  void StartKeeper() override { ++keeper_starts; }
  void End(int exit_code, const std::string& reason) override {
    ended = exit_code;
    end_reason = reason;
  }
  void Tell(const std::string& line) override { told.push_back(line); }

  // What was reported since the last call, by kind.
  std::vector<proto::AgentReport> Take() { return std::exchange(reports, {}); }
  std::vector<KeeperMessage> TakeKeeper() { return std::exchange(keeper, {}); }

  bool stream = true;
  Status persist_error;
  std::vector<proto::AgentReport> reports;
  std::vector<KeeperMessage> keeper;
  std::vector<uint32_t> watched;
  std::vector<PersistJob> persists;
  std::vector<std::string> told;
  int keeper_starts = 0;
  int ended = -1;
  std::string end_reason;
};

// A slot as a keeper and a worker have it.
struct FakeSlot {
  explicit FakeSlot(uint32_t index) : state{.slot = index} {
    page_fd = std::move(*CreateSharedMemory("test-page", sizeof(ControlPage)));
    mapping = std::move(*SharedMapping::Map(page_fd.get(), sizeof(ControlPage)));
    page = new (mapping.data()) ControlPage;
    page->magic = kControlMagic;
    page->layout_version = kControlLayoutVersion;
    page->slot = index;
    doorbell = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  std::vector<UniqueFd> Fds() const {
    std::vector<UniqueFd> fds;
    fds.emplace_back(dup(page_fd.get()));
    fds.emplace_back(dup(doorbell.get()));
    if (memory_fd) fds.emplace_back(dup(memory_fd.get()));
    return fds;
  }
  // Snapshot memory, laid out for one tensor.
  void MakeMemory(uint32_t rank, uint32_t world_size, uint64_t epoch) {
    ckpt::TensorRef tensor;
    tensor.name = "w";
    tensor.shape = {16};
    tensor.data = weights;
    tensor.bytes = sizeof(weights);
    list.tensors = {tensor};
    const auto plan = ckpt::Snapshotter::MakePlan(list, rank, world_size);
    memory_fd = std::move(*CreateSharedMemory("test-memory", ckpt::Arena::BytesFor(*plan)));
    memory = std::move(*SharedMapping::Map(memory_fd.get(), 0));
    state.snapshot_bytes = memory.size();
    auto arena = ckpt::Arena::Open(memory.bytes(), *plan);
    ckpt::Snapshotter::Options options;
    options.rank = rank;
    options.world_size = world_size;
    options.epoch = epoch;
    options.clock = &RealClock();
    snapshotter = std::move(*ckpt::Snapshotter::Open(list, *arena, options));
  }
  void Snapshot(uint64_t step) { ASSERT_OK(snapshotter->StageNow(step, std::chrono::seconds(30))); }
  std::unique_ptr<WorkerChannel> Worker() const {
    return WorkerChannel::Over(page, UniqueFd(dup(doorbell.get())));
  }

  SlotState state;
  UniqueFd page_fd, doorbell, memory_fd;
  SharedMapping mapping, memory;
  ControlPage* page = nullptr;
  float weights[16] = {};
  ckpt::StateList list;
  std::unique_ptr<ckpt::Snapshotter> snapshotter;
};

class NodeAgentTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kSlots = 2;

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(TempDir dir, TempDir::Create("node-agent"));
    dir_ = std::make_unique<TempDir>(std::move(dir));
    NodeAgent::Options options;
    options.job_id = "job";
    options.node_id = "node-a";
    options.node_index = 3;
    options.slots = kSlots;
    options.run_dir = dir_->path();
    options.keeper_socket = dir_->File("keeper.sock");
    options.log_dir = dir_->path();
    options.environment = {"PATH=/bin", "RANK=99"};
    options.worker_environment = {"GODWIT_DIR=/ckpt"};
    node_ = std::make_unique<NodeAgent>(options, &effects_, kStart);
    for (uint32_t i = 0; i < kSlots; ++i) fakes_.push_back(std::make_unique<FakeSlot>(i));
  }

  void Keeper(const KeeperMessage& message) { node_->OnKeeperMessage(message, {}, kStart); }
  void TellState(uint32_t slot) {
    node_->OnKeeperMessage(fakes_[slot]->state, fakes_[slot]->Fds(), kStart);
  }
  void AttachKeeper(int32_t pid = 4711) {
    Keeper(AttachReply{.slots = kSlots, .keeper_pid = pid});
    for (uint32_t i = 0; i < kSlots; ++i) TellState(i);
  }
  void Attach() {
    AttachKeeper();
    node_->OnMasterConnected(kStart);
    (void)effects_.Take();
  }
  template <typename F>
  void Order(F&& fill, MonotonicTime now = kStart) {
    proto::MasterOrder order;
    fill(&order);
    node_->OnOrder(order, now);
  }
  void StartEpoch(uint64_t epoch) {
    Order([&](proto::MasterOrder* order) {
      proto::StartEpoch* const start = order->mutable_start_epoch();
      start->set_epoch(epoch);
      start->set_world_size(4);
      start->add_argv("./train");
      start->add_env("JOB_VAR=1");
      for (uint32_t i = 0; i < kSlots; ++i) {
        proto::SlotRank* const rank = start->add_ranks();
        rank->set_slot(i);
        rank->set_rank(2 + i);
      }
    });
  }
  // Both slots run ranks 2 and 3 of 4.
  void Run(uint64_t epoch = 1) {
    StartEpoch(epoch);
    for (uint32_t i = 0; i < kSlots; ++i) {
      fakes_[i]->state.pid = static_cast<int32_t>(100 * epoch + i);
      fakes_[i]->state.epoch = epoch;
      Keeper(StartWorkerReply{.slot = i, .pid = fakes_[i]->state.pid});
    }
    (void)effects_.Take();
    (void)effects_.TakeKeeper();
  }
  void Exit(uint32_t slot, int32_t code, int32_t signal) {
    FakeSlot& fake = *fakes_[slot];
    Keeper(ExitedEvent{.slot = slot,
                       .pid = fake.state.pid,
                       .epoch = fake.state.epoch,
                       .exit_code = signal != 0 ? -1 : code,
                       .signal = signal});
  }
  void Quiet(uint32_t slot) {
    fakes_[slot]->state.pid = 0;
    TellState(slot);
  }
  // Slot's worker gets memory, and a whole snapshot of `step` in epoch 1.
  void Snapshot(uint32_t slot, uint64_t step, WorkerChannel* worker) {
    FakeSlot& fake = *fakes_[slot];
    if (!fake.memory_fd) {
      fake.MakeMemory(2 + slot, 4, 1);
      TellState(slot);
    }
    fake.Snapshot(step);
    worker->ReportStaged(step);
    node_->OnDoorbell(slot, kStart);
  }
  void Persist(uint64_t attempt, uint64_t step) {
    Order([&](proto::MasterOrder* order) {
      proto::Persist* const persist = order->mutable_persist();
      persist->mutable_save()->set_term(1);
      persist->mutable_save()->set_step(step);
      persist->mutable_save()->set_attempt(static_cast<uint32_t>(attempt));
      persist->set_snapshot_step(step);
      persist->set_snapshot_epoch(1);
      persist->set_directory("/ckpt");
      persist->set_world_size(4);
    });
  }

  FakeEffects effects_;
  std::unique_ptr<TempDir> dir_;
  std::vector<std::unique_ptr<FakeSlot>> fakes_;
  std::unique_ptr<NodeAgent> node_;
};

TEST_F(NodeAgentTest, HelloWaitsForTheKeeper) {
  node_->OnMasterConnected(kStart);
  EXPECT_THAT(effects_.Take(), IsEmpty());
  AttachKeeper();
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].hello().node_index(), 3u);
  EXPECT_EQ(reports[0].hello().keeper_pid(), 4711);
  EXPECT_EQ(reports[0].hello().slot_reports_size(), 0) << "no worker was ever started";
}

TEST_F(NodeAgentTest, WorkersAreStartedWithTheirPlaceInTheJob) {
  Attach();
  StartEpoch(1);
  const auto sent = effects_.TakeKeeper();
  ASSERT_EQ(sent.size(), kSlots);
  const auto& request = std::get<StartWorkerRequest>(sent[1]);
  EXPECT_EQ(request.slot, 1u);
  EXPECT_EQ(request.epoch, 1u);
  EXPECT_THAT(request.argv, ElementsAre("./train"));
  for (const char* entry : {"RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2",
                            "GROUP_RANK=3", "GODWIT_EPOCH=1", "GODWIT_SLOT=1", "GODWIT_JOB=job",
                            "GODWIT_DIR=/ckpt", "JOB_VAR=1", "PATH=/bin", "OMP_NUM_THREADS=1",
                            "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_RUN_ID=job"}) {
    EXPECT_THAT(request.env, Contains(entry));
  }
  EXPECT_THAT(request.env, Not(Contains("RANK=99")));
  EXPECT_THAT(request.stdout_path, HasSubstr("/e1-r3.out"));
  // The page says the same before the worker exists.
  EXPECT_EQ(fakes_[1]->page->rank, 3u);
  EXPECT_EQ(fakes_[1]->page->world_size, 4u);
  EXPECT_TRUE(StepGate(&fakes_[1]->page->gate).Load().closed);
}

TEST_F(NodeAgentTest, AStartThatIsSaidAgainIsAnsweredAgainNotDoneAgain) {
  Attach();
  Run();
  StartEpoch(1);
  EXPECT_THAT(effects_.TakeKeeper(), IsEmpty());
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), kSlots);
  EXPECT_EQ(reports[0].worker_started().pid(), 100);
  // One that has ended is not started again in its epoch.
  Exit(0, 1, 0);
  Quiet(0);
  StartEpoch(1);
  EXPECT_THAT(effects_.TakeKeeper(), IsEmpty());
}

TEST_F(NodeAgentTest, AnOldEpochIsRefused) {
  Attach();
  Run(5);
  StartEpoch(4);
  EXPECT_THAT(effects_.TakeKeeper(), IsEmpty());
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), kSlots);
  EXPECT_EQ(reports[0].order_failed().code(), static_cast<int>(StatusCode::kFailedPrecondition));
  EXPECT_THAT(reports[0].order_failed().message(), HasSubstr("this node is in epoch 5"));
}

TEST_F(NodeAgentTest, AnEpochDoesNotStartBeforeTheLastOneIsGone) {
  Attach();
  Run(1);
  Exit(0, 0, SIGKILL);
  StartEpoch(2);
  EXPECT_THAT(effects_.TakeKeeper(), IsEmpty());
  for (uint32_t i = 0; i < kSlots; ++i) {
    if (i > 0) Exit(i, 0, SIGKILL);
    Quiet(i);
  }
  (void)effects_.Take();
  StartEpoch(2);
  EXPECT_EQ(effects_.TakeKeeper().size(), kSlots);
}

TEST_F(NodeAgentTest, AProgramThatCannotStartIsReported) {
  Attach();
  StartEpoch(1);
  Keeper(ErrorReply{.slot = 0,
                    .code = static_cast<int32_t>(StatusCode::kNotFound),
                    .message = "cannot execute './train'"});
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].order_failed().order(), "StartEpoch");
  EXPECT_EQ(reports[0].order_failed().rank(), 2u);
  EXPECT_EQ(reports[0].order_failed().message(), "cannot execute './train'");
}

TEST_F(NodeAgentTest, ClosedGatesAreAnsweredByEveryRankWithItsExactStep) {
  Attach();
  Run();
  for (uint32_t i = 0; i < kSlots; ++i) {
    StepGate gate(&fakes_[i]->page->gate);
    gate.Open();
    for (uint32_t step = 0; step < 5 + i; ++step) EXPECT_TRUE(gate.TryEnter());
  }
  Order([](proto::MasterOrder* order) { order->mutable_close_gates()->set_epoch(1); });
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) {
    EXPECT_EQ(reports[i].gate_reply().rank(), 2 + i);
    EXPECT_EQ(reports[i].gate_reply().entered(), 5 + i);
    EXPECT_TRUE(reports[i].gate_reply().closed());
    EXPECT_FALSE(StepGate(&fakes_[i]->page->gate).TryEnter());
  }
  // Another epoch's order closes nothing.
  Order([](proto::MasterOrder* order) { order->mutable_open_gates()->set_epoch(1); });
  Order([](proto::MasterOrder* order) { order->mutable_close_gates()->set_epoch(2); });
  EXPECT_THAT(effects_.Take(), IsEmpty());
  EXPECT_TRUE(StepGate(&fakes_[0]->page->gate).TryEnter());
}

TEST_F(NodeAgentTest, ARankThatWaitsAtTheLimitAlreadySaysSoAgain) {
  Attach();
  Run();
  const auto worker = fakes_[0]->Worker();
  worker->gate().Reset(7);
  worker->Report(WorkerState::kAtGate, 7);
  node_->OnDoorbell(0, kStart);
  auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].worker_at_gate().step(), 7u);
  node_->OnDoorbell(0, kStart);
  EXPECT_THAT(effects_.Take(), IsEmpty()) << "once per report";
  Order([](proto::MasterOrder* order) {
    order->mutable_set_limit()->set_epoch(1);
    order->mutable_set_limit()->set_step(7);
  });
  reports = effects_.Take();
  ASSERT_GE(reports.size(), 1u);
  EXPECT_EQ(reports[0].worker_at_gate().step(), 7u);
}

TEST_F(NodeAgentTest, ALimitBehindARankIsReported) {
  Attach();
  Run();
  StepGate(&fakes_[1]->page->gate).Reset(9);
  Order([](proto::MasterOrder* order) {
    order->mutable_set_limit()->set_epoch(1);
    order->mutable_set_limit()->set_step(8);
  });
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].order_failed().order(), "SetLimit");
  EXPECT_EQ(reports[0].order_failed().rank(), 3u);
}

TEST_F(NodeAgentTest, TheResumeDecisionReachesTheWorker) {
  Attach();
  Run();
  Order([](proto::MasterOrder* order) {
    proto::Resume* const resume = order->mutable_resume();
    resume->set_epoch(1);
    resume->set_term(6);
    resume->set_kind(static_cast<uint32_t>(ResumeKind::kStorage));
    resume->set_resume_term(5);
    resume->set_resume_step(120);
    resume->set_resume_attempt(2);
  });
  ASSERT_OK_AND_ASSIGN(const Orders orders, fakes_[0]->Worker()->ReadOrders());
  EXPECT_EQ(orders.resume.kind, ResumeKind::kStorage);
  EXPECT_EQ(orders.resume.term, 5u);
  EXPECT_EQ(orders.resume.step, 120u);
  EXPECT_EQ(orders.resume.writer_term, 6u);
}

TEST_F(NodeAgentTest, WorkersAreGoneOnlyWhenNothingOfThemIsLeft) {
  Attach();
  Run();
  Order([](proto::MasterOrder* order) {
    order->mutable_park_workers()->set_epoch(1);
    order->mutable_park_workers()->set_time_left_ns(5'000'000'000);
  });
  ASSERT_OK_AND_ASSIGN(const Orders orders, fakes_[0]->Worker()->ReadOrders());
  EXPECT_TRUE(orders.park);
  Exit(0, 75, 0);
  Exit(1, 75, 0);
  Quiet(0);
  auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].worker_exited().exit_code(), 75);
  Quiet(1);
  reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].workers_gone().epoch(), 1u);
  // Said again, answered again.
  Order([](proto::MasterOrder* order) { order->mutable_park_workers()->set_epoch(1); });
  reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(reports[0].has_workers_gone());
}

TEST_F(NodeAgentTest, AStopIsATermThenAKillWhenTheGraceIsOver) {
  Attach();
  Run();
  Order([](proto::MasterOrder* order) {
    order->mutable_stop_workers()->set_epoch(1);
    order->mutable_stop_workers()->set_grace_ns(1'000'000'000);
  });
  auto sent = effects_.TakeKeeper();
  ASSERT_EQ(sent.size(), kSlots);
  EXPECT_EQ(std::get<SignalRequest>(sent[0]).signal, SIGTERM);
  Exit(0, 0, SIGTERM);
  Quiet(0);
  const MonotonicTime over = kStart + std::chrono::seconds(1);
  EXPECT_LE(node_->deadline(), over);
  node_->OnTick(over);
  sent = effects_.TakeKeeper();
  ASSERT_EQ(sent.size(), 1u) << "only to who is left";
  EXPECT_EQ(std::get<SignalRequest>(sent[0]).slot, 1u);
  EXPECT_EQ(std::get<SignalRequest>(sent[0]).signal, SIGKILL);
}

TEST_F(NodeAgentTest, AnOldEpochsStopDoesNotTouchTheNewWorkers) {
  Attach();
  Run(2);
  Order([](proto::MasterOrder* order) { order->mutable_stop_workers()->set_epoch(1); });
  EXPECT_THAT(effects_.TakeKeeper(), IsEmpty());
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].workers_gone().epoch(), 1u);
}

TEST_F(NodeAgentTest, AnExitCarriesTheWorkersLastWords) {
  Attach();
  Run();
  const auto worker = fakes_[0]->Worker();
  worker->gate().Reset(12);
  worker->Report(WorkerState::kFailed, 12, "loss is NaN");
  FILE* const log = fopen(dir_->File("e1-r2.err").c_str(), "w");
  ASSERT_NE(log, nullptr);
  fputs("Traceback\nValueError: \xff\n", log);
  fclose(log);
  Exit(0, 1, 0);
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  const proto::WorkerExited& exited = reports[0].worker_exited();
  EXPECT_EQ(exited.worker_message(), "loss is NaN");
  EXPECT_EQ(exited.log_tail(), "Traceback\nValueError: ?\n");
  EXPECT_EQ(exited.entered(), 12u);
  ASSERT_EQ(effects_.told.size(), 1u);
  EXPECT_THAT(effects_.told[0], HasSubstr("rank 2"));
}

TEST_F(NodeAgentTest, KeysAndValuesAreRelayedBothWays) {
  Attach();
  Run();
  ControlPage* const page = fakes_[1]->page;
  page->kv_op = kKvGet;
  std::memcpy(page->kv_key, "addr", 4);
  page->kv_key_bytes = 4;
  page->kv_timeout_ms = 1500;
  const uint32_t seq = page->kv_request_seq.fetch_add(1) + 1;
  node_->OnDoorbell(1, kStart);
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  const proto::KvRequest& request = reports[0].kv_request();
  EXPECT_EQ(request.rank(), 3u);
  EXPECT_EQ(request.key(), "addr");
  EXPECT_FALSE(request.set());
  EXPECT_EQ(request.timeout_ms(), 1500u);
  const auto answer = [&](uint64_t epoch) {
    Order([&](proto::MasterOrder* order) {
      proto::KvReply* const reply = order->mutable_kv_reply();
      reply->set_epoch(epoch);
      reply->set_rank(3);
      reply->set_request(request.request());
      reply->set_value("10.0.0.1");
    });
  };
  answer(0);
  EXPECT_NE(page->kv_response_seq.load(), seq) << "an answer from another epoch is none";
  answer(1);
  EXPECT_EQ(page->kv_response_seq.load(), seq);
  EXPECT_EQ(std::string(page->kv_value, page->kv_value_bytes), "10.0.0.1");
}

TEST_F(NodeAgentTest, AWholeSnapshotIsToldOnceAndInTheNextHello) {
  Attach();
  Run();
  const auto worker = fakes_[0]->Worker();
  Snapshot(0, 10, worker.get());
  auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].snapshot_whole().step(), 10u);
  EXPECT_EQ(reports[0].snapshot_whole().epoch(), 1u);
  EXPECT_EQ(reports[0].snapshot_whole().rank(), 2u);
  EXPECT_EQ(reports[0].snapshot_whole().world_size(), 4u);
  EXPECT_GT(reports[0].snapshot_whole().bytes(), 0u);
  Snapshot(0, 20, worker.get());
  reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].snapshot_whole().step(), 20u);

  node_->OnMasterLost(UnavailableError("x"), kStart);
  node_->OnMasterConnected(kStart);
  reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  const proto::SlotReport& slot = reports[0].hello().slot_reports(0);
  EXPECT_EQ(slot.pid(), 100);
  EXPECT_EQ(slot.rank(), 2u);
  ASSERT_EQ(slot.snapshots_size(), 2);
}

TEST_F(NodeAgentTest, APersistOrderIsWrittenOnceAndAnsweredAsOftenAsItComes) {
  Attach();
  Run();
  const auto worker = fakes_[0]->Worker();
  Snapshot(0, 10, worker.get());
  (void)effects_.Take();
  Persist(1, 10);
  ASSERT_EQ(effects_.persists.size(), 1u);
  EXPECT_EQ(effects_.persists[0].options.rank, 2u);
  EXPECT_EQ(effects_.persists[0].options.world_size, 4u);
  EXPECT_FALSE(effects_.persists[0].options.deadline.has_value());
  // Slot 1 has no snapshot: that is said, too.
  auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].pack_failed().rank(), 3u);
  EXPECT_EQ(reports[0].pack_failed().code(), static_cast<int>(StatusCode::kNotFound));
  Persist(1, 10);
  EXPECT_EQ(effects_.persists.size(), 1u) << "under way";
  (void)effects_.Take();

  PersistResult result;
  result.slot = 0;
  result.save = effects_.persists[0].options.save;
  result.rank = 2;
  result.snapshot_epoch = 1;
  result.snapshot_step = 10;
  result.pack = ckpt::WrittenPack{.tail = "tail", .bytes = 5};
  // The master is away when it is done: its answer waits.
  effects_.stream = false;
  node_->OnMasterLost(UnavailableError("x"), kStart);
  node_->OnPersisted(std::move(result), kStart);
  effects_.stream = true;
  node_->OnMasterConnected(kStart);
  reports = effects_.Take();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_TRUE(reports[0].has_hello());
  EXPECT_EQ(reports[1].pack_written().tail(), "tail");
  Persist(1, 10);
  EXPECT_EQ(effects_.persists.size(), 1u);
  reports = effects_.Take();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].pack_written().tail(), "tail");
}

TEST_F(NodeAgentTest, APackIsWrittenAtIdlePriorityOnlyWhileSomebodyTrains) {
  Attach();
  Run();
  const auto first = fakes_[0]->Worker();
  const auto second = fakes_[1]->Worker();
  Snapshot(0, 10, first.get());
  first->Report(WorkerState::kFinished, 10);
  Persist(1, 10);
  ASSERT_EQ(effects_.persists.size(), 1u);
  EXPECT_FALSE(effects_.persists[0].options.deadline.has_value()) << "the other one trains";
  second->Report(WorkerState::kFinished, 10);
  Persist(2, 10);
  ASSERT_EQ(effects_.persists.size(), 2u);
  EXPECT_TRUE(effects_.persists[1].options.deadline.has_value());
  EXPECT_FALSE(effects_.persists[1].alone) << "what is under way may be finished";
}

TEST_F(NodeAgentTest, ASnapshotThatIsBeingWrittenIsFreedOnlyAfterwards) {
  Attach();
  Run();
  const auto worker = fakes_[0]->Worker();
  Snapshot(0, 10, worker.get());
  Snapshot(0, 20, worker.get());
  Persist(1, 10);
  ASSERT_EQ(effects_.persists.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const ckpt::Arena arena, ckpt::Arena::Attach(fakes_[0]->memory.bytes()));
  const auto free = [&](uint64_t below) {
    Order([&](proto::MasterOrder* order) {
      order->mutable_free_snapshots()->set_epoch(1);
      order->mutable_free_snapshots()->set_below_step(below);
    });
  };
  free(20);
  EXPECT_TRUE(arena.WholeAt(1, 10).has_value()) << "in use";
  EXPECT_TRUE(arena.WholeAt(1, 20).has_value());
  PersistResult result;
  result.slot = 0;
  result.save = effects_.persists[0].options.save;
  result.rank = 2;
  result.snapshot_epoch = 1;
  result.snapshot_step = 10;
  result.pack = CancelledError("x");
  node_->OnPersisted(std::move(result), kStart);
  EXPECT_FALSE(arena.WholeAt(1, 10).has_value());
  EXPECT_TRUE(arena.WholeAt(1, 20).has_value());
}

TEST_F(NodeAgentTest, OnlyNamedSnapshotsAreDropped) {
  Attach();
  Run();
  const auto worker = fakes_[0]->Worker();
  Snapshot(0, 10, worker.get());
  Snapshot(0, 20, worker.get());
  Order([](proto::MasterOrder* order) {
    proto::SnapshotName* const name = order->mutable_free_snapshots()->add_drop();
    name->set_epoch(1);
    name->set_step(20);
  });
  ASSERT_OK_AND_ASSIGN(const ckpt::Arena arena, ckpt::Arena::Attach(fakes_[0]->memory.bytes()));
  EXPECT_TRUE(arena.WholeAt(1, 10).has_value());
  EXPECT_FALSE(arena.WholeAt(1, 20).has_value());
}

TEST_F(NodeAgentTest, AStageOrderForAWholeSnapshotIsAnsweredAtOnce) {
  Attach();
  Run();
  const auto worker = fakes_[0]->Worker();
  Snapshot(0, 10, worker.get());
  (void)effects_.Take();
  const auto stage = [&](uint64_t step) {
    Order([&](proto::MasterOrder* order) {
      order->mutable_stage_at()->set_epoch(1);
      order->mutable_stage_at()->set_step(step);
    });
  };
  stage(10);
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].snapshot_whole().step(), 10u);
  stage(11);
  EXPECT_THAT(effects_.Take(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const Orders orders, worker->ReadOrders());
  EXPECT_TRUE(orders.stage);
  EXPECT_EQ(orders.stage_step, 11u);
}

TEST_F(NodeAgentTest, ALostKeepersSnapshotCanStillBeWrittenButNotRestored) {
  Attach();
  Run();
  const auto worker = fakes_[0]->Worker();
  Snapshot(0, 10, worker.get());
  (void)effects_.Take();
  node_->OnKeeperLost("killed", kStart);
  EXPECT_EQ(effects_.keeper_starts, 1);
  auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(reports[0].has_keeper_lost());
  // The new keeper has new pages and no memory.
  fakes_.clear();
  for (uint32_t i = 0; i < kSlots; ++i) fakes_.push_back(std::make_unique<FakeSlot>(i));
  // An epoch that is ordered before it is there waits for it.
  Persist(1, 10);
  ASSERT_EQ(effects_.persists.size(), 1u);
  StartEpoch(2);
  EXPECT_THAT(effects_.TakeKeeper(), IsEmpty());
  AttachKeeper(4712);
  EXPECT_EQ(effects_.TakeKeeper().size(), kSlots);
  (void)effects_.Take();
  node_->OnMasterLost(UnavailableError("x"), kStart);
  node_->OnMasterConnected(kStart);
  reports = effects_.Take();
  ASSERT_GE(reports.size(), 1u);
  EXPECT_EQ(reports[0].hello().keeper_pid(), 4712);
  for (const auto& slot : reports[0].hello().slot_reports()) EXPECT_EQ(slot.snapshots_size(), 0);
}

TEST_F(NodeAgentTest, ANewAgentFindsRunningWorkersAgain) {
  Attach();
  Run(3);
  const auto worker = fakes_[0]->Worker();
  worker->gate().Reset(40);
  worker->Report(WorkerState::kAtGate, 40);
  fakes_[0]->state.claimed = 1;
  fakes_[0]->state.claim.directory = "/ckpt";
  fakes_[0]->state.claim.total_steps = 100;
  Snapshot(0, 40, worker.get());

  NodeAgent::Options options;
  options.job_id = "job";
  options.node_id = "node-a";
  options.slots = kSlots;
  options.log_dir = dir_->path();
  node_ = std::make_unique<NodeAgent>(options, &effects_, kStart);
  (void)effects_.Take();
  AttachKeeper();
  node_->OnMasterConnected(kStart);
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  const proto::SlotReport& slot = reports[0].hello().slot_reports(0);
  EXPECT_EQ(slot.pid(), 300);
  EXPECT_EQ(slot.epoch(), 3u);
  EXPECT_EQ(slot.rank(), 2u);
  EXPECT_TRUE(slot.claimed());
  EXPECT_EQ(slot.claim().directory(), "/ckpt");
  EXPECT_EQ(slot.state(), static_cast<uint32_t>(WorkerState::kAtGate));
  EXPECT_EQ(slot.at_step(), 40u);
  EXPECT_EQ(slot.gate().entered(), 40u);
  ASSERT_EQ(slot.snapshots_size(), 1);
  EXPECT_EQ(slot.snapshots(0).step(), 40u);
}

TEST_F(NodeAgentTest, WithoutAMasterForTooLongItEndsWith76) {
  Attach();
  Run();
  node_->OnMasterLost(UnavailableError("x"), kStart);
  const MonotonicTime limit = kStart + std::chrono::seconds(120);
  EXPECT_EQ(node_->deadline(), limit);
  node_->OnTick(limit - Duration(1));
  EXPECT_EQ(effects_.ended, -1);
  node_->OnTick(limit);
  EXPECT_EQ(effects_.ended, 76);
}

TEST_F(NodeAgentTest, ARefusalEndsItWithItsReason) {
  Attach();
  Order([](proto::MasterOrder* order) {
    order->mutable_welcome()->set_refused("attempt 1 is over");
  });
  EXPECT_EQ(effects_.ended, 78);
  EXPECT_THAT(effects_.end_reason, HasSubstr("attempt 1 is over"));
}

TEST_F(NodeAgentTest, HeartbeatsTellTheProgressOfClaimedRanks) {
  Attach();
  Run();
  Keeper(ClaimedEvent{.claim = {.slot = 0, .epoch = 1, .pid = 100, .directory = "/ckpt"}});
  EXPECT_EQ(effects_.Take()[0].worker_claimed().directory(), "/ckpt");
  const auto worker = fakes_[0]->Worker();
  worker->gate().Reset(5);
  worker->Report(WorkerState::kRunning, 5);
  fakes_[0]->page->step_started_ns = static_cast<uint64_t>(ToNanos(kStart));
  fakes_[0]->page->step_longest_ns = 70;
  fakes_[0]->page->phase = static_cast<uint32_t>(Phase::kStep);
  const MonotonicTime later = kStart + NodeAgent::kHeartbeat;
  node_->OnTick(later);
  const auto reports = effects_.Take();
  ASSERT_EQ(reports.size(), 1u);
  ASSERT_EQ(reports[0].heartbeat().ranks_size(), 1);
  const proto::RankProgress& rank = reports[0].heartbeat().ranks(0);
  EXPECT_EQ(rank.rank(), 2u);
  EXPECT_EQ(rank.entered(), 5u);
  EXPECT_EQ(rank.step_longest_ns(), 70u);
  EXPECT_EQ(rank.in_step_ns(), static_cast<uint64_t>(NodeAgent::kHeartbeat.count()));
  EXPECT_EQ(node_->deadline(), later + NodeAgent::kHeartbeat);
}

}  // namespace
}  // namespace godwit
