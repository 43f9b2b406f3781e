// The agent as a process of its own, with a real keeper and real workers, under a master that says
// what the test says.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/real_file_system.h"
#include "base/strings.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "ckpt/engine/restore.h"
#include "ckpt/lineage/checkpoint_dir.h"
#include "control/keeper_protocol.h"
#include "control/page.h"
#include "launcher/process_tree.h"
#include "launcher/testing/fake_master.h"
#include "launcher/testing/processes.h"

namespace godwit {
namespace {

using ::godwit::testing::FakeMaster;
using ::godwit::testing::IsOk;
using ::godwit::testing::ReadText;
using ::godwit::testing::Soon;
using ::godwit::testing::WaitGone;
using ::godwit::testing::WaitUntil;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Kind = proto::AgentReport::ReportCase;

class AgentProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(TempDir dir, TempDir::Create("agent"));
    dir_ = std::make_unique<TempDir>(std::move(dir));
    StartMaster();
  }
  void TearDown() override {
    if (agent_) {
      (void)!agent_->Signal(SIGTERM).ok();
      EXPECT_OK(agent_->Wait(Soon()));
    }
    // Whatever happened: nothing of the node is left.
    const auto left = [&] {
      return *ProcessesWithEnvironment(kEnvKeeperSocket, dir_->File("node/keeper.sock"));
    };
    EXPECT_TRUE(WaitUntil([&] { return left().empty(); })) << left().size() << " workers are left";
    if (HasFailure()) {
      for (const char* log : {"agent.log", "node/keeper.log", "node/workers/e1-r0.err"}) {
        GTEST_LOG_(INFO) << log << ":\n" << ReadText(dir_->File(log));
      }
    }
  }

  void StartMaster() {
    master_ = std::make_unique<FakeMaster>();
    ASSERT_OK(master_->Listen("unix:" + dir_->File("master.sock")));
  }
  void StartAgent(uint32_t slots = 1, const std::string& window = "60s",
                  const std::string& lost_limit = "120s") {
    const UniqueFd log(
        open(dir_->File("agent.log").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
    SpawnOptions options;
    options.argv = {GODWIT_TEST_AGENT,
                    "agent",
                    "unix:" + dir_->File("master.sock"),
                    dir_->File("node"),
                    std::to_string(slots),
                    window,
                    lost_limit};
    options.stdin_fd = SpawnOptions::kDevNull;
    options.stdout_fd = log.get();
    options.stderr_fd = log.get();
    ASSERT_OK_AND_ASSIGN(Child child, Spawn(options));
    agent_ = std::make_unique<Child>(std::move(child));
  }
  proto::AgentReport Await(Kind kind) {
    const Result<proto::AgentReport> report = master_->Await(
        [&](const proto::AgentReport& r) { return r.report_case() == kind; }, Soon());
    EXPECT_THAT(report, IsOk()) << "waiting for report " << kind;
    return report.ok() ? *report : proto::AgentReport();
  }
  template <typename F>
  void Say(F&& fill) {
    proto::MasterOrder order;
    fill(&order);
    EXPECT_TRUE(master_->Say(order));
  }
  void StartEpoch(uint64_t epoch, std::vector<std::string> arguments, uint32_t workers = 1) {
    Say([&](proto::MasterOrder* order) {
      proto::StartEpoch* const start = order->mutable_start_epoch();
      start->set_epoch(epoch);
      start->set_world_size(workers);
      for (const std::string& word : arguments) start->add_argv(word);
      for (uint32_t i = 0; i < workers; ++i) {
        start->add_ranks()->set_slot(i);
        start->mutable_ranks(static_cast<int>(i))->set_rank(i);
      }
    });
  }
  void Resume(uint64_t epoch, ResumeKind kind, uint64_t step = 0) {
    Say([&](proto::MasterOrder* order) {
      order->mutable_resume()->set_epoch(epoch);
      order->mutable_resume()->set_term(1);
      order->mutable_resume()->set_kind(static_cast<uint32_t>(kind));
      order->mutable_resume()->set_resume_step(step);
    });
  }
  void OpenGates(uint64_t epoch) {
    Say([&](proto::MasterOrder* order) { order->mutable_open_gates()->set_epoch(epoch); });
  }
  // A training worker that has got its first gate open.
  pid_t Train(uint64_t epoch, const std::string& steps = "1000000", uint64_t step = 0) {
    StartEpoch(epoch, {GODWIT_FAKE_WORKER, "train", steps, "2"});
    const pid_t pid = Await(Kind::kWorkerStarted).worker_started().pid();
    Await(Kind::kWorkerClaimed);
    Resume(epoch, step == 0 ? ResumeKind::kFresh : ResumeKind::kMemory, step);
    EXPECT_EQ(Await(Kind::kWorkerAtGate).worker_at_gate().step(), step);
    OpenGates(epoch);
    return pid;
  }
  void Persist(uint64_t step, uint64_t epoch, uint32_t attempt) {
    Say([&](proto::MasterOrder* order) {
      proto::Persist* const persist = order->mutable_persist();
      persist->mutable_save()->set_term(1);
      persist->mutable_save()->set_step(step);
      persist->mutable_save()->set_attempt(attempt);
      persist->set_snapshot_step(step);
      persist->set_snapshot_epoch(epoch);
      persist->set_directory(dir_->File("ckpt"));
      persist->set_world_size(1);
      persist->set_time_left_ns(30'000'000'000);
    });
  }
  void MakeCheckpointDir() {
    ASSERT_OK(ckpt::OpenCheckpointDir(RealFileSystem(), dir_->File("ckpt"), /*create=*/true));
    ASSERT_OK(ckpt::BeginTerm(RealFileSystem(), dir_->File("ckpt"), "job", 1));
  }
  void Leave(int code) {
    Say([&](proto::MasterOrder* order) { order->mutable_leave()->set_exit_code(code); });
  }
  int AgentCode() {
    const Result<ExitStatus> status = agent_->Wait(Soon());
    EXPECT_THAT(status, IsOk());
    agent_.reset();
    return status.ok() ? status->ShellCode() : -1;
  }

  std::unique_ptr<TempDir> dir_;
  std::unique_ptr<FakeMaster> master_;
  std::unique_ptr<Child> agent_;
};

TEST_F(AgentProcessTest, ANoticeIsCarriedOutFromTheClosedGateToTheCommit) {
  MakeCheckpointDir();
  StartAgent();
  const proto::Hello hello = Await(Kind::kHello).hello();
  EXPECT_EQ(hello.job_id(), "job");
  EXPECT_EQ(hello.node_id(), "node-a");
  Train(1);
  EXPECT_EQ(Await(Kind::kSnapshotWhole).snapshot_whole().step(), 2u);
  Say([](proto::MasterOrder* order) { order->mutable_close_gates()->set_epoch(1); });
  const proto::GateReply gate = Await(Kind::kGateReply).gate_reply();
  EXPECT_TRUE(gate.closed());
  // The rank stops exactly there.
  const uint64_t stop = gate.entered() + 3;
  Say([&](proto::MasterOrder* order) {
    order->mutable_set_limit()->set_epoch(1);
    order->mutable_set_limit()->set_step(stop);
  });
  proto::AgentReport at_gate = Await(Kind::kWorkerAtGate);
  while (at_gate.worker_at_gate().step() < stop) at_gate = Await(Kind::kWorkerAtGate);
  EXPECT_EQ(at_gate.worker_at_gate().step(), stop);
  // Both slots may be taken by now.
  Say([&](proto::MasterOrder* order) {
    order->mutable_free_snapshots()->set_epoch(1);
    order->mutable_free_snapshots()->set_below_step(stop);
  });
  Say([&](proto::MasterOrder* order) {
    order->mutable_stage_at()->set_epoch(1);
    order->mutable_stage_at()->set_step(stop);
  });
  const Result<proto::AgentReport> whole = master_->Await(
      [&](const proto::AgentReport& r) { return r.snapshot_whole().step() == stop; }, Soon());
  ASSERT_OK(whole);
  Say([](proto::MasterOrder* order) {
    order->mutable_park_workers()->set_epoch(1);
    order->mutable_park_workers()->set_time_left_ns(20'000'000'000);
  });
  EXPECT_EQ(Await(Kind::kWorkerExited).worker_exited().exit_code(), 75);
  EXPECT_EQ(Await(Kind::kWorkersGone).workers_gone().epoch(), 1u);
  // The worker is gone; its snapshot is not.
  Persist(stop, 1, 1);
  const proto::PackWritten written = Await(Kind::kPackWritten).pack_written();
  const ckpt::SaveId save{.term = 1, .step = stop, .attempt = 1};
  ASSERT_OK(ckpt::CommitSave(RealFileSystem(), dir_->File("ckpt"), save, {written.tail()}));
  EXPECT_OK(ckpt::VerifySave(RealFileSystem(), dir_->File("ckpt"), save));
  Leave(75);
  EXPECT_EQ(AgentCode(), 75);
  EXPECT_NE(access(dir_->File("node/keeper.sock").c_str(), F_OK), 0);
}

TEST_F(AgentProcessTest, AKilledWorkerIsReportedAndStartsAgainFromMemory) {
  StartAgent();
  Await(Kind::kHello);
  const pid_t pid = Train(1);
  Await(Kind::kSnapshotWhole);
  const MonotonicTime killed = MonotonicClock::now();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const proto::WorkerExited exited = Await(Kind::kWorkerExited).worker_exited();
  RecordProperty("exit_told_us", std::to_string((MonotonicClock::now() - killed).count() / 1000));
  EXPECT_EQ(exited.signal(), SIGKILL);
  EXPECT_GT(exited.entered(), 0u);
  Say([](proto::MasterOrder* order) { order->mutable_stop_workers()->set_epoch(1); });
  Await(Kind::kWorkersGone);
  // The newest snapshot that this node told of.
  Say([](proto::MasterOrder* order) { order->mutable_welcome()->set_epoch(1); });
  uint64_t step = 2;
  Train(2, "1000000", step);
  EXPECT_EQ(Await(Kind::kHeartbeat).heartbeat().ranks_size(), 1);
}

TEST_F(AgentProcessTest, AKilledAgentLeavesItsWorkersToTheNext) {
  StartAgent();
  Await(Kind::kHello);
  const pid_t pid = Train(1);
  Await(Kind::kSnapshotWhole);
  ASSERT_OK(agent_->Signal(SIGKILL));
  ASSERT_OK(agent_->Wait(Soon()));
  EXPECT_EQ(kill(pid, 0), 0);
  StartAgent();
  const proto::Hello hello = Await(Kind::kHello).hello();
  ASSERT_EQ(hello.slot_reports_size(), 1);
  const proto::SlotReport& slot = hello.slot_reports(0);
  EXPECT_EQ(slot.pid(), pid);
  EXPECT_EQ(slot.epoch(), 1u);
  EXPECT_TRUE(slot.claimed());
  EXPECT_GE(slot.snapshots_size(), 1);
  EXPECT_EQ(slot.state(), static_cast<uint32_t>(WorkerState::kRunning));
  // And it is in command.
  Say([](proto::MasterOrder* order) { order->mutable_close_gates()->set_epoch(1); });
  EXPECT_GT(Await(Kind::kGateReply).gate_reply().entered(), 0u);
  Leave(0);
  EXPECT_EQ(AgentCode(), 0);
  EXPECT_TRUE(WaitGone(pid));
}

TEST_F(AgentProcessTest, WithoutAnAdoptWindowAKilledAgentTakesAllAlong) {
  StartAgent(1, "0s");
  Await(Kind::kHello);
  const pid_t pid = Train(1);
  const MonotonicTime killed = MonotonicClock::now();
  ASSERT_OK(agent_->Signal(SIGKILL));
  ASSERT_OK(agent_->Wait(Soon()));
  agent_.reset();
  EXPECT_TRUE(WaitGone(pid, SaturatingAdd(killed, std::chrono::seconds(2))));
  EXPECT_TRUE(WaitUntil([&] { return access(dir_->File("node/keeper.sock").c_str(), F_OK) != 0; }));
}

TEST_F(AgentProcessTest, AKilledKeepersSnapshotIsSavedAndANewOneStarts) {
  MakeCheckpointDir();
  StartAgent();
  const pid_t keeper = Await(Kind::kHello).hello().keeper_pid();
  const pid_t pid = Train(1);
  const uint64_t step = Await(Kind::kSnapshotWhole).snapshot_whole().step();
  ASSERT_EQ(kill(keeper, SIGKILL), 0);
  Await(Kind::kKeeperLost);
  EXPECT_TRUE(WaitGone(pid));
  Persist(step, 1, 1);
  EXPECT_GT(Await(Kind::kPackWritten).pack_written().bytes(), 0u);
  Train(2);
  EXPECT_EQ(Await(Kind::kSnapshotWhole).snapshot_whole().epoch(), 2u);
}

TEST_F(AgentProcessTest, AHungKeeperIsKilledAndANewOneStarts) {
  setenv("GODWIT_TEST_KEEPER_SILENCE", "500ms", 1);
  StartAgent();
  const pid_t keeper = Await(Kind::kHello).hello().keeper_pid();
  const pid_t pid = Train(1);
  ASSERT_EQ(kill(keeper, SIGSTOP), 0);
  Await(Kind::kKeeperLost);
  EXPECT_TRUE(WaitGone(keeper));
  EXPECT_TRUE(WaitGone(pid));
  Train(2);
  EXPECT_THAT(ReadText(dir_->File("agent.log")),
              HasSubstr("the keeper, process " + std::to_string(keeper) +
                        ", has not answered for 500 ms and does nothing (state T): it is killed"));
  unsetenv("GODWIT_TEST_KEEPER_SILENCE");
}

TEST_F(AgentProcessTest, AnAgentThatFindsAHungKeeperStartsAnother) {
  StartAgent();
  const pid_t keeper = Await(Kind::kHello).hello().keeper_pid();
  const pid_t pid = Train(1);
  ASSERT_OK(agent_->Signal(SIGKILL));
  ASSERT_OK(agent_->Wait(Soon()));
  ASSERT_EQ(kill(keeper, SIGSTOP), 0);
  setenv("GODWIT_TEST_KEEPER_SILENCE", "500ms", 1);
  StartAgent();
  unsetenv("GODWIT_TEST_KEEPER_SILENCE");
  const pid_t second = Await(Kind::kHello).hello().keeper_pid();
  EXPECT_NE(second, keeper);
  EXPECT_TRUE(WaitGone(keeper));
  EXPECT_TRUE(WaitGone(pid));
}

TEST_F(AgentProcessTest, AnAgentThatWasStoppedItselfBlamesNobody) {
  setenv("GODWIT_TEST_KEEPER_SILENCE", "200ms", 1);
  StartAgent();
  unsetenv("GODWIT_TEST_KEEPER_SILENCE");
  const pid_t keeper = Await(Kind::kHello).hello().keeper_pid();
  const pid_t pid = Train(1);
  ASSERT_OK(agent_->Signal(SIGSTOP));
  ASSERT_TRUE(WaitUntil([&] {
    const Result<ProcessActivity> activity = ActivityOf(agent_->pid());
    return activity.ok() && activity->state == 'T';
  }));
  // Longer than the silence that a keeper may keep.
  const MonotonicTime limit = SaturatingAdd(MonotonicClock::now(), std::chrono::milliseconds(400));
  ASSERT_FALSE(WaitUntil([] { return false; }, limit));
  ASSERT_OK(agent_->Signal(SIGCONT));
  // Two heartbeats later both are there.
  Await(Kind::kHeartbeat);
  Await(Kind::kHeartbeat);
  EXPECT_EQ(kill(keeper, 0), 0);
  EXPECT_EQ(kill(pid, 0), 0);
  EXPECT_EQ(ReadText(dir_->File("agent.log")).find("has not answered"), std::string::npos);
}

TEST_F(AgentProcessTest, ArgumentsMayBeAsLongAsTheKernelAllows) {
  StartAgent();
  Await(Kind::kHello);
  std::vector<std::string> command = {"/bin/sh", "-c", "exit $#", "sh"};
  for (int i = 0; i < 15; ++i) command.emplace_back(100'000, 'x');
  StartEpoch(1, command);
  EXPECT_EQ(Await(Kind::kWorkerExited).worker_exited().exit_code(), 15);
  Say([](proto::MasterOrder* order) { order->mutable_stop_workers()->set_epoch(1); });
  Await(Kind::kWorkersGone);

  for (int i = 0; i < 70; ++i) command.emplace_back(100'000, 'x');
  StartEpoch(2, command);
  EXPECT_THAT(Await(Kind::kOrderFailed).order_failed().message(),
              HasSubstr("cannot execute '/bin/sh': Argument list too long"));
  for (int i = 0; i < 90; ++i) command.emplace_back(100'000, 'x');
  StartEpoch(3, command);
  EXPECT_THAT(Await(Kind::kOrderFailed).order_failed().message(),
              HasSubstr("arguments and environment of a worker: got 16.7 MiB, allowed: 16 MiB"));
  // The node is none the worse for it.
  Train(4);
}

TEST_F(AgentProcessTest, ADaemonOfAKilledKeepersWorkerIsEnded) {
  StartAgent();
  const pid_t keeper = Await(Kind::kHello).hello().keeper_pid();
  const std::string file = dir_->File("daemon");
  StartEpoch(1, {GODWIT_FAKE_WORKER, "daemon", file});
  ASSERT_TRUE(WaitUntil([&] { return !ReadText(file).empty(); }));
  ASSERT_OK_AND_ASSIGN(const uint64_t daemon, ParseUint64(Trim(ReadText(file))));
  ASSERT_EQ(kill(keeper, SIGKILL), 0);
  Await(Kind::kKeeperLost);
  EXPECT_TRUE(WaitGone(static_cast<pid_t>(daemon)));
}

TEST_F(AgentProcessTest, AMasterThatComesBackFindsTheAgentAgain) {
  StartAgent();
  Await(Kind::kHello);
  const pid_t pid = Train(1);
  master_.reset();
  EXPECT_EQ(kill(pid, 0), 0);
  StartMaster();
  const proto::Hello hello = Await(Kind::kHello).hello();
  ASSERT_EQ(hello.slot_reports_size(), 1);
  EXPECT_EQ(hello.slot_reports(0).pid(), pid);
}

TEST_F(AgentProcessTest, WithoutAMasterTheWorkersEndAfterTheLimit) {
  StartAgent(1, "60s", "2s");  // also the time that it has to find one at first
  Await(Kind::kHello);
  const pid_t pid = Train(1);
  master_.reset();
  EXPECT_EQ(AgentCode(), 76);
  EXPECT_TRUE(WaitGone(pid));
  EXPECT_THAT(ReadText(dir_->File("agent.log")), HasSubstr("godwit agent: no master of job job"));
}

TEST_F(AgentProcessTest, AHungKeeperHoldsUpNoEndAndLeavesNoSocket) {
  StartAgent();
  const pid_t keeper = Await(Kind::kHello).hello().keeper_pid();
  ASSERT_OK(agent_->Signal(SIGKILL));
  ASSERT_OK(agent_->Wait(Soon()));
  setenv("GODWIT_TEST_KEEPER_SILENCE", "500ms", 1);
  StartAgent();
  unsetenv("GODWIT_TEST_KEEPER_SILENCE");
  EXPECT_EQ(Await(Kind::kHello).hello().keeper_pid(), keeper) << "it's adopted";
  ASSERT_EQ(kill(keeper, SIGSTOP), 0);
  Leave(0);
  EXPECT_EQ(AgentCode(), 0);
  EXPECT_TRUE(WaitGone(keeper));
  EXPECT_NE(access(dir_->File("node/keeper.sock").c_str(), F_OK), 0);
  EXPECT_NE(access(dir_->File("node/keeper.pid").c_str(), F_OK), 0);
}

TEST_F(AgentProcessTest, AMissingProgramIsReportedByName) {
  StartAgent();
  Await(Kind::kHello);
  StartEpoch(1, {"/nowhere/train"});
  const proto::OrderFailed failed = Await(Kind::kOrderFailed).order_failed();
  EXPECT_THAT(failed.message(), HasSubstr("cannot execute '/nowhere/train'"));
}

TEST_F(AgentProcessTest, AKeeperThatIsKilledAsItStartsIsStartedAgain) {
  const std::string script = dir_->File("keeper.sh");
  {
    std::ofstream out(script);
    out << "#!/bin/sh\n"
        << "[ -e '" << script << ".ran' ] || { : > '" << script << ".ran'; kill -KILL $$; }\n"
        << "exec '" << GODWIT_KEEPER_PROGRAM << "' \"$@\"\n";
  }
  ASSERT_EQ(chmod(script.c_str(), 0700), 0);
  setenv("GODWIT_TEST_KEEPER", script.c_str(), 1);
  StartAgent();
  unsetenv("GODWIT_TEST_KEEPER");
  EXPECT_GT(Await(Kind::kHello).hello().keeper_pid(), 0);
  EXPECT_EQ(access((script + ".ran").c_str(), F_OK), 0);
}

TEST_F(AgentProcessTest, WorkersOfANodeExchangeKeys) {
  StartAgent(2);
  Await(Kind::kHello);
  StartEpoch(1, {GODWIT_FAKE_WORKER, "kv"}, 2);
  // A worker may end before the other one asks.
  int answered = 0;
  for (int exited = 0; exited < 2;) {
    const Result<proto::AgentReport> report = master_->Await(
        [](const proto::AgentReport& r) {
          return r.report_case() == Kind::kKvRequest || r.report_case() == Kind::kWorkerExited;
        },
        Soon());
    ASSERT_THAT(report, IsOk());
    if (report->has_worker_exited()) {
      EXPECT_EQ(report->worker_exited().exit_code(), 0);
      ++exited;
      continue;
    }
    const proto::KvRequest& request = report->kv_request();
    EXPECT_EQ(request.key(), "address");
    ++answered;
    Say([&](proto::MasterOrder* order) {
      proto::KvReply* const reply = order->mutable_kv_reply();
      reply->set_epoch(1);
      reply->set_rank(request.rank());
      reply->set_request(request.request());
      if (!request.set()) reply->set_value("here");
    });
  }
  EXPECT_EQ(answered, 3);
}

TEST_F(AgentProcessTest, ASecondAgentOnTheSameDirectoryWaitsThenGivesUp) {
  StartAgent();
  Await(Kind::kHello);
  SpawnOptions options;
  options.argv = {GODWIT_TEST_AGENT,
                  "agent",
                  "unix:" + dir_->File("master.sock"),
                  dir_->File("node"),
                  "1",
                  "0s",
                  "1s"};
  options.stdin_fd = SpawnOptions::kDevNull;
  const UniqueFd log(open(dir_->File("second.log").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  options.stderr_fd = log.get();
  ASSERT_OK_AND_ASSIGN(Child second, Spawn(options));
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, second.Wait(Soon()));
  EXPECT_EQ(status.code, 78);
  EXPECT_THAT(ReadText(dir_->File("second.log")),
              HasSubstr("another agent uses it: process " + std::to_string(agent_->pid())));
}

// ---- the plain run ----

class PlainRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(TempDir dir, TempDir::Create("plain"));
    dir_ = std::make_unique<TempDir>(std::move(dir));
  }
  void TearDown() override {
    const auto left = [&] {
      return *ProcessesWithEnvironment(kEnvKeeperSocket, dir_->File("run/keeper.sock"));
    };
    EXPECT_TRUE(WaitUntil([&] { return left().empty(); }));
    if (HasFailure()) {
      for (const char* log : {"err", "run/master.log", "run/keeper.log"}) {
        GTEST_LOG_(INFO) << log << ":\n" << ReadText(dir_->File(log));
      }
    }
  }
  void Start(int workers, std::vector<std::string> command) {
    const UniqueFd out(open(dir_->File("out").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    const UniqueFd err(open(dir_->File("err").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    SpawnOptions options;
    options.argv = {GODWIT_TEST_AGENT,       "plain", dir_->File("run"),
                    std::to_string(workers), "20s",   "--"};
    options.argv.insert(options.argv.end(), command.begin(), command.end());
    options.stdin_fd = SpawnOptions::kDevNull;
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    ASSERT_OK_AND_ASSIGN(Child child, Spawn(options));
    run_ = std::make_unique<Child>(std::move(child));
  }
  int Code() {
    const Result<ExitStatus> status = run_->Wait(Soon());
    EXPECT_THAT(status, IsOk());
    return status.ok() ? status->ShellCode() : -1;
  }
  std::string Out() { return ReadText(dir_->File("out")); }
  std::string Err() { return ReadText(dir_->File("err")); }

  std::unique_ptr<TempDir> dir_;
  std::unique_ptr<Child> run_;
};

TEST_F(PlainRunTest, ShowsAllThatAWorkerPrintedAndEndsWithItsSuccess) {
  Start(1, {GODWIT_FAKE_WORKER, "exit", "0", "one\ntwo\nno newline"});
  EXPECT_EQ(Code(), 0);
  EXPECT_EQ(Out(), "one\ntwo\nno newline\n");
  EXPECT_EQ(Err(), "one\ntwo\nno newline\n");
}

TEST_F(PlainRunTest, NamesTheRankOfEachLineWhenThereAreSeveral) {
  Start(2, {GODWIT_FAKE_WORKER, "exit", "0", "hello\n"});
  EXPECT_EQ(Code(), 0);
  EXPECT_THAT(Out(), ::testing::AnyOf("[0] hello\n[1] hello\n", "[1] hello\n[0] hello\n"));
}

TEST_F(PlainRunTest, AMissingProgramIsOneLineAtOnce) {
  Start(1, {"no-such-program-here"});
  EXPECT_EQ(Code(), 1);
  EXPECT_EQ(Err(),
            "godwit run: cannot execute 'no-such-program-here': No such file or directory\n");
}

TEST_F(PlainRunTest, AFailedWorkerIsNamed) {
  Start(1, {GODWIT_FAKE_WORKER, "exit", "3"});
  EXPECT_EQ(Code(), 1);
  EXPECT_THAT(Err(), HasSubstr("rank 0 (process "));
  EXPECT_THAT(Err(), HasSubstr("exit code 3"));
  EXPECT_THAT(Err(), HasSubstr("godwit run: rank 0 failed"));
}

TEST_F(PlainRunTest, AKilledLauncherTakesEverythingAlongWithinTwoSeconds) {
  const std::string file = dir_->File("daemon");
  Start(1, {GODWIT_FAKE_WORKER, "daemon", file});
  ASSERT_TRUE(WaitUntil([&] { return !ReadText(file).empty(); }));
  ASSERT_OK_AND_ASSIGN(const uint64_t daemon, ParseUint64(Trim(ReadText(file))));
  const MonotonicTime killed = MonotonicClock::now();
  ASSERT_OK(run_->Signal(SIGKILL));
  ASSERT_OK(run_->Wait(Soon()));
  EXPECT_TRUE(WaitGone(static_cast<pid_t>(daemon), SaturatingAdd(killed, std::chrono::seconds(2))));
}

TEST_F(PlainRunTest, ASignalIsANoticeToTheMaster) {
  const std::string file = dir_->File("daemon");
  Start(1, {GODWIT_FAKE_WORKER, "daemon", file});
  ASSERT_TRUE(WaitUntil([&] { return !ReadText(file).empty(); }));
  ASSERT_OK(run_->Signal(SIGTERM));
  EXPECT_EQ(Code(), 75);
  EXPECT_THAT(Err(), HasSubstr("godwit run: got SIGTERM"));
  EXPECT_THAT(Err(), HasSubstr("told to leave"));
}

TEST_F(PlainRunTest, ASecondSignalEndsItAtOnce) {
  const std::string file = dir_->File("daemon");
  Start(1, {GODWIT_FAKE_WORKER, "daemon", file});
  ASSERT_TRUE(WaitUntil([&] { return !ReadText(file).empty(); }));
  ASSERT_OK(run_->Signal(SIGINT));
  ASSERT_TRUE(WaitUntil([&] { return Err().find("got SIGINT") != std::string::npos; }));
  (void)!run_->Signal(SIGINT).ok();
  EXPECT_THAT(Code(), ::testing::AnyOf(75, 76));
}

}  // namespace
}  // namespace godwit
