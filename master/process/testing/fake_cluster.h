#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "master/process/storage.h"
#include "proto/master.grpc.pb.h"
#include "proto/scheduler.grpc.pb.h"

namespace godwit::master::testing {

// Commits as names of empty files, so that they outlive the process under test.
class FakeStorage : public Storage {
 public:
  explicit FakeStorage(std::string dir) : dir_(std::move(dir)) {}
  Result<ckpt::Found> FindNewest(const std::string& dir,
                                 const std::set<ckpt::SaveId>& distrusted) override;
  Result<ckpt::NewTerm> BeginTerm(const std::string& dir, const std::string& job_id,
                                  uint64_t now_unix_ms,
                                  const std::set<ckpt::SaveId>& distrusted) override;
  Result<ckpt::Commit> CommitSave(const std::string& dir, const ckpt::SaveId& save,
                                  const std::vector<std::string>& tails) override;
  Status Retain(const std::string& dir, uint64_t term, uint32_t keep) override;

 private:
  const std::string dir_;
};

// An agent with workers that do what they are told: a real stream to a real master. It attaches
// again when the stream breaks, until Leave.
class FakeAgent {
 public:
  struct Options {
    std::function<std::string()> locate;  // the master's address; empty: not known yet
    std::string job_id = "job";
    uint32_t node = 0;
    uint32_t slots = 1;
    std::string directory = "/ckpt";
    uint64_t total_steps = 100;
    uint64_t persist_every = 0;
  };
  explicit FakeAgent(Options options);
  ~FakeAgent();

  // All ranks are at `step`, in a step: with a whole snapshot of it if wanted.
  void Advance(uint64_t step, bool snapshot);
  void FinishSteps();
  void KillWorker(uint32_t slot, int signal);

  // These wait, at most ten seconds; false when it did not happen by then.
  bool WaitFor(const std::function<bool()>& condition);
  bool WaitForOrder(const std::function<bool(const proto::MasterOrder&)>& condition);
  bool WaitRunning(uint64_t epoch);  // gates are open
  bool WaitLeft();

  // What was heard so far.
  std::vector<proto::MasterOrder> orders();
  size_t Count(proto::MasterOrder::OrderCase kind);
  int leave_code();
  uint64_t resumed_step();
  std::string refused();

 private:
  void Run();
  void Obey(const proto::MasterOrder& order);
  void Report(proto::AgentReport report);
  proto::AgentReport Hello();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, left_ = false, open_ = false, alive_ = false, parked_ = false;
  bool finished_ = false, at_gate_ = false;
  std::string refused_;
  int leave_code_ = -1;
  uint64_t epoch_ = 0, entered_ = 0, resumed_ = 0;
  uint32_t world_ = 0;
  std::vector<proto::SlotRank> ranks_;
  std::vector<proto::SnapshotWhole> whole_;
  std::vector<proto::MasterOrder> orders_;
  std::deque<proto::AgentReport> queue_;
  grpc::ClientContext* context_ = nullptr;
  std::thread thread_;
};

// The scheduler's side of a master.
class FakeScheduler : public proto::Scheduler::Service {
 public:
  FakeScheduler();
  ~FakeScheduler() override;
  const std::string& address() const { return address_; }

  void SetSpec(proto::RegisterMasterReply reply);
  void Direct(proto::Directive directive);  // numbered here
  void Disown();

  std::string master_address();
  std::vector<proto::MasterReport> reports();
  bool WaitFor(const std::function<bool(const proto::MasterReport&)>& condition);

  grpc::Status RegisterMaster(grpc::ServerContext*, const proto::RegisterMasterRequest*,
                              proto::RegisterMasterReply*) override;
  grpc::Status PollDirectives(grpc::ServerContext*, const proto::PollDirectivesRequest*,
                              proto::PollDirectivesReply*) override;
  grpc::Status ReportMaster(grpc::ServerContext*, const proto::MasterReport*,
                            proto::MasterReportReply*) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, disowned_ = false;
  proto::RegisterMasterReply spec_;
  std::string master_address_;
  std::vector<proto::Directive> directives_;
  std::vector<proto::MasterReport> reports_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace godwit::master::testing
