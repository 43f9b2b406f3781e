// The whole scheduler over gRPC, with fake programs as masters' and agents' processes and this test
// speaking for the masters.
#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "proto/scheduler.grpc.pb.h"
#include "scheduler/testing/fake_program.h"

namespace godwit {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::Tell;

MonotonicTime Soon() { return RealClock().Monotonic() + std::chrono::seconds(60); }

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() : dir_(TempDir::Create("gw-sched").value()) {
    EXPECT_THAT(testing::WriteFakeProgram(dir_.File("program")), IsOk());
    WriteConfig(R"({"quotas": [{"name": "team-a", "guaranteed": 1},
                               {"name": "team-b", "guaranteed": 2}],
                    "notice_s": 20, "grow_after_s": 0.2})");
  }
  ~SchedulerTest() override {
    StopScheduler();
    // What a test has left running.
    std::error_code error;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(dir_.File("state/run"), error)) {
      pid_t pid = 0;
      if (entry.path().filename() != "pid" || !(std::ifstream(entry.path()) >> pid)) continue;
      const auto tagged = ReadFile("/proc/" + std::to_string(pid) + "/cmdline");
      if (tagged.find(dir_.path()) != std::string::npos) kill(pid, SIGKILL);
    }
  }

  static std::string ReadFile(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  void WriteConfig(const std::string& text) { std::ofstream(dir_.File("config.json")) << text; }

  void StartScheduler() {
    stop_.Reset(eventfd(0, EFD_CLOEXEC));
    SchedulerOptions options;
    options.nodes = "3x1";
    options.config_path = dir_.File("config.json");
    options.state_dir = dir_.File("state");
    options.listen = "unix:" + dir_.File("s.sock");
    options.program = dir_.File("program");
    options.handle_signals = false;
    options.stop_fd = stop_.get();
    options.on_listening = [this](const std::string& address) {
      std::unique_lock<std::mutex> lock(mutex_);
      address_ = address;
      changed_.notify_all();
    };
    {
      std::unique_lock<std::mutex> lock(mutex_);
      address_.clear();
      exit_code_.reset();
    }
    thread_ = Thread("scheduler", [this, options](StopToken) {
      const int code = RunScheduler(options);
      std::unique_lock<std::mutex> lock(mutex_);
      exit_code_ = code;
      changed_.notify_all();
    });
    std::unique_lock<std::mutex> lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                  [&] { return !address_.empty() || exit_code_; }));
    if (address_.empty()) return;
    stub_ = proto::Scheduler::NewStub(
        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  void StopScheduler() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    ASSERT_EQ(write(stop_.get(), &one, sizeof(one)), 8);
    thread_.Join();
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_EQ(exit_code_, 0);
  }

  template <typename Request, typename Reply>
  Status Call(grpc::Status (proto::Scheduler::Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Reply*),
              const Request& request, Reply* reply) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const grpc::Status status = (stub_.get()->*method)(&context, request, reply);
    if (status.ok()) return OkStatus();
    return Status(static_cast<StatusCode>(status.error_code()), status.error_message());
  }

  static proto::JobSpec Spec(const std::string& quota, const std::string& idle, uint32_t min,
                             uint32_t max) {
    proto::JobSpec spec;
    spec.set_name("train");
    spec.set_quota(quota);
    spec.set_idle(idle);
    spec.set_min_workers(min);
    spec.set_max_workers(max);
    spec.add_argv("./train");
    return spec;
  }
  Result<std::string> Submit(const proto::JobSpec& spec, const std::string& key = "") {
    proto::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_idempotency_key(key);
    proto::SubmitReply reply;
    GODWIT_RETURN_IF_ERROR(Call(&proto::Scheduler::Stub::Submit, request, &reply));
    return reply.job_id();
  }
  proto::JobInfo Job(const std::string& id) {
    proto::GetJobRequest request;
    request.set_job_id(id);
    proto::JobInfo info;
    EXPECT_THAT(Call(&proto::Scheduler::Stub::GetJob, request, &info), IsOk());
    return info;
  }
  std::string Explain(const std::string& id) {
    proto::GetJobRequest request;
    request.set_job_id(id);
    proto::ExplainReply reply;
    EXPECT_THAT(Call(&proto::Scheduler::Stub::Explain, request, &reply), IsOk());
    certificate_ = reply.certificate_json();
    return reply.text();
  }

  // The next event of the job and kind that this test has not waited for yet.
  proto::Event WaitForEvent(const std::string& job, const std::string& kind) {
    uint64_t& after = seen_[job + "/" + kind];
    const MonotonicTime bound = Soon();
    while (RealClock().Monotonic() < bound) {
      proto::ListEventsRequest request;
      request.set_job_id(job);
      request.set_after(after);
      request.set_wait_ms(5000);
      proto::ListEventsReply reply;
      EXPECT_THAT(Call(&proto::Scheduler::Stub::ListEvents, request, &reply), IsOk());
      for (const proto::Event& event : reply.events()) {
        after = event.number();
        if (event.kind() == kind) return event;
      }
    }
    ADD_FAILURE() << "no event " << kind << " of " << job;
    return {};
  }
  std::vector<std::string> Kinds(const std::string& job) {
    proto::ListEventsRequest request;
    request.set_job_id(job);
    proto::ListEventsReply reply;
    EXPECT_THAT(Call(&proto::Scheduler::Stub::ListEvents, request, &reply), IsOk());
    std::vector<std::string> kinds;
    for (const proto::Event& event : reply.events()) kinds.push_back(event.kind());
    return kinds;
  }

  // ---- speaking for a master ----
  struct Master {
    std::string job;
    uint32_t attempt = 0;
    int32_t pid = 0;
    uint64_t sequence = 0;
    uint64_t directive = 0;
    proto::RegisterMasterReply job_info;
    std::vector<std::string> nodes;
  };
  // Waits until the job is placed, and registers.
  Master Register(const std::string& job) {
    Master master;
    master.job = job;
    const auto data = nlohmann::json::parse(WaitForEvent(job, "placed").data_json());
    master.attempt = data["attempt"];
    for (const auto& worker : data["workers"]) {
      const std::string node = worker["node"];
      if (master.nodes.empty() || master.nodes.back() != node) master.nodes.push_back(node);
    }
    const MonotonicTime bound = Soon();
    while (!(std::ifstream(Dirs(master)[0] + "/pid") >> master.pid)) {
      EXPECT_LT(RealClock().Monotonic(), bound) << "no master process";
      if (RealClock().Monotonic() >= bound) return master;
      poll(nullptr, 0, 5);
    }
    RegisterAgain(master);
    return master;
  }
  void RegisterAgain(Master& master) {
    proto::RegisterMasterRequest request;
    request.set_job_id(master.job);
    request.set_attempt(master.attempt);
    request.set_pid(master.pid);
    request.set_address("unix:/master/" + master.job);
    EXPECT_THAT(Call(&proto::Scheduler::Stub::RegisterMaster, request, &master.job_info), IsOk());
  }
  std::vector<std::string> Dirs(const Master& master) {
    const std::string base =
        dir_.File("state/run/jobs/") + master.job + "/a" + std::to_string(master.attempt) + "/";
    std::vector<std::string> dirs = {base + "master"};
    for (const std::string& node : master.nodes) dirs.push_back(base + node);
    return dirs;
  }
  bool Report(Master& master, proto::MasterReport report) {
    report.set_job_id(master.job);
    report.set_attempt(master.attempt);
    report.set_pid(master.pid);
    report.set_sequence(++master.sequence);
    report.set_acknowledged_number(master.directive);
    proto::MasterReportReply reply;
    EXPECT_THAT(Call(&proto::Scheduler::Stub::ReportMaster, report, &reply), IsOk());
    return !reply.stale();
  }
  void ReportRunning(Master& master, std::optional<uint64_t> committed = std::nullopt) {
    proto::MasterReport report;
    report.mutable_status()->set_state("Running");
    if (committed) {
      report.mutable_status()->set_has_commit(true);
      report.mutable_status()->set_committed_step(*committed);
    }
    EXPECT_TRUE(Report(master, report));
  }
  proto::Directive NextDirective(Master& master) {
    proto::PollDirectivesRequest request;
    request.set_job_id(master.job);
    request.set_attempt(master.attempt);
    request.set_after_number(master.directive);
    request.set_wait_ms(30000);
    proto::PollDirectivesReply reply;
    EXPECT_THAT(Call(&proto::Scheduler::Stub::PollDirectives, request, &reply), IsOk());
    EXPECT_GE(reply.directives_size(), 1);
    if (reply.directives().empty()) return {};
    master.directive = reply.directives(0).number();
    return reply.directives(0);
  }
  // Acknowledges a notice, and leaves as a job does.
  void LeaveFor(Master& master, const std::string& notice, uint64_t step,
                const std::string& reason = "") {
    proto::MasterReport ack;
    ack.mutable_ack()->set_id(notice);
    ack.mutable_ack()->set_accepted(true);
    ack.mutable_ack()->set_eta_ns(2'000'000'000);
    EXPECT_TRUE(Report(master, ack));
    proto::MasterReport gpu;
    gpu.set_released_gpu(notice);
    EXPECT_TRUE(Report(master, gpu));
    proto::MasterReport node;
    node.set_released_node(notice);
    node.mutable_notice_record()->set_id(notice);
    node.mutable_notice_record()->set_safe_step(step);
    node.mutable_notice_record()->set_in_time(true);
    node.mutable_status()->set_state("Stopping");
    node.mutable_status()->set_has_commit(true);
    node.mutable_status()->set_committed_step(step);
    EXPECT_TRUE(Report(master, node));
    End(master, "Preempted", 75, false, reason);
  }
  void End(Master& master, const std::string& state, int code, bool retryable = false,
           const std::string& reason = "") {
    proto::MasterReport last;
    last.mutable_outcome()->set_state(state);
    last.mutable_outcome()->set_reason(reason.empty() ? "reason of " + state : reason);
    last.mutable_outcome()->set_retryable(retryable);
    last.mutable_outcome()->set_exit_code(code);
    EXPECT_TRUE(Report(master, last));
    TellAll(master, std::to_string(code));
  }
  void TellAll(const Master& master, const std::string& word) {
    for (const std::string& dir : Dirs(master)) {
      EXPECT_THAT(Tell(dir, word, Soon()), IsOk()) << dir;
    }
  }

  TempDir dir_;
  UniqueFd stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string address_;           // guarded by mutex_
  std::optional<int> exit_code_;  // guarded by mutex_
  Thread thread_;
  std::unique_ptr<proto::Scheduler::Stub> stub_;
  std::map<std::string, uint64_t> seen_;
  std::string certificate_;
};

TEST_F(SchedulerTest, AJobOnLentSlotsLeavesForTheirOwnerComesBackAndGrowsAgain) {
  StartScheduler();
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(Spec("team-a", "accept", 1, 3)));
  Master master = Register(a);
  EXPECT_EQ(master.job_info.nodes(), 3u);
  EXPECT_EQ(master.job_info.workers(), 3u);
  EXPECT_FALSE(master.job_info.has_expected_step());
  ReportRunning(master, 40);
  EXPECT_EQ(Job(a).state(), "Running");
  EXPECT_EQ(Job(a).resource(), "mixed");
  EXPECT_EQ(Job(a).idle_workers(), 2u);

  ASSERT_OK_AND_ASSIGN(const std::string b, Submit(Spec("team-b", "forbid", 2, 2)));
  const proto::Directive directive = NextDirective(master);
  const std::string notice = directive.notice().id();
  EXPECT_EQ(directive.notice().reason(), "reclaim");
  EXPECT_EQ(directive.notice().preemptor(), b);
  EXPECT_GT(directive.notice().time_left_ns(), 15'000'000'000u);
  EXPECT_LE(directive.notice().time_left_ns(), 20'000'000'000u);
  EXPECT_EQ(Job(b).state(), "Queuing");
  EXPECT_EQ(Job(b).reason(), "waits for " + a + " to leave");
  EXPECT_EQ(Job(a).state(), "Stopping");
  EXPECT_THAT(Explain(a), HasSubstr("quota 'team-b' reclaims lent slots for " + b));
  EXPECT_EQ(nlohmann::json::parse(certificate_)["victims"][0]["job"], a);
  EXPECT_THAT(Explain(b), HasSubstr(a + " is leaving for it"));

  LeaveFor(master, notice, 57, "reclaim, for " + b);
  // The master's words are the scheduler's own, which are not said twice.
  EXPECT_EQ(WaitForEvent(a, "requeued").message(), "left (reclaim for " + b + ")");
  Master b_master = Register(b);
  EXPECT_EQ(b_master.nodes.size(), 2u);
  Master again = Register(a);
  EXPECT_EQ(again.attempt, 2u);
  EXPECT_EQ(again.job_info.workers(), 1u);
  EXPECT_EQ(again.job_info.expected_step(), 57u);
  ReportRunning(b_master);
  ReportRunning(again);
  EXPECT_EQ(Job(b).resource(), "in quota: ordinary");
  EXPECT_EQ(Job(a).resource(), "in quota: ordinary");
  EXPECT_EQ(Job(a).preemptions(), 1u);
  EXPECT_EQ(Job(a).job_restarts(), 0u);
  ASSERT_EQ(Job(a).notices_size(), 1);
  EXPECT_EQ(Job(a).notices(0).safe_step(), 57u);

  End(b_master, "Succeeded", 0);
  WaitForEvent(b, "succeeded");
  const proto::Directive grow = NextDirective(again);
  EXPECT_EQ(grow.notice().reason(), "grow");
  LeaveFor(again, grow.notice().id(), 80);
  Master third = Register(a);
  EXPECT_EQ(third.job_info.workers(), 3u);
  ReportRunning(third);
  End(third, "Succeeded", 0);
  WaitForEvent(a, "succeeded");
  EXPECT_EQ(Job(a).state(), "Succeeded");
  EXPECT_THAT(Kinds(a),
              ElementsAre("submitted", "placed", "started", "notice", "ack", "released-gpu",
                          "notice-record", "released-node", "requeued", "placed", "started",
                          "notice", "ack", "released-gpu", "notice-record", "released-node",
                          "requeued", "placed", "started", "succeeded"));
}

TEST_F(SchedulerTest, ARestartedSchedulerFindsTheRunningJobAndItsNotice) {
  StartScheduler();
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(Spec("team-a", "accept", 1, 3)));
  Master master = Register(a);
  ReportRunning(master, 10);
  ASSERT_OK_AND_ASSIGN(const std::string b, Submit(Spec("team-b", "forbid", 2, 2)));
  StopScheduler();
  StartScheduler();
  EXPECT_THAT(WaitForEvent("", "scheduler-started").message(), HasSubstr("0 placed jobs"));
  EXPECT_THAT(WaitForEvent("", "scheduler-started").message(),
              HasSubstr("1 placed job taken over"));
  // The same master process goes on reporting; the notice was not acknowledged.
  const proto::Directive directive = NextDirective(master);
  EXPECT_EQ(directive.notice().preemptor(), b);
  EXPECT_EQ(Job(b).reason(), "waits for " + a + " to leave");
  proto::LocateMasterRequest locate;
  locate.set_job_id(a);
  locate.set_attempt(1);
  proto::LocateMasterReply located;
  ASSERT_OK(Call(&proto::Scheduler::Stub::LocateMaster, locate, &located));
  LeaveFor(master, directive.notice().id(), 12);
  Master b_master = Register(b);
  EXPECT_THAT(Kinds(a), ::testing::Not(Contains("agent-exited")));
  End(b_master, "Succeeded", 0);
  WaitForEvent(b, "succeeded");
}

TEST_F(SchedulerTest, ASecondSchedulerOnTheSameStoreEndsWithTheFirstOnesPid) {
  StartScheduler();
  SchedulerOptions options;
  options.state_dir = dir_.File("state");
  options.listen = "unix:" + dir_.File("other.sock");
  options.handle_signals = false;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunScheduler(options), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("godwit: scheduler: store " + dir_.File("state") +
                        " is in use by the scheduler with pid " + std::to_string(getpid())));
  options.state_dir = dir_.File("state2");
  options.listen = "unix:" + dir_.File("s.sock");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunScheduler(options), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("another scheduler listens at"));
}

TEST_F(SchedulerTest, AWrongConfigurationIsOneLine) {
  WriteConfig(R"({"quotas": [{"name": "a", "guarantee": 1}]})");
  ::testing::internal::CaptureStderr();
  StartScheduler();
  thread_.Join();
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(error, HasSubstr("unknown key 'guarantee'; did you mean 'guaranteed'?"));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1);
}

TEST_F(SchedulerTest, AJobThatCanNeverFitOrIsWrongIsRefused) {
  StartScheduler();
  EXPECT_THAT(Submit(Spec("team-b", "forbid", 3, 3)),
              testing::StatusIs(StatusCode::kFailedPrecondition,
                                HasSubstr("the job can never run: it needs 3 slots")));
  EXPECT_THAT(Submit(Spec("team-c", "forbid", 1, 1)),
              testing::StatusIs(StatusCode::kInvalidArgument,
                                HasSubstr("quota: got 'team-c'; did you mean 'team-a'?")));
  EXPECT_THAT(Submit(Spec("team-a", "acept", 1, 1)),
              testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("did you mean 'accept'?")));
  proto::JobSpec nothing = Spec("team-a", "accept", 1, 1);
  nothing.clear_argv();
  EXPECT_THAT(Submit(nothing),
              testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("job: argv")));
}

TEST_F(SchedulerTest, TheSameKeyIsTheSameJob) {
  StartScheduler();
  ASSERT_OK_AND_ASSIGN(const std::string first, Submit(Spec("team-a", "forbid", 1, 1), "key"));
  Master master = Register(first);
  ASSERT_OK_AND_ASSIGN(const std::string second, Submit(Spec("team-a", "forbid", 1, 1), "key"));
  EXPECT_EQ(first, second);
  End(master, "Succeeded", 0);
  WaitForEvent(first, "succeeded");
}

TEST_F(SchedulerTest, StopEndsAWaitingJobAtOnceAndARunningOneByDirective) {
  StartScheduler();
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(Spec("team-a", "forbid", 1, 1)));
  ASSERT_OK_AND_ASSIGN(const std::string waiting, Submit(Spec("team-a", "forbid", 1, 1)));
  Master master = Register(a);
  ReportRunning(master);
  proto::StopJobRequest request;
  proto::StopJobReply reply;
  request.set_job_id(waiting);
  ASSERT_OK(Call(&proto::Scheduler::Stub::StopJob, request, &reply));
  EXPECT_EQ(Job(waiting).state(), "Stopped");
  request.set_job_id(a);
  request.set_reason("enough");
  ASSERT_OK(Call(&proto::Scheduler::Stub::StopJob, request, &reply));
  EXPECT_THAT(NextDirective(master).stop().reason(), HasSubstr("enough"));
  End(master, "Stopped", 0);
  WaitForEvent(a, "stopped");
  EXPECT_EQ(Job(a).state(), "Stopped");
}

TEST_F(SchedulerTest, AReclaimedJobWithoutAutoRestartEndsAsFailed) {
  StartScheduler();
  proto::JobSpec spec = Spec("team-a", "only", 3, 3);
  spec.set_auto_restart(false);
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(spec));
  Master master = Register(a);
  ReportRunning(master);
  ASSERT_OK_AND_ASSIGN(const std::string b, Submit(Spec("team-b", "forbid", 2, 2)));
  LeaveFor(master, NextDirective(master).notice().id(), 5);
  WaitForEvent(a, "failed");
  EXPECT_THAT(Job(a).reason(), HasSubstr("IdleReclaimed"));
  Master b_master = Register(b);
  End(b_master, "Succeeded", 0);
  WaitForEvent(b, "succeeded");
}

TEST_F(SchedulerTest, AFailureIsRetriedThroughTheQueueAsOftenAsTheJobAllows) {
  StartScheduler();
  proto::JobSpec spec = Spec("team-a", "forbid", 1, 1);
  spec.set_max_job_restarts(1);
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(spec));
  Master master = Register(a);
  EXPECT_EQ(master.job_info.job_restarts_left(), 1u);
  End(master, "Failed", 1, true);
  Master again = Register(a);
  EXPECT_EQ(again.job_info.job_restarts_left(), 0u);
  End(again, "Failed", 1, true);
  WaitForEvent(a, "failed");
  EXPECT_EQ(Job(a).job_restarts(), 1u);
}

TEST_F(SchedulerTest, ReportsOfAnotherAttemptOrMasterAreStale) {
  StartScheduler();
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(Spec("team-a", "forbid", 1, 1)));
  Master master = Register(a);
  Master other = master;
  other.pid = 1;
  EXPECT_FALSE(Report(other, {}));
  other = master;
  other.attempt = 7;
  EXPECT_FALSE(Report(other, {}));
  // A repeated report changes nothing.
  proto::MasterReport event;
  event.add_events()->set_kind("parked");
  EXPECT_TRUE(Report(master, event));
  --master.sequence;
  EXPECT_TRUE(Report(master, event));
  const auto kinds = Kinds(a);
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "parked"), 1);
  End(master, "Succeeded", 0);
  WaitForEvent(a, "succeeded");
}

TEST_F(SchedulerTest, ANoticeByHandIsAnsweredWithItsIdAndTheJobComesBack) {
  StartScheduler();
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(Spec("team-a", "forbid", 1, 1)));
  Master master = Register(a);
  ReportRunning(master);
  proto::PreemptJobRequest request;
  request.set_job_id(a);
  request.set_grace_ns(10'000'000'000);
  proto::PreemptJobReply reply;
  ASSERT_OK(Call(&proto::Scheduler::Stub::PreemptJob, request, &reply));
  const proto::Directive directive = NextDirective(master);
  EXPECT_EQ(directive.notice().id(), reply.notice_id());
  EXPECT_EQ(directive.notice().reason(), "operator");
  LeaveFor(master, directive.notice().id(), 3);
  Master again = Register(a);
  EXPECT_EQ(again.job_info.expected_step(), 3u);
  End(again, "Succeeded", 0);
  WaitForEvent(a, "succeeded");
}

TEST_F(SchedulerTest, WhoIsNotGoneAtTheDeadlineIsEndedAndQueuesAgain) {
  StartScheduler();
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(Spec("team-a", "forbid", 1, 1)));
  Master master = Register(a);
  ReportRunning(master);
  // The processes listen, so their traps are set.
  proto::PreemptJobRequest request;
  request.set_job_id(a);
  request.set_grace_ns(50'000'000);
  proto::PreemptJobReply reply;
  ASSERT_OK(Call(&proto::Scheduler::Stub::PreemptJob, request, &reply));
  WaitForEvent(a, "deadline");
  EXPECT_THAT(WaitForEvent(a, "requeued").message(), HasSubstr("ended by force at the deadline"));
  EXPECT_EQ(Job(a).preemptions(), 1u);
  Master again = Register(a);
  EXPECT_EQ(again.attempt, 2u);
  End(again, "Succeeded", 0);
  WaitForEvent(a, "succeeded");
}

TEST_F(SchedulerTest, QuotasAndNodesShowWhoUsesWhat) {
  StartScheduler();
  ASSERT_OK_AND_ASSIGN(const std::string a, Submit(Spec("team-a", "accept", 1, 3)));
  Master master = Register(a);
  proto::ListQuotasReply quotas;
  ASSERT_OK(Call(&proto::Scheduler::Stub::ListQuotas, proto::ListQuotasRequest(), &quotas));
  ASSERT_EQ(quotas.quotas_size(), 2);
  EXPECT_EQ(quotas.quotas(0).used_guaranteed(), 1u);
  EXPECT_EQ(quotas.quotas(0).used_idle(), 2u);
  EXPECT_EQ(quotas.quotas(1).lent(), 2u);
  proto::ListNodesReply nodes;
  ASSERT_OK(Call(&proto::Scheduler::Stub::ListNodes, proto::ListNodesRequest(), &nodes));
  ASSERT_EQ(nodes.nodes_size(), 3);
  EXPECT_EQ(nodes.nodes(2).state(), "used");
  EXPECT_THAT(nodes.nodes(2).job_ids(), ElementsAre(a));
  End(master, "Succeeded", 0);
  WaitForEvent(a, "succeeded");
}

TEST_F(SchedulerTest, AnUnknownJobIsNotFound) {
  StartScheduler();
  proto::GetJobRequest request;
  request.set_job_id("job-9");
  proto::JobInfo info;
  EXPECT_THAT(Call(&proto::Scheduler::Stub::GetJob, request, &info),
              testing::StatusIs(StatusCode::kNotFound, HasSubstr("no job 'job-9'")));
}

TEST(SchedulerAddressTest, AddressesAreChecked) {
  EXPECT_OK(CheckSchedulerAddress("unix:/a/b.sock"));
  EXPECT_OK(CheckSchedulerAddress("127.0.0.1:0"));
  for (const std::string& bad : {std::string(""), std::string("unix:relative"), std::string("host"),
                                 std::string("host:99999"), "unix:/" + std::string(120, 'x')}) {
    EXPECT_THAT(CheckSchedulerAddress(bad),
                testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("allowed")))
        << bad;
  }
  EXPECT_OK(CheckSchedulerAddress(DefaultSchedulerAddress()));
}

}  // namespace
}  // namespace godwit
