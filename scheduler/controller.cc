#include "scheduler/controller.h"

#include <fmt/core.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/process.h"
#include "base/strings.h"
#include "scheduler/policy/capacity.h"

namespace godwit {
namespace {

using Json = nlohmann::json;

// For agents and master to end by themselves once the outcome is known.
constexpr Duration kEndGrace = std::chrono::seconds(15);
// How long a resuming master waits for a committed step that it can't see yet.
constexpr Duration kExpectedStepWait = std::chrono::seconds(10);
// Attempts that may lose their processes without a fault of the job.
constexpr uint32_t kMaxLosses = 10;
constexpr Duration kStoreRetry = std::chrono::seconds(1);
// Events that wait for the store; what comes beyond is dropped and counted in the next one.
constexpr size_t kMaxPendingEvents = 10000;
constexpr size_t kMaxEventsPerReport = 100;

policy::IdleUse IdleUseOf(const proto::JobSpec& spec) {
  if (spec.idle() == "accept") return policy::IdleUse::kAccept;
  if (spec.idle() == "only") return policy::IdleUse::kOnly;
  return policy::IdleUse::kForbid;
}

policy::JobClass ClassOf(const proto::JobSpec& spec) {
  if (spec.job_class() == "high") return policy::JobClass::kHigh;
  if (spec.job_class() == "low") return policy::JobClass::kLow;
  return policy::JobClass::kMedium;
}

Json CertificateJson(const policy::Certificate& certificate) {
  Json victims = Json::array();
  for (const auto& victim : certificate.victims) {
    victims.push_back({{"job", victim.job},
                       {"idle_slots", victim.idle_slots},
                       {"guaranteed_slots", victim.guaranteed_slots},
                       {"slots_without", victim.slots_without}});
  }
  return {{"rule", certificate.rule},
          {"preemptor", certificate.preemptor},
          {"quota", certificate.quota},
          {"need_slots", certificate.need_slots},
          {"have_slots", certificate.have_slots},
          {"victims", victims},
          {"considered", certificate.considered}};
}

// Text of others (a master's) may not be UTF-8.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double Ms(uint64_t nanos) { return static_cast<double>(nanos) / 1e6; }

Json NoticeJson(const proto::NoticeRecord& record) {
  return {{"id", record.id()},
          {"reason", record.reason()},
          {"preemptor", record.preemptor()},
          {"time_left_ms", Ms(record.time_left_ns())},
          {"predicted_ms", Ms(record.predicted_ns())},
          {"agreed_step", record.agreed_step()},
          {"safe_step", record.safe_step()},
          {"steps_lost", record.steps_lost()},
          {"parked_ms", Ms(record.parked_ns())},
          {"released_gpu_ms", Ms(record.released_gpu_ns())},
          {"committed_ms", Ms(record.committed_ns())},
          {"released_node_ms", Ms(record.released_node_ns())},
          {"longest_step_ms", Ms(record.longest_step_ns())},
          {"in_time", record.in_time()},
          {"message", record.message()}};
}

std::string PlacementText(const AttemptRecord& attempt) {
  std::string nodes;
  size_t guaranteed = 0;
  for (size_t i = 0; i < attempt.workers.size(); ++i) {
    if (attempt.workers[i].guaranteed) ++guaranteed;
    if (i > 0 && attempt.workers[i].node == attempt.workers[i - 1].node) continue;
    nodes += (nodes.empty() ? "" : ", ") + attempt.workers[i].node;
  }
  const size_t idle = attempt.workers.size() - guaranteed;
  return fmt::format("{} {} on {} ({} in quota, {} idle)", attempt.workers.size(),
                     attempt.workers.size() == 1 ? "worker" : "workers", nodes, guaranteed, idle);
}

Json PlacementJson(const AttemptRecord& attempt) {
  Json workers = Json::array();
  for (const auto& worker : attempt.workers) {
    workers.push_back({{"node", worker.node}, {"claim", worker.guaranteed ? "G" : "I"}});
  }
  return {{"attempt", attempt.attempt}, {"workers", workers}};
}

bool SameButProgress(proto::MasterStatus a, proto::MasterStatus b) {
  a.clear_step();
  b.clear_step();
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

}  // namespace

Controller::Controller(ClusterConfig config, std::vector<policy::Node> nodes, std::string run_root,
                       Store& store, EventLoop& loop, Clock& clock)
    : config_(std::move(config)),
      run_root_(std::move(run_root)),
      store_(store),
      loop_(loop),
      clock_(clock) {
  cluster_.nodes = std::move(nodes);
  cluster_.quotas = config_.quotas;
  cluster_.grow_after = config_.grow_after;
  if (Result<std::string> boot_id = BootId(); boot_id.ok()) boot_id_ = *boot_id;
}

Controller::~Controller() {
  loop_.CancelTimer(retry_timer_);
  loop_.CancelTimer(policy_timer_);
}

uint64_t Controller::UnixMs() const {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(clock_.WallUnix()).count());
}

std::string Controller::RunDirectory(const std::string& job_id) const {
  return JoinPath(JoinPath(run_root_, "jobs"), job_id);
}

Duration Controller::GraceOf(const Job& job) const {
  const uint64_t grace = job.record.spec.grace_ns();
  return grace == 0 ? config_.notice : Duration(static_cast<int64_t>(grace));
}

// A deadline of another boot has passed: its processes are gone with that boot.
MonotonicTime Controller::DeadlineOf(uint64_t deadline_ns, const std::string& boot_id) const {
  if (boot_id != boot_id_) return clock_.Monotonic();
  return MonotonicFromNanos(static_cast<int64_t>(deadline_ns));
}

// ---- beginning ----

policy::Job Controller::PolicyJob(const JobRecord& record) const {
  policy::Job job;
  job.id = record.id;
  for (uint32_t i = 0; i < cluster_.quotas.size(); ++i) {
    if (cluster_.quotas[i].name == record.spec.quota()) job.quota = i;
  }
  job.job_class = ClassOf(record.spec);
  job.idle = IdleUseOf(record.spec);
  job.min_workers = record.spec.min_workers();
  job.max_workers = record.spec.max_workers();
  job.slots_per_worker = record.spec.slots_per_worker();
  job.seniority = record.number;
  return job;
}

Status Controller::Restore(const Store::Contents& contents) {
  last_directive_ = contents.last_directive;
  last_event_ = contents.last_event;
  for (const JobRecord& record : contents.jobs) {
    Job& job = jobs_[record.number];
    job.record = record;
    number_of_[record.id] = record.number;
    if (!record.idempotency_key.empty()) id_of_key_[record.idempotency_key] = record.id;
  }
  for (const AttemptRecord& attempt : contents.attempts) {
    Job& job = *Lookup(attempt.job_id);
    job.attempt = attempt;
    if (attempt.master_sequence > 0 || attempt.running) job.status_attempt = attempt.attempt;
  }
  for (const DirectiveRecord& directive : contents.directives) {
    if (Job* job = LookupAttempt(directive.job_id, directive.attempt)) {
      job->directives.push_back(directive);
    }
  }
  for (auto& [number, job] : jobs_) {
    if (HasEnded(job.record.state)) continue;
    const bool has_quota = std::any_of(
        cluster_.quotas.begin(), cluster_.quotas.end(),
        [&name = job.record.spec.quota()](const policy::Quota& q) { return q.name == name; });
    if (!has_quota) {
      return FailedPreconditionError(
          fmt::format("{} belongs to quota '{}', which the configuration does not have (allowed: "
                      "add it again until the job has ended)",
                      job.record.id, job.record.spec.quota()));
    }
    policy::Job policy_job = PolicyJob(job.record);
    if (job.Placed()) {
      for (const AttemptRecord::Worker& worker : job.attempt->workers) {
        policy::WorkerPlace place;
        place.node = static_cast<uint32_t>(cluster_.nodes.size());
        for (uint32_t i = 0; i < cluster_.nodes.size(); ++i) {
          if (cluster_.nodes[i].name == worker.node) place.node = i;
        }
        uint32_t used = policy_job.slots_per_worker;
        for (const auto& [id, other] : cluster_.jobs) {
          for (const policy::WorkerPlace& each : other.workers) {
            if (each.node == place.node) used += other.slots_per_worker;
          }
        }
        for (const policy::WorkerPlace& each : policy_job.workers) {
          if (each.node == place.node) used += policy_job.slots_per_worker;
        }
        if (place.node == cluster_.nodes.size() || used > cluster_.nodes[place.node].slots) {
          return FailedPreconditionError(fmt::format(
              "{} runs on {}, for which --nodes has no room now (allowed: the nodes of before "
              "until the job has left them)",
              job.record.id, worker.node));
        }
        place.claim = worker.guaranteed ? policy::Claim::kGuaranteed : policy::Claim::kIdle;
        policy_job.workers.push_back(place);
      }
      policy_job.phase = job.attempt->running ? policy::Phase::kRunning : policy::Phase::kStarting;
      policy_job.grow_not_before = SaturatingAdd(clock_.Monotonic(), config_.grow_after);
      if (job.Leaving()) {
        policy_job.phase = policy::Phase::kLeaving;
        policy_job.preemptor = job.attempt->preemptor;
        for (const auto reason : {policy::LeaveReason::kReclaim, policy::LeaveReason::kGrow,
                                  policy::LeaveReason::kOperator, policy::LeaveReason::kStop}) {
          if (job.attempt->leave_reason == policy::LeaveReasonName(reason)) {
            policy_job.leave = reason;
          }
        }
        if (policy_job.leave == policy::LeaveReason::kGrow) {
          policy_job.moved_from = static_cast<uint32_t>(policy_job.workers.size());
        }
      }
    }
    cluster_.jobs.emplace(policy_job.id, std::move(policy_job));
  }
  for (const auto& [id, job] : cluster_.jobs) {
    if (job.phase != policy::Phase::kLeaving || job.preemptor.empty()) continue;
    const auto preemptor = cluster_.jobs.find(job.preemptor);
    if (preemptor != cluster_.jobs.end() && !preemptor->second.Holds()) {
      preemptor->second.planned = true;
    }
  }
  return OkStatus();
}

Status Controller::Begin(Executor& executor) {
  executor_ = &executor;
  GODWIT_ASSIGN_OR_RETURN(const Store::Contents contents, store_.Load());
  GODWIT_RETURN_IF_ERROR(Restore(contents));
  size_t adopted = 0;
  for (const auto& [number, job] : jobs_) adopted += job.Placed() ? 1 : 0;
  AddEvent("", "scheduler-started",
           fmt::format("{} on {}; {} taken over", Count(cluster_.Capacity(), "slot"),
                       Count(cluster_.nodes.size(), "node"), Count(adopted, "placed job")));
  for (auto& [number, job] : jobs_) {
    if (!job.Placed()) continue;
    std::vector<ProcessRecord> processes;
    for (const ProcessRecord& process : contents.processes) {
      if (process.job_id == job.record.id && process.attempt == job.attempt->attempt) {
        processes.push_back(process);
      }
    }
    AfterFlush([this, plan = PlanOf(job), processes, number = number] {
      executor_->Adopt(plan, processes);
      const Job& adopted_job = jobs_.at(number);
      if (!adopted_job.Placed()) return;
      const AttemptRecord& attempt = *adopted_job.attempt;
      if (adopted_job.Leaving()) {
        executor_->SetDeadline(attempt.job_id, attempt.attempt,
                               DeadlineOf(attempt.deadline_ns, attempt.deadline_boot_id));
      }
      if (attempt.outcome) executor_->Finish(attempt.job_id, attempt.attempt, kEndGrace);
    });
  }
  RunPolicy(policy::Tick{});
  Flush();
  return store_status_;
}

AttemptPlan Controller::PlanOf(const Job& job) const {
  AttemptPlan plan;
  plan.job_id = job.record.id;
  plan.attempt = job.attempt->attempt;
  plan.run_dir = JoinPath(RunDirectory(plan.job_id), fmt::format("a{}", plan.attempt));
  plan.cwd = job.record.spec.cwd();
  for (const AttemptRecord::Worker& worker : job.attempt->workers) {
    if (plan.nodes.empty() || plan.nodes.back().name != worker.node) {
      plan.nodes.push_back({worker.node, static_cast<uint32_t>(plan.nodes.size()), 0});
    }
    ++plan.nodes.back().workers;
  }
  return plan;
}

// ---- looking things up ----

Controller::Job* Controller::Lookup(const std::string& job_id) {
  const auto it = number_of_.find(job_id);
  return it == number_of_.end() ? nullptr : &jobs_.at(it->second);
}

Controller::Job* Controller::LookupAttempt(const std::string& job_id, uint32_t attempt) {
  Job* job = Lookup(job_id);
  if (job == nullptr || !job->Placed() || job->attempt->attempt != attempt) return nullptr;
  return job;
}

Result<const Controller::Job*> Controller::Find(const std::string& job_id) const {
  const auto it = number_of_.find(job_id);
  if (it == number_of_.end()) return NotFoundError(fmt::format("no job '{}'", job_id));
  return &jobs_.at(it->second);
}

// ---- writing down ----

void Controller::AddEvent(const std::string& job_id, const std::string& kind,
                          const std::string& message, const std::string& data_json) {
  LogInfo("{}{}{}: {}", job_id, job_id.empty() ? "" : " ", kind, message);
  if (batch_.events.size() >= kMaxPendingEvents) return;  // the store has failed for long
  proto::Event& event = batch_.events.emplace_back();
  event.set_number(++last_event_);
  event.set_unix_ms(UnixMs());
  event.set_job_id(job_id);
  event.set_kind(kind);
  event.set_message(message);
  event.set_data_json(data_json);
}

void Controller::Flush() {
  // Effects report back at once (a process was started): the loop below takes that up.
  if (flushing_) return;
  flushing_ = true;
  bool changed = false;
  while (!batch_.empty() || !dirty_jobs_.empty() || !effects_.empty()) {
    Store::Batch batch = batch_;
    for (const auto& [number, dirty] : dirty_jobs_) {
      const Job& job = jobs_.at(number);
      batch.jobs.push_back(job.record);
      if (job.attempt) batch.attempts.push_back(*job.attempt);
    }
    store_status_ = store_.Commit(batch);
    if (!store_status_.ok()) {
      LogError("{}; nothing new is begun until it can be written", store_status_.message());
      loop_.CancelTimer(retry_timer_);
      retry_timer_ = loop_.AddTimer(SaturatingAdd(clock_.Monotonic(), kStoreRetry), [this] {
        retry_timer_ = 0;
        Flush();
      });
      break;
    }
    changed = true;
    batch_ = {};
    dirty_jobs_.clear();
    const auto effects = std::exchange(effects_, {});
    for (const auto& effect : effects) effect();
  }
  flushing_ = false;
  if (changed && on_change_) on_change_();
}

// ---- policy ----

void Controller::RunPolicy(const policy::Event& event) {
  const MonotonicTime now = clock_.Monotonic();
  const policy::Decision decision = policy::Decide(cluster_, event, now);
  for (const policy::Action& action : decision.actions) {
    std::visit([this](const auto& each) { Do(each); }, action);
  }
  NoteWaiting();
  loop_.CancelTimer(policy_timer_);
  policy_timer_ = 0;
  if (decision.wake_at) {
    policy_timer_ = loop_.AddTimer(*decision.wake_at, [this] {
      policy_timer_ = 0;
      RunPolicy(policy::Tick{});
      Flush();
    });
  }
}

void Controller::NoteWaiting() {
  for (const auto& [id, policy_job] : cluster_.jobs) {
    if (policy_job.Holds()) continue;
    Job& job = *Lookup(id);
    if (job.record.reason == policy_job.wait.text) continue;
    job.record.reason = policy_job.wait.text;
    Dirty(job);
    AddEvent(id, "queued", policy_job.wait.text);
  }
}

void Controller::Do(const policy::StartJob& action) {
  Job& job = *Lookup(action.job);
  job.record.state = JobState::kPreparing;
  job.record.reason.clear();
  ++job.record.attempt;
  AttemptRecord attempt;
  attempt.job_id = action.job;
  attempt.attempt = job.record.attempt;
  for (const policy::WorkerPlace& worker : action.workers) {
    attempt.workers.push_back(
        {cluster_.nodes[worker.node].name, worker.claim == policy::Claim::kGuaranteed});
  }
  attempt.started_unix_ms = UnixMs();
  job.attempt = std::move(attempt);
  job.directives.clear();
  job.ack.reset();
  Dirty(job);
  AddEvent(action.job, "placed", PlacementText(*job.attempt), Dump(PlacementJson(*job.attempt)));
  AfterFlush([this, plan = PlanOf(job)] { executor_->Start(plan); });
}

void Controller::Do(const policy::NotifyJob& action) {
  Job& job = *Lookup(action.job);
  job.record.explanation = action.text;
  if (action.certificate) job.record.certificate_json = Dump(CertificateJson(*action.certificate));
  Leave(job, policy::LeaveReasonName(action.reason), action.preemptor, action.text, GraceOf(job));
}

void Controller::Do(const policy::PromoteJob& action) {
  Job& job = *Lookup(action.job);
  const policy::Job& policy_job = cluster_.jobs.at(action.job);
  for (size_t i = 0; i < policy_job.workers.size(); ++i) {
    job.attempt->workers[i].guaranteed = policy_job.workers[i].claim == policy::Claim::kGuaranteed;
  }
  Dirty(job);
  AddEvent(action.job, "promoted",
           fmt::format("{} of its idle slots are in quota now: {}",
                       action.workers * policy_job.slots_per_worker, PlacementText(*job.attempt)),
           Dump(PlacementJson(*job.attempt)));
}

std::string Controller::Leave(Job& job, const char* leave_reason, const std::string& preemptor,
                              const std::string& text, Duration grace) {
  AttemptRecord& attempt = *job.attempt;
  const bool stop =
      std::string(leave_reason) == policy::LeaveReasonName(policy::LeaveReason::kStop);
  const MonotonicTime deadline = SaturatingAdd(clock_.Monotonic(), grace);
  const uint64_t number = ++last_directive_;
  attempt.leave_reason = leave_reason;
  attempt.preemptor = preemptor;
  if (!stop) attempt.notice_id = fmt::format("n{}", number);
  attempt.deadline_ns = static_cast<uint64_t>(ToNanos(deadline));
  attempt.deadline_boot_id = boot_id_;
  attempt.leave_unix_ms = UnixMs();
  job.record.state = JobState::kStopping;
  job.record.reason = text;
  job.ack.reset();

  DirectiveRecord directive;
  directive.job_id = attempt.job_id;
  directive.attempt = attempt.attempt;
  directive.body.set_number(number);
  if (stop) {
    directive.body.mutable_stop()->set_reason(text);
  } else {
    proto::NoticeRequest& notice = *directive.body.mutable_notice();
    notice.set_id(attempt.notice_id);
    notice.set_reason(leave_reason);
    notice.set_preemptor(preemptor);
  }
  directive.deadline_ns = attempt.deadline_ns;
  directive.deadline_boot_id = boot_id_;
  job.directives.push_back(directive);
  batch_.directives.push_back(directive);
  Dirty(job);

  Json data = {{"reason", leave_reason},
               {"preemptor", preemptor},
               {"time_left_ms", Ms(static_cast<uint64_t>(grace.count()))},
               {"attempt", attempt.attempt}};
  if (!stop) data["id"] = attempt.notice_id;
  if (attempt.leave_reason == policy::LeaveReasonName(policy::LeaveReason::kReclaim)) {
    data["certificate"] = Json::parse(job.record.certificate_json, nullptr, false);
  }
  AddEvent(attempt.job_id, stop ? "stopping" : "notice",
           fmt::format("{} left: {}", HumanDuration(grace), text), Dump(data));
  AfterFlush([this, job_id = attempt.job_id, n = attempt.attempt, deadline] {
    executor_->SetDeadline(job_id, n, deadline);
  });
  return attempt.notice_id;
}

// ---- people ----

Result<std::string> Controller::Submit(proto::JobSpec spec, const std::string& idempotency_key) {
  if (!idempotency_key.empty()) {
    const auto it = id_of_key_.find(idempotency_key);
    if (it != id_of_key_.end()) return it->second;
  }
  // Whatever waits to be written comes first: it has the numbers before this one's.
  Flush();
  if (!store_status_.ok()) return store_status_;
  Job job;
  JobRecord& record = job.record;
  record.number = jobs_.empty() ? 1 : jobs_.rbegin()->first + 1;
  record.id = fmt::format("job-{}", record.number);
  record.idempotency_key = idempotency_key;
  record.spec = std::move(spec);
  if (record.spec.directory().empty() && !config_.checkpoint_root.empty()) {
    record.spec.set_directory(JoinPath(config_.checkpoint_root, record.id));
  }
  record.created_unix_ms = record.enqueued_unix_ms = UnixMs();
  policy::Job policy_job = PolicyJob(record);
  if (const std::optional<std::string> why = policy::NeverFits(cluster_, policy_job)) {
    return FailedPreconditionError(fmt::format("the job can never run: {}", *why));
  }
  // Alone in its batch, so that a failure leaves nothing behind.
  Store::Batch batch;
  batch.jobs.push_back(record);
  GODWIT_RETURN_IF_ERROR(store_.Commit(batch));

  const std::string id = record.id;
  number_of_[id] = record.number;
  if (!idempotency_key.empty()) id_of_key_[idempotency_key] = id;
  AddEvent(id, "submitted",
           fmt::format("'{}' to quota '{}', {}, idle {}", record.spec.name(), record.spec.quota(),
                       record.spec.min_workers() == record.spec.max_workers()
                           ? Count(record.spec.min_workers(), "worker")
                           : fmt::format("{} to {}", record.spec.min_workers(),
                                         Count(record.spec.max_workers(), "worker")),
                       record.spec.idle()));
  jobs_.emplace(record.number, std::move(job));
  RunPolicy(policy::JobSubmitted{std::move(policy_job)});
  Flush();
  return id;
}

Status Controller::Stop(const std::string& job_id, const std::string& reason) {
  Job* job = Lookup(job_id);
  if (job == nullptr) return NotFoundError(fmt::format("no job '{}'", job_id));
  if (HasEnded(job->record.state) || job->record.stop_requested) return OkStatus();
  job->record.stop_requested = true;
  const std::string text = reason.empty() ? "stopped by hand" : "stopped by hand: " + reason;
  if (!job->Placed()) {
    EndJob(*job, JobState::kStopped, text);
    RunPolicy(policy::JobReleased{job_id, false});
  } else {
    // The time that a notice in progress leaves is not made longer.
    Duration grace = GraceOf(*job);
    if (job->Leaving()) {
      const Duration left = DeadlineOf(job->attempt->deadline_ns, job->attempt->deadline_boot_id) -
                            clock_.Monotonic();
      grace = std::clamp(left, Duration(0), grace);
    }
    Leave(*job, policy::LeaveReasonName(policy::LeaveReason::kStop), "", text, grace);
    RunPolicy(policy::JobLeaving{job_id, policy::LeaveReason::kStop});
  }
  Flush();
  return store_status_;
}

Result<std::string> Controller::Preempt(const std::string& job_id, Duration grace,
                                        const std::string& reason) {
  Job* job = Lookup(job_id);
  if (job == nullptr) return NotFoundError(fmt::format("no job '{}'", job_id));
  if (!job->Placed() || job->record.stop_requested || job->attempt->outcome) {
    return FailedPreconditionError(
        fmt::format("{} is {}, allowed: a job that runs", job_id, JobStateName(job->record.state)));
  }
  if (grace > config_.max_notice) {
    return InvalidArgumentError(fmt::format("grace: got {}, allowed: at most max_notice_s, {}",
                                            HumanDuration(grace),
                                            HumanDuration(config_.max_notice)));
  }
  if (grace <= Duration(0)) grace = GraceOf(*job);
  AttemptRecord& attempt = *job->attempt;
  if (job->Leaving()) {
    const MonotonicTime deadline = SaturatingAdd(clock_.Monotonic(), grace);
    if (deadline < DeadlineOf(attempt.deadline_ns, attempt.deadline_boot_id)) {
      const std::string leave_reason = attempt.leave_reason;
      const std::string preemptor = attempt.preemptor;
      Leave(*job, leave_reason.c_str(), preemptor, "earlier, by hand: " + reason, grace);
    }
  } else {
    const std::string text = reason.empty() ? "by hand" : "by hand: " + reason;
    job->record.explanation = text;
    Leave(*job, policy::LeaveReasonName(policy::LeaveReason::kOperator), "", text, grace);
    RunPolicy(policy::JobLeaving{job_id, policy::LeaveReason::kOperator});
  }
  Flush();
  if (!store_status_.ok()) return store_status_;
  return job->attempt->notice_id;
}

// ---- masters and agents ----

Status Controller::RegisterMaster(const proto::RegisterMasterRequest& request,
                                  proto::RegisterMasterReply* reply) {
  Job* job = LookupAttempt(request.job_id(), request.attempt());
  if (job == nullptr) {
    return FailedPreconditionError(
        fmt::format("{} attempt {} is not placed any more", request.job_id(), request.attempt()));
  }
  AttemptRecord& attempt = *job->attempt;
  if (attempt.master_pid != request.pid()) attempt.master_sequence = 0;
  attempt.master_pid = request.pid();
  attempt.master_address = request.address();
  Dirty(*job);
  *reply->mutable_spec() = job->record.spec;
  reply->set_nodes(static_cast<uint32_t>(PlanOf(*job).nodes.size()));
  reply->set_workers(static_cast<uint32_t>(attempt.workers.size()));
  if (job->record.expected_step) {
    reply->set_expected_step(*job->record.expected_step);
    reply->set_expected_step_wait_ns(static_cast<uint64_t>(kExpectedStepWait.count()));
  }
  const uint32_t max = job->record.spec.max_job_restarts();
  reply->set_job_restarts_left(max - std::min(max, job->record.restarts));
  Flush();
  return OkStatus();
}

Result<std::string> Controller::LocateMaster(const std::string& job_id, uint32_t attempt) const {
  GODWIT_ASSIGN_OR_RETURN(const Job* job, Find(job_id));
  if (!job->Placed() || job->attempt->attempt != attempt) {
    return FailedPreconditionError(
        fmt::format("{} attempt {} is not placed any more", job_id, attempt));
  }
  if (job->attempt->master_address.empty()) {
    return UnavailableError(fmt::format("{} has no master now", job_id));
  }
  return job->attempt->master_address;
}

Result<std::vector<proto::Directive>> Controller::Directives(const std::string& job_id,
                                                             uint32_t attempt,
                                                             uint64_t after) const {
  GODWIT_ASSIGN_OR_RETURN(const Job* job, Find(job_id));
  if (!job->Placed() || job->attempt->attempt != attempt) {
    return FailedPreconditionError(
        fmt::format("{} attempt {} is not placed any more", job_id, attempt));
  }
  std::vector<proto::Directive> result;
  // What is not written yet is not known to anybody.
  if (!store_status_.ok()) return result;
  for (const DirectiveRecord& record : job->directives) {
    if (record.body.number() <= after) continue;
    proto::Directive& directive = result.emplace_back(record.body);
    const Duration left =
        DeadlineOf(record.deadline_ns, record.deadline_boot_id) - clock_.Monotonic();
    const auto left_ns = static_cast<uint64_t>(std::max<int64_t>(left.count(), 0));
    if (directive.has_notice()) directive.mutable_notice()->set_time_left_ns(left_ns);
    if (directive.has_stop()) directive.mutable_stop()->set_grace_ns(left_ns);
  }
  return result;
}

bool Controller::Report(const proto::MasterReport& report) {
  Job* job = LookupAttempt(report.job_id(), report.attempt());
  if (job == nullptr) return false;
  AttemptRecord& attempt = *job->attempt;
  if (report.pid() != attempt.master_pid) return false;
  if (report.sequence() <= attempt.master_sequence) return true;  // was here already
  attempt.master_sequence = report.sequence();
  // Progress alone, once a second, is not worth a write: after a crash the next report tells it.
  const bool progress_only = report.has_status() && !report.has_ack() && !report.has_outcome() &&
                             !report.has_notice_record() && report.released_gpu().empty() &&
                             report.released_node().empty() && report.events().empty() &&
                             SameButProgress(report.status(), job->record.master);
  if (!progress_only) Dirty(*job);
  const std::string& id = job->record.id;

  for (int i = 0; i < report.events_size(); ++i) {
    const proto::Event& event = report.events(i);
    if (i == static_cast<int>(kMaxEventsPerReport)) {
      AddEvent(id, "alarm", fmt::format("{} more events in one report", report.events_size() - i));
      break;
    }
    AddEvent(id, event.kind(), event.message(), event.data_json());
  }
  for (DirectiveRecord& directive : job->directives) {
    if (directive.body.number() > report.acknowledged_number()) continue;
    directive.acknowledged = true;
    batch_.directives.push_back(directive);
  }
  std::erase_if(job->directives, [](const DirectiveRecord& d) { return d.acknowledged; });
  if (report.has_ack()) {
    job->ack = report.ack();
    const proto::NoticeReply& ack = report.ack();
    AddEvent(id, "ack",
             ack.accepted()
                 ? fmt::format("gone in {}, GPUs free in {}{}",
                               HumanDuration(Duration(static_cast<int64_t>(ack.eta_ns()))),
                               HumanDuration(Duration(static_cast<int64_t>(ack.eta_gpu_ns()))),
                               ack.message().empty() ? "" : ": " + ack.message())
                 : "refused: " + ack.message(),
             Dump({{"id", ack.id()},
                   {"accepted", ack.accepted()},
                   {"eta_ms", Ms(ack.eta_ns())},
                   {"eta_gpu_ms", Ms(ack.eta_gpu_ns())}}));
  }
  const auto released = [&](const char* kind, const char* what, const std::string& notice) {
    const uint64_t now = UnixMs();
    const uint64_t after_ms = now - std::min(now, attempt.leave_unix_ms);
    AddEvent(id, kind,
             fmt::format("{} after {}", what,
                         HumanDuration(std::chrono::milliseconds(static_cast<int64_t>(after_ms)))),
             Dump({{"id", notice}, {"after_ms", after_ms}}));
  };
  if (!report.released_gpu().empty()) {
    released("released-gpu", "no worker runs any more", report.released_gpu());
  }
  if (report.has_status()) ReportStatus(*job, report.status());
  if (report.has_notice_record()) {
    const proto::NoticeRecord& record = report.notice_record();
    batch_.notices.emplace_back(id, record);
    AddEvent(id, "notice-record",
             fmt::format("safe at step {}, {} lost, {}{}", record.safe_step(),
                         Count(record.steps_lost(), "step"), record.in_time() ? "in time" : "late",
                         record.message().empty() ? "" : ": " + record.message()),
             Dump(NoticeJson(record)));
  }
  if (!report.released_node().empty()) {
    released("released-node", "only exits are left", report.released_node());
  }
  if (report.has_outcome() && !attempt.outcome) {
    attempt.outcome = report.outcome();
    AfterFlush([this, id, n = attempt.attempt] { executor_->Finish(id, n, kEndGrace); });
  }
  Flush();
  return true;
}

void Controller::ReportStatus(Job& job, const proto::MasterStatus& status) {
  AttemptRecord& attempt = *job.attempt;
  const std::string& id = job.record.id;
  // Failures are numbered within an attempt. Each is told again with every report, and once more
  // changed: when it is known what was done about it.
  std::map<uint64_t, std::string> told;
  if (job.status_attempt == attempt.attempt) {
    for (const auto& failure : job.record.master.failures()) {
      told[failure.sequence()] = failure.SerializeAsString();
    }
  }
  job.status_attempt = attempt.attempt;
  for (const auto& failure : status.failures()) {
    const auto known = told.find(failure.sequence());
    if (known != told.end() && known->second == failure.SerializeAsString()) continue;
    batch_.failures.push_back({id, attempt.attempt, failure});
  }
  job.record.master = status;
  if (status.has_commit()) job.record.expected_step = status.committed_step();
  const bool runs = status.state() == "Running";
  if (runs && !attempt.running) {
    attempt.running = true;
    Dirty(job);
    const uint64_t now = UnixMs();
    if (job.record.started_unix_ms == 0) job.record.started_unix_ms = now;
    AddEvent(id, "started",
             fmt::format("attempt {}: {}{}", attempt.attempt, PlacementText(attempt),
                         status.resumed_from().empty()
                             ? ""
                             : fmt::format(", from step {} ({})", status.resumed_step(),
                                           status.resumed_from())),
             Dump({{"attempt", attempt.attempt},
                   {"workers", attempt.workers.size()},
                   {"resumed_step", status.resumed_step()},
                   {"resumed_from", status.resumed_from()}}));
    RunPolicy(policy::JobRunning{id});
  }
  if (job.Leaving()) return;
  if (runs) {
    job.record.state = JobState::kRunning;
  } else if (status.state() == "Restarting") {
    job.record.state = JobState::kRestarting;
  } else if (status.state() == "Stopping") {
    job.record.state = JobState::kStopping;
  }
}

// ---- the executor ----

void Controller::OnProcess(const ProcessRecord& process) {
  batch_.processes.push_back(process);
  Job* job = LookupAttempt(process.job_id, process.attempt);
  if (job != nullptr && process.role == "master" && job->attempt->master_pid != process.pid) {
    job->attempt->master_address.clear();  // of the one before
    Dirty(*job);
  }
  Flush();
}

void Controller::OnExecutorEvent(const std::string& job_id, const std::string& kind,
                                 const std::string& message) {
  AddEvent(job_id, kind, message);
  Flush();
}

void Controller::OnAttemptLost(const std::string& job_id, uint32_t attempt,
                               const std::string& reason, bool permanent) {
  Job* job = LookupAttempt(job_id, attempt);
  if (job == nullptr) return;
  AddEvent(job_id, "lost", reason);
  if (!job->attempt->outcome) {
    proto::JobOutcome& outcome = job->attempt->outcome.emplace();
    outcome.set_state(permanent ? "Failed" : "Lost");
    outcome.set_reason(reason);
    outcome.set_exit_code(1);
    Dirty(*job);
  }
  Flush();
}

void Controller::OnAttemptGone(const std::string& job_id, uint32_t attempt) {
  Job* job = LookupAttempt(job_id, attempt);
  if (job == nullptr) return;
  FinishAttempt(*job);
  Flush();
}

void Controller::EndJob(Job& job, JobState state, const std::string& reason) {
  job.record.state = state;
  job.record.reason = reason;
  job.record.ended_unix_ms = UnixMs();
  Dirty(job);
  const char* kind = state == JobState::kSucceeded ? "succeeded"
                     : state == JobState::kStopped ? "stopped"
                                                   : "failed";
  AddEvent(job.record.id, kind, reason);
}

void Controller::Requeue(Job& job, const std::string& message) {
  job.record.state = JobState::kQueuing;
  job.record.reason.clear();
  Dirty(job);
  AddEvent(job.record.id, "requeued", message,
           Dump({{"attempt", job.record.attempt}, {"preemptions", job.record.preemptions}}));
}

void Controller::FinishAttempt(Job& job) {
  AttemptRecord& attempt = *job.attempt;
  attempt.ended = true;
  attempt.ended_unix_ms = UnixMs();
  attempt.master_address.clear();
  job.directives.clear();
  Dirty(job);

  const proto::JobSpec& spec = job.record.spec;
  const bool auto_restart = !spec.has_auto_restart() || spec.auto_restart();
  const bool told_to_leave = !attempt.leave_reason.empty();
  const bool reclaimed =
      attempt.leave_reason == policy::LeaveReasonName(policy::LeaveReason::kReclaim);
  // Ended by force, or lost, while it was leaving: it has left.
  std::string state = attempt.outcome ? attempt.outcome->state() : std::string("Lost");
  std::string reason = attempt.outcome ? attempt.outcome->reason() : std::string();
  if (state == "Lost" && job.record.stop_requested) {
    state = "Stopped";
    reason = "ended by force at the deadline";
  } else if (state == "Lost" && told_to_leave) {
    state = "Preempted";
    reason = "ended by force at the deadline";
  } else if (state == "Preempted" && job.record.stop_requested) {
    state = "Stopped";
  }

  bool requeue = false;
  if (state == "Succeeded") {
    EndJob(job, JobState::kSucceeded, reason);
  } else if (state == "Stopped") {
    EndJob(job, JobState::kStopped, reason);
  } else if (state == "Preempted") {
    ++job.record.preemptions;
    if (reclaimed && !auto_restart) {
      EndJob(job, JobState::kFailed,
             fmt::format("IdleReclaimed: its idle slots went to {}, and it has no auto restart",
                         attempt.preemptor));
    } else {
      requeue = true;
      const std::string why =
          attempt.preemptor.empty()
              ? attempt.leave_reason
              : fmt::format("{} for {}", attempt.leave_reason, attempt.preemptor);
      // The master's own words mostly are the scheduler's, given back: "reclaim, for j-2".
      const bool same = reason.empty() || reason == attempt.leave_reason ||
                        reason.starts_with(attempt.leave_reason + ", for ");
      Requeue(job, fmt::format("left ({}){}", why, same ? "" : ": " + reason));
    }
  } else if (state == "Lost") {
    ++job.record.losses;
    const std::string what = reason.empty() ? "its processes were lost" : reason;
    if (!auto_restart || job.record.losses > kMaxLosses) {
      EndJob(job, JobState::kFailed, what);
    } else {
      requeue = true;
      Requeue(job, what);
    }
  } else {
    const bool retryable = attempt.outcome && attempt.outcome->retryable();
    if (retryable && auto_restart && job.record.restarts < spec.max_job_restarts()) {
      ++job.record.restarts;
      requeue = true;
      Requeue(job, fmt::format("failed ({} of {} restarts): {}", job.record.restarts,
                               spec.max_job_restarts(), reason));
    } else {
      EndJob(job, JobState::kFailed, reason);
    }
  }
  RunPolicy(policy::JobReleased{job.record.id, requeue});
}

}  // namespace godwit
