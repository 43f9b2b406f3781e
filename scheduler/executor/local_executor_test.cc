#include "scheduler/executor/local_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/random.h"
#include "base/real_file_system.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "scheduler/executor/process_scan.h"
#include "scheduler/testing/fake_program.h"

namespace godwit {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::SizeIs;
using testing::Tell;

class Recorder : public ExecutorListener {
 public:
  void OnProcess(const ProcessRecord& process) override {
    processes[process.role + process.node] = process;
    ++starts[process.role + process.node];
  }
  void OnExecutorEvent(const std::string&, const std::string& kind,
                       const std::string& message) override {
    kinds.push_back(kind);
    messages.push_back(message);
  }
  void OnAttemptLost(const std::string&, uint32_t, const std::string& reason,
                     bool is_permanent) override {
    lost = reason;
    permanent = is_permanent;
  }
  void OnAttemptGone(const std::string&, uint32_t) override { gone = true; }

  std::map<std::string, ProcessRecord> processes;
  std::map<std::string, int> starts;
  std::vector<std::string> kinds;
  std::vector<std::string> messages;
  std::string lost;
  bool permanent = false;
  bool gone = false;
};

class LocalExecutorTest : public ::testing::Test {
 protected:
  LocalExecutorTest()
      : dir_(TempDir::Create("godwit-executor").value()), loop_(EventLoop::Open().value()) {
    EXPECT_THAT(testing::WriteFakeProgram(dir_.File("program")), IsOk());
    plan_.job_id = "job-1";
    plan_.attempt = 2;
    plan_.run_dir = dir_.File("run");
    plan_.nodes = {{"node-0", 0, 1}, {"node-4", 1, 2}};
    tag_ = std::to_string(SystemRandom64());
    Restart();
  }
  ~LocalExecutorTest() override {
    // Whatever a failed test has left.
    executor_.reset();
    const auto left = FindTagged(LocalExecutor::kTagVariable, tag_ + "/job-1/2");
    if (!left.ok()) return;
    for (const TaggedProcess& each : *left) kill(each.pid, SIGKILL);
  }

  void Restart() {
    executor_.reset();
    recorder_ = {};
    LocalExecutor::Options options;
    options.program = dir_.File("program");
    options.scheduler_address = "unix:/nowhere";
    options.tag = tag_;
    options.kill_after = std::chrono::milliseconds(200);
    executor_ = std::make_unique<LocalExecutor>(options, *loop_, RealClock(), recorder_);
  }
  static MonotonicTime Soon() { return RealClock().Monotonic() + std::chrono::seconds(30); }
  void RunUntil(const std::function<bool()>& condition) {
    const MonotonicTime bound = Soon();
    while (!condition()) {
      ASSERT_LT(RealClock().Monotonic(), bound) << "nothing happens any more";
      ASSERT_OK(loop_->RunOnce(RealClock().Monotonic() + std::chrono::milliseconds(50)));
    }
  }
  std::string Dir(const std::string& name) { return plan_.run_dir + "/" + name; }
  std::string ReadFile(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  size_t Alive() { return FindTagged(LocalExecutor::kTagVariable, tag_ + "/job-1/2")->size(); }
  void TellAll(const std::string& word) {
    for (const char* name : {"master", "node-0", "node-4"}) {
      ASSERT_OK(Tell(Dir(name), word, Soon()));
    }
  }
  void WaitUntilAllListen() {
    for (const char* name : {"master", "node-0", "node-4"}) {
      RunUntil([&] { return !ReadFile(Dir(name) + "/tmpdir").empty(); });
    }
  }

  TempDir dir_;
  std::unique_ptr<EventLoop> loop_;
  Recorder recorder_;
  AttemptPlan plan_;
  std::string tag_;
  std::unique_ptr<LocalExecutor> executor_;
};

TEST_F(LocalExecutorTest, AMasterAndAnAgentPerNodeRunWithADirectoryOfTheirOwn) {
  executor_->Start(plan_);
  EXPECT_THAT(recorder_.processes, SizeIs(3));
  TellAll("0");
  // The master is kept until the attempt is told to end.
  RunUntil([&] { return recorder_.starts["master"] == 2; });
  executor_->Finish("job-1", 2, std::chrono::seconds(30));
  ASSERT_OK(Tell(Dir("master"), "0", Soon()));
  RunUntil([&] { return recorder_.gone; });
  EXPECT_EQ(ReadFile(Dir("node-4") + "/args"),
            "agent --job job-1 --attempt 2 --scheduler unix:/nowhere --run-dir " + Dir("node-4") +
                " --node node-4 --node-index 1 --slots 2\n");
  EXPECT_EQ(
      ReadFile(Dir("master") + "/args"),
      "master --job job-1 --attempt 2 --scheduler unix:/nowhere --run-dir " + Dir("master") + "\n");
  EXPECT_EQ(ReadFile(Dir("node-0") + "/tmpdir"), Dir("node-0") + "/tmp\n");
  EXPECT_NE(access((Dir("node-0") + "/tmp").c_str(), F_OK), 0) << "temporary files are removed";
  EXPECT_EQ(recorder_.starts["agentnode-0"], 1);
}

TEST_F(LocalExecutorTest, AKilledAgentOrMasterIsStartedAgainAndOneThatLeftIsNot) {
  executor_->Start(plan_);
  ASSERT_OK(Tell(Dir("node-0"), "kill", Soon()));
  ASSERT_OK(Tell(Dir("master"), "kill", Soon()));
  ASSERT_OK(Tell(Dir("node-4"), "75", Soon()));
  RunUntil([&] { return recorder_.starts["agentnode-0"] == 2 && recorder_.starts["master"] == 2; });
  EXPECT_THAT(recorder_.kinds, Contains("agent-exited"));
  EXPECT_THAT(recorder_.messages,
              Contains(HasSubstr("the agent on node-0 ended with signal 9 (SIGKILL)")));
  EXPECT_EQ(recorder_.starts["agentnode-4"], 1);
  executor_->Finish("job-1", 2, std::chrono::seconds(30));
  ASSERT_OK(Tell(Dir("node-0"), "75", Soon()));
  ASSERT_OK(Tell(Dir("master"), "75", Soon()));
  RunUntil([&] { return recorder_.gone; });
  EXPECT_EQ(recorder_.lost, "");
}

TEST_F(LocalExecutorTest, AMasterThatKeepsDyingLosesTheAttempt) {
  executor_->Start(plan_);
  for (uint32_t i = 0; i < LocalExecutor::kMaxStarts; ++i) {
    const int starts = static_cast<int>(i) + 1;
    RunUntil([&] { return recorder_.starts["master"] == starts; });
    ASSERT_OK(Tell(Dir("master"), "kill", Soon()));
  }
  RunUntil([&] { return recorder_.gone; });
  EXPECT_THAT(recorder_.lost, HasSubstr("the master ended 6 times in a row, the last time with "
                                        "signal 9 (SIGKILL)"));
  EXPECT_FALSE(recorder_.permanent);
  EXPECT_EQ(Alive(), 0u) << "agents are ended too";
}

TEST_F(LocalExecutorTest, AProgramThatDoesNotExistIsAPermanentLoss) {
  ASSERT_EQ(unlink(dir_.File("program").c_str()), 0);
  executor_->Start(plan_);
  EXPECT_THAT(recorder_.lost, HasSubstr("the master can't be started: cannot execute"));
  EXPECT_TRUE(recorder_.permanent);
  RunUntil([&] { return recorder_.gone; });
}

TEST_F(LocalExecutorTest, AWorkingDirectoryThatDoesNotExistIsAPermanentLoss) {
  plan_.cwd = dir_.File("nowhere");
  executor_->Start(plan_);
  EXPECT_THAT(recorder_.lost, HasSubstr("the agent on node-0 can't be started"));
  EXPECT_TRUE(recorder_.permanent);
  RunUntil([&] { return recorder_.gone; });
}

TEST_F(LocalExecutorTest, WhatCantWorkIsNotTriedAgain) {
  executor_->Start(plan_);
  ASSERT_OK(Tell(Dir("node-4"), "78", Soon()));
  RunUntil([&] { return recorder_.gone; });
  EXPECT_THAT(recorder_.lost, HasSubstr("the agent on node-4 can't work"));
  EXPECT_THAT(recorder_.lost, HasSubstr(Dir("node-4") + "/agent.log"));
  EXPECT_TRUE(recorder_.permanent);
  EXPECT_EQ(recorder_.starts["agentnode-4"], 1);
}

TEST_F(LocalExecutorTest, NodesAreNotFreeUntilWhatEscapedIsGone) {
  executor_->Start(plan_);
  executor_->Finish("job-1", 2, std::chrono::seconds(30));
  const std::string socket = Dir("node-0") + "/keeper.sock";
  std::ofstream(socket) << "\n";
  ASSERT_OK(Tell(Dir("node-0"), "daemon", Soon()));
  ASSERT_OK(Tell(Dir("node-4"), "0", Soon()));
  ASSERT_OK(Tell(Dir("master"), "0", Soon()));
  RunUntil([&] { return recorder_.gone; });
  EXPECT_THAT(recorder_.kinds, Contains("leftover"));
  EXPECT_EQ(Alive(), 0u);
  EXPECT_NE(access(socket.c_str(), F_OK), 0) << "what was killed can't clean up";
}

TEST_F(LocalExecutorTest, AtTheDeadlineProcessesGetSigtermAndThenSigkill) {
  ASSERT_OK(RealFileSystem().CreateDirs(plan_.run_dir));
  std::ofstream(Dir("stubborn")) << "\n";
  executor_->Start(plan_);
  WaitUntilAllListen();
  executor_->SetDeadline("job-1", 2, RealClock().Monotonic() + std::chrono::milliseconds(10));
  RunUntil([&] { return recorder_.gone; });
  EXPECT_THAT(recorder_.kinds, Contains("deadline"));
  EXPECT_EQ(Alive(), 0u);
}

TEST_F(LocalExecutorTest, TheMasterMayReportAfterTheDeadlineUntilTheKill) {
  executor_->Start(plan_);
  WaitUntilAllListen();
  for (const char* name : {"master", "node-0", "node-4"}) {
    RunUntil([&] { return access((Dir(name) + "/control").c_str(), F_OK) == 0; });
  }
  executor_->SetDeadline("job-1", 2, RealClock().Monotonic());
  RunUntil([&] { return Alive() == 1; });
  EXPECT_EQ(kill(recorder_.processes["master"].pid, 0), 0);
  RunUntil([&] { return recorder_.gone; });
  EXPECT_EQ(Alive(), 0u);
}

TEST_F(LocalExecutorTest, ProcessesOutliveTheExecutorAndAreTakenOver) {
  executor_->Start(plan_);
  WaitUntilAllListen();
  std::vector<ProcessRecord> records;
  for (const auto& [name, record] : recorder_.processes) records.push_back(record);
  Restart();
  RunUntil([&] { return Alive() == 3; });
  executor_->Adopt(plan_, records);
  for (const ProcessRecord& record : records) {
    EXPECT_EQ(recorder_.processes[record.role + record.node].pid, record.pid) << "started again";
  }
  executor_->Finish("job-1", 2, std::chrono::seconds(30));
  TellAll("0");
  RunUntil([&] { return recorder_.gone; });
}

TEST_F(LocalExecutorTest, AProcessThatWasNeverNotedDownIsFoundAndADeadOneStartedAgain) {
  executor_->Start(plan_);
  WaitUntilAllListen();
  const ProcessRecord agent = recorder_.processes["agentnode-0"];
  ProcessRecord master = recorder_.processes["master"];
  Restart();
  ASSERT_EQ(kill(master.pid, SIGKILL), 0);
  RunUntil([&] { return Alive() == 2; });
  executor_->Adopt(plan_, {master});  // nothing is known of the agents
  EXPECT_EQ(recorder_.processes["agentnode-0"].pid, agent.pid);
  EXPECT_NE(recorder_.processes["master"].pid, master.pid);
  EXPECT_EQ(recorder_.processes["master"].starts, 2u);
  executor_->Finish("job-1", 2, std::chrono::seconds(30));
  TellAll("0");
  RunUntil([&] { return recorder_.gone; });
}

}  // namespace
}  // namespace godwit
