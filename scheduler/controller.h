#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/status.h"
#include "proto/scheduler.pb.h"
#include "scheduler/config/cluster_config.h"
#include "scheduler/executor/executor.h"
#include "scheduler/policy/cluster.h"
#include "scheduler/policy/decide.h"
#include "scheduler/store/store.h"

namespace godwit {

// The scheduler's state machine: jobs from submission to end. It asks the policy what to do, writes
// down what it will do, and only then has it done. All methods are called on the loop's thread.
//
// When the store can't be written (a full disk) nothing new is begun: what has happened is kept in
// memory, and written and acted upon as soon as the store can be written again.
class Controller : public ExecutorListener {
 public:
  struct Job {
    JobRecord record;
    std::optional<AttemptRecord> attempt;     // the newest
    std::vector<DirectiveRecord> directives;  // of that attempt, not acknowledged
    std::optional<proto::NoticeReply> ack;    // of the newest notice
    uint32_t status_attempt = 0;              // whose master record.master is from

    bool Placed() const { return attempt && !attempt->ended; }
    bool Leaving() const { return Placed() && !attempt->leave_reason.empty(); }
  };

  // `run_root` is where attempts get their run directories. The store outlives the controller.
  Controller(ClusterConfig config, std::vector<policy::Node> nodes, std::string run_root,
             Store& store, EventLoop& loop, Clock& clock);
  ~Controller() override;
  Controller(const Controller&) = delete;

  // Reads the store, takes over what runs, and begins. FAILED_PRECONDITION when the cluster as
  // configured now has no place for a job that is there (its quota or node is gone).
  Status Begin(Executor& executor);

  // ---- people ----
  // Accepts a checked spec (api/submit.h) and returns the job's id; the same id for a key that was
  // used before. Durable when it returns.
  Result<std::string> Submit(proto::JobSpec spec, const std::string& idempotency_key);
  // Ends the job: at once when it waits, with a grace otherwise. OK when it has ended already.
  Status Stop(const std::string& job_id, const std::string& reason);
  // Tells a placed job to leave; it queues again. Returns the notice's id; that of the notice in
  // progress, whose deadline moves if this one is earlier.
  Result<std::string> Preempt(const std::string& job_id, Duration grace, const std::string& reason);
  // NOT_FOUND with the id.
  Result<const Job*> Find(const std::string& job_id) const;
  // By number.
  const std::map<uint64_t, Job>& jobs() const { return jobs_; }
  const policy::ClusterState& cluster() const { return cluster_; }
  const ClusterConfig& config() const { return config_; }
  Store& store() { return store_; }
  std::string RunDirectory(const std::string& job_id) const;

  // ---- masters and agents ----
  Status RegisterMaster(const proto::RegisterMasterRequest& request,
                        proto::RegisterMasterReply* reply);
  // Directives above the number, with the time left as of now. FAILED_PRECONDITION when the attempt
  // isn't the job's any more.
  Result<std::vector<proto::Directive>> Directives(const std::string& job_id, uint32_t attempt,
                                                   uint64_t after) const;
  // False: another attempt (or master process) owns the job.
  bool Report(const proto::MasterReport& report);
  Result<std::string> LocateMaster(const std::string& job_id, uint32_t attempt) const;

  // Called after each change, so that those who wait for one look again.
  void SetOnChange(std::function<void()> on_change) { on_change_ = std::move(on_change); }
  // OK, or why nothing can be begun now.
  const Status& store_status() const { return store_status_; }

  // ExecutorListener
  void OnProcess(const ProcessRecord& process) override;
  void OnExecutorEvent(const std::string& job_id, const std::string& kind,
                       const std::string& message) override;
  void OnAttemptLost(const std::string& job_id, uint32_t attempt, const std::string& reason,
                     bool permanent) override;
  void OnAttemptGone(const std::string& job_id, uint32_t attempt) override;

 private:
  Job* Lookup(const std::string& job_id);
  Job* LookupAttempt(const std::string& job_id, uint32_t attempt);
  policy::Job PolicyJob(const JobRecord& record) const;
  Status Restore(const Store::Contents& contents);
  AttemptPlan PlanOf(const Job& job) const;

  void RunPolicy(const policy::Event& event);
  void Do(const policy::StartJob& action);
  void Do(const policy::NotifyJob& action);
  void Do(const policy::PromoteJob& action);
  void NoteWaiting();
  // Makes the attempt leave: a numbered directive, and the deadline.
  std::string Leave(Job& job, const char* leave_reason, const std::string& preemptor,
                    const std::string& text, Duration grace);
  void ReportStatus(Job& job, const proto::MasterStatus& status);
  void EndJob(Job& job, JobState state, const std::string& reason);
  void Requeue(Job& job, const std::string& message);
  void FinishAttempt(Job& job);

  void AddEvent(const std::string& job_id, const std::string& kind, const std::string& message,
                const std::string& data_json = "");
  void Dirty(const Job& job) { dirty_jobs_[job.record.number] = true; }
  // Writes what has changed, then does what waited for that.
  void Flush();
  void AfterFlush(std::function<void()> effect) { effects_.push_back(std::move(effect)); }
  uint64_t UnixMs() const;
  Duration GraceOf(const Job& job) const;
  MonotonicTime DeadlineOf(uint64_t deadline_ns, const std::string& boot_id) const;

  const ClusterConfig config_;
  const std::string run_root_;
  Store& store_;
  EventLoop& loop_;
  Clock& clock_;
  Executor* executor_ = nullptr;
  std::string boot_id_;

  policy::ClusterState cluster_;
  std::map<uint64_t, Job> jobs_;
  std::map<std::string, uint64_t> number_of_;
  std::map<std::string, std::string> id_of_key_;
  uint64_t last_directive_ = 0;
  uint64_t last_event_ = 0;

  Store::Batch batch_;                   // what's to be written, besides dirty jobs
  std::map<uint64_t, bool> dirty_jobs_;  // record and attempt are to be written
  std::vector<std::function<void()>> effects_;
  bool flushing_ = false;
  Status store_status_;
  EventLoop::TimerId retry_timer_ = 0;
  EventLoop::TimerId policy_timer_ = 0;
  std::function<void()> on_change_;
};

}  // namespace godwit
