#include "godwit/runtime/run.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "base/shared_memory.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "base/unix_socket.h"
#include "ckpt/engine/arena.h"
#include "control/agent_channel.h"
#include "control/keeper_protocol.h"
#include "godwit/runtime/collective.h"
#include "godwit/runtime/sampler.h"

namespace godwit {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr Duration kHang = seconds(60);

MonotonicTime In(Duration d) { return MonotonicClock::now() + d; }

// Inside a TEST, Run is the test's own.
using TrainingRun = Run;

// A program whose final state depends on every step, sample and restored value.
struct Program {
  std::vector<float> weights = std::vector<float>(1000, 1.0f);
  uint64_t updates = 0;
  std::string note = "none";
  Sampler sampler{{.dataset_size = 37, .global_batch = 5, .micro_batch = 2, .seed = 11}};
  std::vector<uint64_t> ids;  // of steps that this incarnation completed

  void Track(Run* run) {
    run->Track("weights", weights).Track("sampler", sampler);
    run->TrackVolatile("updates", updates).TrackVolatile("note", note);
  }
  void Do(Step& step) {
    float sum = 0;
    std::vector<uint64_t> mine;
    for (const auto& micro : step.Micro(sampler)) {
      for (const uint64_t id : micro.ids()) {
        sum += static_cast<float>(id) * 0.25f;
        mine.push_back(id);
      }
    }
    step.AllReduceSum(&sum, 1);
    step.Update([&] {
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = weights[i] * 0.99f + sum * static_cast<float>(i + step.index());
      }
      ++updates;
      note = "after step " + std::to_string(step.index());
    });
    ids.insert(ids.end(), mine.begin(), mine.end());
  }
};

Run OpenSolo(const std::string& dir, uint64_t steps, uint64_t persist_every) {
  auto run =
      Run::Open(nullptr, nullptr, {.dir = dir, .steps = steps, .persist_every = persist_every});
  EXPECT_THAT(run, IsOk());
  return std::move(*run);
}

class SoloRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto dir = TempDir::Create("run");
    ASSERT_THAT(dir, IsOk());
    dir_ = std::make_unique<TempDir>(std::move(*dir));
  }
  // Runs up to boundary `leave_at` and walks away, or to the end.
  std::unique_ptr<Program> RunOnce(const std::string& dir, uint64_t steps, uint64_t leave_at,
                                   Restored* from) {
    auto p = std::make_unique<Program>();
    TrainingRun run = OpenSolo(dir, steps, 10);
    p->Track(&run);
    auto restored = run.TryRestore();
    EXPECT_THAT(restored, IsOk());
    *from = *restored;
    for (Step& step : run.Steps()) {
      p->Do(step);
      if (step.index() + 1 == leave_at) break;
    }
    exit_code_ = run.ExitCode();
    return p;
  }
  std::unique_ptr<TempDir> dir_;
  int exit_code_ = -1;
};

TEST_F(SoloRunTest, GoesOnExactlyWhereItWasSaved) {
  Restored from;
  const auto whole = RunOnce(dir_->File("a"), 53, 0, &from);
  EXPECT_TRUE(from.fresh);
  EXPECT_EQ(exit_code_, 0);

  const auto first = RunOnce(dir_->File("b"), 53, 34, &from);
  EXPECT_EQ(exit_code_, 1);  // left early
  const auto second = RunOnce(dir_->File("b"), 53, 0, &from);
  EXPECT_FALSE(from.fresh);
  // Snapshots that come faster than they can be saved are skipped.
  EXPECT_THAT(from.step, ::testing::AnyOf(10, 20, 30)) << from.reason;
  EXPECT_EQ(exit_code_, 0);
  EXPECT_EQ(second->weights, whole->weights);
  EXPECT_EQ(second->updates, 53u);
  EXPECT_EQ(second->note, "after step 52");
  // What came after the save was done again; before and after it's the undisturbed run's order.
  const size_t kept = whole->ids.size() - second->ids.size();
  ASSERT_LT(kept, first->ids.size());
  std::vector<uint64_t> ids(first->ids.begin(), first->ids.begin() + static_cast<ptrdiff_t>(kept));
  ids.insert(ids.end(), second->ids.begin(), second->ids.end());
  EXPECT_EQ(ids, whole->ids);
}

TEST_F(SoloRunTest, AFinishedRunIsFoundFinished) {
  Restored from;
  RunOnce(dir_->File("a"), 7, 0, &from);
  const auto again = RunOnce(dir_->File("a"), 7, 0, &from);
  EXPECT_EQ(from.step, 7u);
  EXPECT_THAT(from.reason, ::testing::HasSubstr("all 7 steps are done"));
  EXPECT_TRUE(again->ids.empty());
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(SoloRunTest, WithoutADirectoryItRunsAndKeepsNothing) {
  Restored from;
  const auto p = RunOnce("", 7, 0, &from);
  EXPECT_TRUE(from.fresh);
  EXPECT_EQ(exit_code_, 0);
  EXPECT_EQ(p->updates, 7u);
}

TEST_F(SoloRunTest, MoreStepsDoneThanWantedIsAnError) {
  Restored from;
  RunOnce(dir_->File("a"), 7, 0, &from);
  Program p;
  TrainingRun run = OpenSolo(dir_->File("a"), 5, 10);
  p.Track(&run);
  EXPECT_THAT(run.TryRestore(), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("7 are done")));
}

TEST_F(SoloRunTest, AStateThatDoesNotFitIsNamed) {
  Restored from;
  RunOnce(dir_->File("a"), 7, 0, &from);
  Program p;
  p.weights.resize(999);
  TrainingRun run = OpenSolo(dir_->File("a"), 7, 10);
  p.Track(&run);
  EXPECT_THAT(run.TryRestore(), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("weights")));
}

TEST_F(SoloRunTest, TwiceTheSameNameIsRefused) {
  Program p;
  TrainingRun run = OpenSolo(dir_->File("a"), 7, 10);
  p.Track(&run);
  run.TrackVolatile("note", p.note);
  EXPECT_THAT(run.TryRestore(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("note")));
}

TEST(RunOptionsTest, NonsenseIsNamed) {
  EXPECT_THAT(Run::Open(nullptr, nullptr, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("steps")));
  EXPECT_THAT(Run::Open(nullptr, nullptr, {.steps = 1, .fence_budget_s = std::nan("")}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("fence_budget_s")));
  EXPECT_THAT(Run::Open(nullptr, nullptr, {.steps = 1, .world_sizes = {2, 4}}),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("2, 4")));
}

TEST(RunOptionsTest, AWorkingDirectoryThatWasRemovedIsAnErrorForARelativePathAlone) {
  ASSERT_OK_AND_ASSIGN(TempDir dir, TempDir::Create("gone"));
  const UniqueFd before(open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(chdir(dir.path().c_str()), 0);
  ASSERT_EQ(rmdir(dir.path().c_str()), 0);
  EXPECT_THAT(Run::Open(nullptr, nullptr, {.dir = "ckpt", .steps = 1}),
              StatusIs(StatusCode::kNotFound, HasSubstr("the working directory, for 'ckpt'")));
  EXPECT_THAT(Run::Open(nullptr, nullptr, {.dir = dir.path(), .steps = 1}), IsOk());
  ASSERT_EQ(fchdir(before.get()), 0);
}

TEST(RunDeathTest, AStepWithoutUpdateIsNamed) {
  EXPECT_EXIT(
      {
        Program p;
        TrainingRun run = OpenSolo("", 5, 10);
        p.Track(&run);
        run.Restore();
        for ([[maybe_unused]] Step& step : run.Steps()) {
        }
      },
      ::testing::ExitedWithCode(1), "step 0 ended without Update");
}

TEST(RunDeathTest, UpdatingTwiceIsNamed) {
  EXPECT_EXIT(
      {
        Program p;
        TrainingRun run = OpenSolo("", 5, 10);
        p.Track(&run);
        run.Restore();
        for (Step& step : run.Steps()) {
          step.Update([] {});
          step.Update([] {});
        }
      },
      ::testing::ExitedWithCode(1), "Update called twice");
}

TEST(RunDeathTest, ABadSamplerIsNamed) {
  EXPECT_EXIT(
      {
        TrainingRun run = OpenSolo("", 5, 10);
        Sampler sampler({.dataset_size = 5});
        run.Restore();
        for (Step& step : run.Steps()) step.Micro(sampler);
      },
      ::testing::ExitedWithCode(78), "global_batch");
}

TEST_F(SoloRunTest, AWriterOutsideUpdateFailsTheRunAndIsNamed) {
  // A tensor with a version counter, as libtorch's have. The end of the copy is held until the
  // writer has come.
  std::vector<float> weights(100'000);
  std::atomic<uint64_t> version = 0;
  std::atomic<bool> written = false;
  const auto training_thread = std::this_thread::get_id();
  TrainingRun run = OpenSolo(dir_->File("a"), 30, 5);
  ckpt::TensorRef ref;
  ref.name = "w";
  ref.shape = {static_cast<int64_t>(weights.size())};
  ref.data = weights.data();
  ref.bytes = weights.size() * sizeof(float);
  ref.version = [&] {
    if (std::this_thread::get_id() != training_thread) written.wait(false);
    return version.load();
  };
  run.TrackTensor(ref);
  ASSERT_THAT(run.TryRestore(), IsOk());
  ::testing::internal::CaptureStderr();
  for (Step& step : run.Steps()) {
    if (step.index() == 5) {
      ++version;
      written = true;
      written.notify_all();
    }
    step.Update([] {});
  }
  EXPECT_EQ(run.ExitCode(), 1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("'w'"), std::string::npos);
}

// ---- In a job: a node made of this test ----

// A keeper's and an agent's slot for each rank. Run::Open finds it through the environment.
class FakeNode {
 public:
  explicit FakeNode(uint32_t slots) {
    dir_ = std::make_unique<TempDir>(*TempDir::Create("node"));
    listener_ = *ListenUnix(dir_->File("keeper"));
    for (uint32_t i = 0; i < slots; ++i) {
      Slot& slot = slots_.emplace_back();
      slot.page_fd = *CreateSharedMemory("page", sizeof(ControlPage));
      slot.mapping = *SharedMapping::Map(slot.page_fd.get(), sizeof(ControlPage));
      auto* page = reinterpret_cast<ControlPage*>(slot.mapping.data());
      page->magic = kControlMagic;
      page->layout_version = kControlLayoutVersion;
      page->slot = i;
      slot.doorbell = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      slot.agent = *AgentChannel::Over(page, UniqueFd(dup(slot.doorbell.get())));
    }
    server_ = std::thread([this] { Serve(); });
  }
  ~FakeNode() {
    stop_ = true;
    server_.join();
    unsetenv("GODWIT_KEEPER_SOCKET");
  }

  std::string checkpoints() const { return dir_->File("checkpoints"); }
  AgentChannel& agent(uint32_t slot) { return *slots_[slot].agent; }
  ckpt::Arena Arena(uint32_t slot) {
    Slot& s = slots_[slot];
    s.view = *SharedMapping::Map(s.snapshot_fd.get(), 0);
    auto arena = ckpt::Arena::Attach(s.view.bytes());
    EXPECT_THAT(arena, IsOk());
    return std::move(*arena);
  }
  MutableByteSpan snapshot_bytes(uint32_t slot) {
    Slot& s = slots_[slot];
    s.view = *SharedMapping::Map(s.snapshot_fd.get(), 0);
    return s.view.bytes();
  }

  void Prepare(uint64_t epoch) {
    epoch_ = epoch;
    const std::lock_guard lock(agents_);
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      slots_[i].agent->Prepare({.epoch = epoch,
                                .rank = i,
                                .world_size = static_cast<uint32_t>(slots_.size()),
                                .local_rank = i,
                                .local_world_size = static_cast<uint32_t>(slots_.size())});
    }
  }
  void DecideAll(const ResumeDecision& decision) {
    for (Slot& slot : slots_) slot.agent->Decide(decision);
  }

  // Not from several threads: the environment is the process's.
  Result<Run> Open(uint32_t slot, RunOptions options) {
    setenv("GODWIT_KEEPER_SOCKET", dir_->File("keeper").c_str(), 1);
    setenv("GODWIT_SLOT", std::to_string(slot).c_str(), 1);
    setenv("GODWIT_EPOCH", std::to_string(epoch_).c_str(), 1);
    auto run = Run::Open(nullptr, nullptr, std::move(options));
    unsetenv("GODWIT_KEEPER_SOCKET");
    return run;
  }

  // Waits until the slot's worker reports `state`.
  WorkerReport Await(uint32_t slot, WorkerState state) {
    const MonotonicTime deadline = In(kHang);
    for (;;) {
      auto report = slots_[slot].agent->Report();
      if (report.ok() && report->state == state) return *report;
      if (MonotonicClock::now() > deadline) {
        ADD_FAILURE() << "slot " << slot << " never reported state " << static_cast<int>(state)
                      << (report.ok()
                              ? ", last " + std::to_string(static_cast<int>(report->state)) + " " +
                                    report->message
                              : report.status().ToString());
        return {};
      }
      pollfd p{slots_[slot].doorbell.get(), POLLIN, 0};
      poll(&p, 1, 20);  // the server's thread may have drained it
    }
  }

 private:
  struct Slot {
    UniqueFd page_fd;
    SharedMapping mapping;
    UniqueFd doorbell;
    UniqueFd snapshot_fd;
    uint64_t snapshot_bytes = 0;
    SharedMapping view;
    std::unique_ptr<AgentChannel> agent;
  };

  // The keeper, and the master's part of the key-value exchange.
  void Serve() {
    std::vector<std::pair<UniqueFd, int>> connections;  // and their slots, -1: not claimed yet
    std::map<std::string, std::string> values;
    std::map<uint32_t, KvRequest> waiting;
    while (!stop_) {
      if (auto accepted = AcceptUnix(listener_.get()); accepted.ok()) {
        connections.emplace_back(std::move(*accepted), -1);
      }
      for (auto& [fd, slot] : connections) {
        auto message = RecvMessage(fd.get(), kMaxKeeperMessageBytes, 0);
        if (!message.ok()) continue;
        auto decoded = DecodeKeeperMessage(AsBytes(message->bytes));
        ASSERT_THAT(decoded, IsOk());
        if (auto* claim = std::get_if<ClaimRequest>(&*decoded)) {
          slot = static_cast<int>(claim->slot);
          Slot& s = slots_[claim->slot];
          std::vector<int> fds = {s.page_fd.get(), s.doorbell.get()};
          if (s.snapshot_bytes > 0) fds.push_back(s.snapshot_fd.get());
          ASSERT_THAT(Reply(fd.get(), ClaimReply{s.snapshot_bytes}, fds), IsOk());
        } else if (auto* reserve = std::get_if<ReserveRequest>(&*decoded)) {
          Slot& s = slots_[slot];
          s.snapshot_fd = *CreateSharedMemory("snapshot", reserve->bytes);
          s.snapshot_bytes = reserve->bytes;
          ASSERT_THAT(Reply(fd.get(), SnapshotReply{reserve->bytes}, {s.snapshot_fd.get()}),
                      IsOk());
        }
      }
      for (uint32_t i = 0; i < slots_.size(); ++i) {
        const std::lock_guard lock(agents_);
        FreeOldSnapshots(&slots_[i]);
        auto request = slots_[i].agent->TakeKvRequest();
        if (request.ok() && request->has_value()) waiting[i] = **request;
        const auto it = waiting.find(i);
        if (it == waiting.end()) continue;
        const KvRequest& r = it->second;
        const std::string key = std::to_string(epoch_) + "/" + r.key;
        if (r.op == kKvSet) {
          values.emplace(key, r.value);
          slots_[i].agent->AnswerKv(r.seq, OkStatus(), "");
        } else if (values.contains(key)) {
          slots_[i].agent->AnswerKv(r.seq, OkStatus(), values[key]);
        } else {
          continue;
        }
        waiting.erase(it);
      }
      pollfd p{listener_.get(), POLLIN, 0};
      poll(&p, 1, 2);
    }
  }
  // As an agent does once the newest snapshot is whole on all nodes.
  void FreeOldSnapshots(Slot* slot) {
    const auto report = slot->agent->Report();
    if (!report.ok() || !report->staged_step || !slot->snapshot_fd.valid()) return;
    auto mapping = SharedMapping::Map(slot->snapshot_fd.get(), 0);
    ASSERT_THAT(mapping, IsOk());
    auto arena = ckpt::Arena::Attach(mapping->bytes());
    if (arena.ok()) arena->FreeOlder(epoch_, *report->staged_step);
  }
  static Status Reply(int fd, const KeeperMessage& message, const std::vector<int>& fds) {
    return SendMessage(fd, AsBytes(EncodeKeeperMessage(message)), fds);
  }

  std::unique_ptr<TempDir> dir_;
  UniqueFd listener_;
  std::vector<Slot> slots_;
  std::mutex agents_;  // a channel belongs to one thread; here the test's and the server's share it
  std::atomic<uint64_t> epoch_{0};
  std::atomic<bool> stop_{false};
  std::thread server_;
};

struct WorkerResult {
  Program program;
  Restored restored;
  int exit_code = -1;
  bool done = false;
  bool leaving = false;
};

// A worker's whole life, on a thread.
std::future<std::unique_ptr<WorkerResult>> Work(Run run, std::function<void(Step&)> in_step = {}) {
  auto shared = std::make_shared<Run>(std::move(run));
  return std::async(std::launch::async, [shared, in_step] {
    auto result = std::make_unique<WorkerResult>();
    Run& run = *shared;
    result->program.Track(&run);
    auto restored = run.TryRestore();
    EXPECT_THAT(restored, IsOk());
    if (!restored.ok()) return result;
    result->restored = *restored;
    for (Step& step : run.Steps()) {
      if (in_step) in_step(step);
      result->program.Do(step);
    }
    result->done = run.done();
    result->leaving = run.leaving();
    result->exit_code = run.ExitCode();
    return result;
  });
}

TEST(JobRunTest, ANoticeStopsItAtTheAgreedStepWithAWholeSnapshot) {
  FakeNode node(1);
  node.Prepare(1);
  auto run = node.Open(
      0, {.dir = node.checkpoints(), .steps = 1'000'000, .snapshot_every = 0, .persist_every = 0});
  ASSERT_THAT(run, IsOk());
  std::promise<void> passed;
  auto worker = Work(std::move(*run), [&](Step& step) {
    if (step.index() == 200) passed.set_value();
  });
  node.DecideAll({.kind = ResumeKind::kFresh, .writer_term = 7});
  EXPECT_EQ(node.Await(0, WorkerState::kAtGate).at_step, 0u);
  node.agent(0).OpenGate();
  ASSERT_EQ(passed.get_future().wait_for(kHang), std::future_status::ready);

  // Notice: close, agree, run up to S, stage, park.
  const uint64_t s = node.agent(0).CloseGate().entered + 2;
  ASSERT_THAT(node.agent(0).LimitGate(s), IsOk());
  node.agent(0).OrderStage(s);
  const WorkerReport staged = node.Await(0, WorkerState::kStaged);
  EXPECT_EQ(staged.at_step, s);
  EXPECT_EQ(staged.staged_step, s);
  EXPECT_EQ(node.agent(0).gate().entered, s);
  const auto whole = node.Arena(0).WholeAt(1, s);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->term, 7u);
  node.agent(0).OrderPark();
  const auto result = worker.get();
  EXPECT_EQ(node.Await(0, WorkerState::kParked).at_step, s);
  EXPECT_TRUE(result->leaving);
  EXPECT_FALSE(result->done);
  EXPECT_EQ(result->exit_code, 75);
  EXPECT_EQ(result->program.updates, s);

  // The next incarnation goes on from memory, bit for bit.
  node.Prepare(2);
  run = node.Open(0, {.dir = node.checkpoints(), .steps = s + 3});
  ASSERT_THAT(run, IsOk());
  worker = Work(std::move(*run));
  node.DecideAll({.kind = ResumeKind::kMemory, .step = s, .writer_term = 7});
  EXPECT_EQ(node.Await(0, WorkerState::kAtGate).at_step, s);
  node.agent(0).OpenGate();
  EXPECT_EQ(node.Await(0, WorkerState::kFinished).at_step, s + 3);
  node.agent(0).OrderPark();
  const auto second = worker.get();
  EXPECT_TRUE(second->done);
  EXPECT_EQ(second->exit_code, 0);
  EXPECT_EQ(second->restored.step, s);
  EXPECT_EQ(second->program.updates, s + 3);

  // Against a run that nobody disturbed.
  TrainingRun solo = OpenSolo("", s + 3, 0);
  Program p;
  p.Track(&solo);
  ASSERT_THAT(solo.TryRestore(), IsOk());
  for (Step& step : solo.Steps()) p.Do(step);
  EXPECT_EQ(second->program.weights, p.weights);
}

TEST(JobRunTest, ARescindedNoticeLetsItGoOn) {
  FakeNode node(1);
  node.Prepare(1);
  auto run = node.Open(0, {.dir = node.checkpoints(), .steps = 20});
  ASSERT_THAT(run, IsOk());
  auto worker = Work(std::move(*run));
  node.DecideAll({.kind = ResumeKind::kFresh});
  node.Await(0, WorkerState::kAtGate);
  ASSERT_THAT(node.agent(0).LimitGate(5), IsOk());
  node.agent(0).OrderStage(5);
  EXPECT_EQ(node.Await(0, WorkerState::kStaged).at_step, 5u);
  node.agent(0).ClearOrders();
  node.agent(0).OpenGate();
  EXPECT_EQ(node.Await(0, WorkerState::kFinished).at_step, 20u);
  node.agent(0).OrderPark();
  EXPECT_EQ(worker.get()->exit_code, 0);
}

TEST(JobRunTest, DamagedMemoryIsReportedAndNotUsed) {
  FakeNode node(1);
  node.Prepare(1);
  auto run = node.Open(0, {.dir = node.checkpoints(), .steps = 5});
  ASSERT_THAT(run, IsOk());
  auto worker = Work(std::move(*run));
  node.DecideAll({.kind = ResumeKind::kFresh});
  node.Await(0, WorkerState::kAtGate);
  node.agent(0).OpenGate();
  node.Await(0, WorkerState::kFinished);
  node.agent(0).OrderPark();
  worker.get();
  // All of the weights' bytes, in both slots.
  MutableByteSpan memory = node.snapshot_bytes(0);
  for (size_t i = memory.size() / 8; i < memory.size(); i += 64) memory[i] ^= std::byte{1};
  node.Prepare(2);
  run = node.Open(0, {.dir = node.checkpoints(), .steps = 5});
  ASSERT_THAT(run, IsOk());
  Program p;
  p.Track(&*run);
  node.DecideAll({.kind = ResumeKind::kMemory, .step = 5});
  EXPECT_THAT(run->TryRestore(), StatusIs(StatusCode::kDataLoss));
  const WorkerReport report = node.Await(0, WorkerState::kFailed);
  EXPECT_THAT(report.message, ::testing::HasSubstr("has digest"));
}

TEST(JobRunTest, ARefusedResumeSaysWhy) {
  FakeNode node(1);
  node.Prepare(1);
  auto run = node.Open(0, {.dir = node.checkpoints(), .steps = 5});
  ASSERT_THAT(run, IsOk());
  Program p;
  p.Track(&*run);
  node.DecideAll({.kind = ResumeKind::kRefused, .message = "step 120 was expected, 80 found"});
  EXPECT_THAT(run->TryRestore(),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("120 was expected")));
  EXPECT_THAT(node.Await(0, WorkerState::kFailed).message, HasSubstr("120 was expected"));
}

TEST(JobRunTest, ADirectoryThatCannotTravelAsTextIsRefused) {
  FakeNode node(1);
  node.Prepare(1);
  EXPECT_THAT(node.Open(0, {.dir = "/tmp/\xff", .steps = 5}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'/tmp/?', allowed in a job")));
}

TEST(JobRunTest, ToldToLeaveBeforeTheFirstStepItDoes) {
  FakeNode node(1);
  node.Prepare(1);
  auto run = node.Open(0, {.dir = node.checkpoints(), .steps = 5});
  ASSERT_THAT(run, IsOk());
  Program p;
  p.Track(&*run);
  node.agent(0).OrderPark();
  EXPECT_THAT(run->TryRestore(), StatusIs(StatusCode::kCancelled));
  node.Await(0, WorkerState::kParked);
}

TEST(JobRunTest, APhaseIsCutShortByANotice) {
  FakeNode node(1);
  node.Prepare(1);
  auto opened = node.Open(0, {.dir = node.checkpoints(), .steps = 5});
  ASSERT_THAT(opened, IsOk());
  TrainingRun& run = *opened;
  node.DecideAll({.kind = ResumeKind::kFresh});
  ASSERT_THAT(run.TryRestore(), IsOk());
  node.agent(0).OpenGate();
  int ticks = 0;
  int begun = 0;
  for (Step& step : run.Steps()) {
    step.Update([] {});
    if (step.index() > 0) continue;
    run.Phase("eval", [&](const std::function<bool()>& tick) {
      ++begun;
      while (tick() && ticks < 10) {
        if (++ticks == 3) node.agent(0).CloseGate();
      }
    });
    run.Phase("eval", [&](const std::function<bool()>&) { ++begun; });
    node.agent(0).OrderPark();
  }
  EXPECT_EQ(ticks, 3);
  EXPECT_EQ(begun, 1);
  EXPECT_TRUE(run.leaving());
}

#if GODWIT_HAVE_GLOO
TEST(JobRunTest, TwoRanksStopAtTheSameStepAndAgree) {
  FakeNode node(2);
  node.Prepare(1);
  std::vector<std::future<std::unique_ptr<WorkerResult>>> workers;
  for (uint32_t i = 0; i < 2; ++i) {
    auto run = node.Open(
        i,
        {.dir = node.checkpoints(), .steps = 1'000'000, .snapshot_every = 0, .persist_every = 0});
    ASSERT_THAT(run, IsOk());
    workers.push_back(Work(std::move(*run)));
  }
  node.DecideAll({.kind = ResumeKind::kFresh});
  for (uint32_t i = 0; i < 2; ++i) node.Await(i, WorkerState::kAtGate);
  for (uint32_t i = 0; i < 2; ++i) node.agent(i).OpenGate();
  // Let them come some way.
  const MonotonicTime deadline = In(kHang);
  while (node.agent(0).gate().entered < 30 && MonotonicClock::now() < deadline) {
    std::this_thread::yield();
  }
  const uint64_t s = std::max(node.agent(0).CloseGate().entered, node.agent(1).CloseGate().entered);
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_THAT(node.agent(i).LimitGate(s), IsOk());
    node.agent(i).OrderStage(s);
  }
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(node.Await(i, WorkerState::kStaged).at_step, s);
  for (uint32_t i = 0; i < 2; ++i) node.agent(i).OrderPark();
  const auto a = workers[0].get();
  const auto b = workers[1].get();
  EXPECT_EQ(a->program.updates, s);
  EXPECT_EQ(b->program.updates, s);
  EXPECT_EQ(a->program.weights, b->program.weights);
}
#endif

}  // namespace
}  // namespace godwit
