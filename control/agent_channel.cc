#include "control/agent_channel.h"

#include <unistd.h>

#include <cstring>
#include <limits>
#include <utility>

#include "base/futex.h"
#include "control/shared_bytes.h"

namespace godwit {
namespace {

constexpr uint32_t kLastWorkerState = static_cast<uint32_t>(WorkerState::kFailed);
constexpr uint32_t kLastPhase = static_cast<uint32_t>(Phase::kShutdown);

Duration ClippedNanos(uint64_t nanos) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  return Duration(static_cast<int64_t>(nanos < kMax ? nanos : kMax));
}

}  // namespace

Result<std::unique_ptr<AgentChannel>> AgentChannel::Map(int page_fd, UniqueFd doorbell) {
  GODWIT_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Map(page_fd, sizeof(ControlPage)));
  auto* page = reinterpret_cast<ControlPage*>(mapping.data());
  GODWIT_ASSIGN_OR_RETURN(auto channel, Over(page, std::move(doorbell)));
  channel->mapping_ = std::move(mapping);
  return channel;
}

Result<std::unique_ptr<AgentChannel>> AgentChannel::Over(ControlPage* page, UniqueFd doorbell) {
  if (LoadShared(page->magic) != kControlMagic) {
    return DataLossError("control page: no magic number, this is something else");
  }
  const uint32_t version = LoadShared(page->layout_version);
  if (version != kControlLayoutVersion) {
    return DataLossError("control page: layout version " + std::to_string(version) +
                         ", this build has " + std::to_string(kControlLayoutVersion));
  }
  const uint32_t slot = LoadShared(page->slot);
  return std::unique_ptr<AgentChannel>(
      new AgentChannel(SharedMapping(), page, std::move(doorbell), slot));
}

AgentChannel::AgentChannel(SharedMapping mapping, ControlPage* page, UniqueFd doorbell,
                           uint32_t slot)
    : mapping_(std::move(mapping)), page_(page), doorbell_(std::move(doorbell)), slot_(slot) {
  // A channel that is new over an old page (the agent was restarted) takes up a request that its
  // predecessor left, so only what was answered counts as taken.
  kv_taken_ = page_->kv_response_seq.load(std::memory_order_acquire);
}

uint32_t AgentChannel::slot() const { return slot_; }

void AgentChannel::DrainDoorbell() {
  uint64_t count = 0;
  // EAGAIN: it did not ring. The eventfd is non-blocking, and one read empties it.
  (void)!read(doorbell_.get(), &count, sizeof(count));
}

template <typename F>
void AgentChannel::WriteOrders(F&& write) {
  BeginSharedWrite(page_->orders_seq);
  std::forward<F>(write)();
  EndSharedWrite(page_->orders_seq);
  FutexWake(page_->orders_seq, FutexScope::kShared);
}

void AgentChannel::Prepare(const Membership& membership) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  page_->gate.store(StepGate::Pack({.closed = true}), std::memory_order_release);

  BeginSharedWrite(page_->state_seq);
  page_->state.store(static_cast<uint32_t>(WorkerState::kNone), kRelaxed);
  for (auto* field : {&page_->at_step, &page_->total_steps, &page_->staged_step,
                      &page_->persist_every, &page_->fence_wait_ns, &page_->step_started_ns,
                      &page_->step_longest_ns, &page_->step_last_ns, &page_->collectives}) {
    field->store(0, kRelaxed);
  }
  page_->phase.store(static_cast<uint32_t>(Phase::kInit), kRelaxed);
  page_->worker_pid.store(0, kRelaxed);
  StoreSharedText(page_->worker_message, kMessageBytes, "");
  EndSharedWrite(page_->state_seq);

  // A request of the last worker has nobody waiting for its answer.
  kv_taken_ = page_->kv_request_seq.load(std::memory_order_acquire);
  page_->kv_response_seq.store(kv_taken_, std::memory_order_release);

  WriteOrders([&] {
    StoreShared(page_->epoch, membership.epoch);
    StoreShared(page_->rank, membership.rank);
    StoreShared(page_->world_size, membership.world_size);
    StoreShared(page_->local_rank, membership.local_rank);
    StoreShared(page_->local_world_size, membership.local_world_size);
    StoreShared(page_->restart_count, membership.restart_count);
    page_->orders.store(0, kRelaxed);
    page_->resume_kind.store(static_cast<uint32_t>(ResumeKind::kPending), kRelaxed);
    page_->resume_attempt.store(0, kRelaxed);
    for (auto* field :
         {&page_->resume_term, &page_->resume_step, &page_->term, &page_->stage_step}) {
      field->store(0, kRelaxed);
    }
    StoreSharedText(page_->orders_message, kMessageBytes, "");
  });
}

Membership AgentChannel::membership() const {
  Membership m;
  m.epoch = LoadShared(page_->epoch);
  m.rank = LoadShared(page_->rank);
  m.world_size = LoadShared(page_->world_size);
  m.local_rank = LoadShared(page_->local_rank);
  m.local_world_size = LoadShared(page_->local_world_size);
  m.restart_count = LoadShared(page_->restart_count);
  return m;
}

void AgentChannel::Decide(const ResumeDecision& decision) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  WriteOrders([&] {
    page_->resume_term.store(decision.term, kRelaxed);
    page_->resume_step.store(decision.step, kRelaxed);
    page_->resume_attempt.store(decision.attempt, kRelaxed);
    page_->term.store(decision.writer_term, kRelaxed);
    StoreSharedText(page_->orders_message, kMessageBytes, decision.message);
    page_->resume_kind.store(static_cast<uint32_t>(decision.kind), kRelaxed);
  });
}

void AgentChannel::OrderStage(uint64_t step) {
  WriteOrders([&] {
    page_->stage_step.store(step, std::memory_order_relaxed);
    page_->orders.fetch_or(kOrderStage, std::memory_order_relaxed);
  });
}

void AgentChannel::OrderPark() {
  WriteOrders([&] { page_->orders.fetch_or(kOrderPark, std::memory_order_relaxed); });
}

void AgentChannel::ClearOrders() {
  WriteOrders([&] { page_->orders.store(0, std::memory_order_relaxed); });
}

void AgentChannel::SetCommitted(uint64_t step) {
  WriteOrders([&] { page_->committed_step.store(step + 1, std::memory_order_relaxed); });
}

GateView AgentChannel::CloseGate() { return StepGate(&page_->gate).Close(); }

Status AgentChannel::LimitGate(uint64_t step) {
  if (step > kMaxGateStep) {
    return OutOfRangeError("step gate of slot " + std::to_string(slot_) + ": limit " +
                           std::to_string(step) + ", allowed: at most " +
                           std::to_string(kMaxGateStep));
  }
  GODWIT_RETURN_IF_ERROR(StepGate(&page_->gate)
                             .SetLimit(static_cast<uint32_t>(step))
                             .Annotate("slot " + std::to_string(slot_)));
  WriteOrders([] {});
  return OkStatus();
}

void AgentChannel::OpenGate() {
  StepGate(&page_->gate).Open();
  WriteOrders([] {});
}

GateView AgentChannel::gate() const { return StepGate(&page_->gate).Load(); }

Result<WorkerReport> AgentChannel::Report() const {
  constexpr auto kAcquire = std::memory_order_acquire;
  WorkerReport report;
  uint32_t state = 0;
  uint64_t staged = 0;
  uint64_t fence_wait_ns = 0;
  const bool whole = ReadShared(page_->state_seq, &report.seq, [&] {
    state = page_->state.load(kAcquire);
    report.at_step = page_->at_step.load(kAcquire);
    report.total_steps = page_->total_steps.load(kAcquire);
    staged = page_->staged_step.load(kAcquire);
    report.persist_every = page_->persist_every.load(kAcquire);
    fence_wait_ns = page_->fence_wait_ns.load(kAcquire);
    report.worker_pid = page_->worker_pid.load(kAcquire);
    report.message = LoadSharedText(page_->worker_message, kMessageBytes);
  });
  const std::string name = "slot " + std::to_string(slot_) + ": report";
  if (!whole) return UnavailableError(name + ": the worker is writing it");
  if (state > kLastWorkerState) {
    return DataLossError(name + ": state " + std::to_string(state) + ", allowed: 0 to " +
                         std::to_string(kLastWorkerState));
  }
  for (const auto& [field, value] :
       {std::pair("at_step", report.at_step), std::pair("total_steps", report.total_steps),
        std::pair("staged_step", staged > 0 ? staged - 1 : 0)}) {
    if (value > kMaxGateStep) {
      return DataLossError(name + ": " + field + " " + std::to_string(value) +
                           ", allowed: at most " + std::to_string(kMaxGateStep));
    }
  }
  report.state = static_cast<WorkerState>(state);
  if (staged > 0) report.staged_step = staged - 1;
  report.fence_wait = ClippedNanos(fence_wait_ns);
  return report;
}

WorkerProgress AgentChannel::Progress() const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  WorkerProgress progress;
  progress.gate = gate();
  progress.step_started =
      MonotonicFromNanos(ClippedNanos(page_->step_started_ns.load(kRelaxed)).count());
  progress.step_last = ClippedNanos(page_->step_last_ns.load(kRelaxed));
  progress.step_longest = ClippedNanos(page_->step_longest_ns.load(kRelaxed));
  progress.collectives = page_->collectives.load(kRelaxed);
  const uint32_t phase = page_->phase.load(kRelaxed);
  progress.phase = phase <= kLastPhase ? static_cast<Phase>(phase) : Phase::kStep;
  return progress;
}

Result<std::optional<KvRequest>> AgentChannel::TakeKvRequest() {
  const uint32_t seq = page_->kv_request_seq.load(std::memory_order_acquire);
  if (seq == kv_taken_) return std::optional<KvRequest>();
  kv_taken_ = seq;
  KvRequest request;
  request.seq = seq;
  const uint32_t op = LoadShared(page_->kv_op);
  const uint32_t key_bytes = LoadShared(page_->kv_key_bytes);
  const uint32_t value_bytes = LoadShared(page_->kv_value_bytes);
  std::string wrong;
  if (op != kKvSet && op != kKvGet) {
    wrong = "op " + std::to_string(op) + ", allowed: 1 (set), 2 (get)";
  } else if (key_bytes == 0 || key_bytes > kKvMaxKeyBytes) {
    wrong = "key of " + std::to_string(key_bytes) + " bytes, allowed: 1 to " +
            std::to_string(kKvMaxKeyBytes);
  } else if (op == kKvSet && value_bytes > kKvMaxValueBytes) {
    wrong = "value of " + std::to_string(value_bytes) + " bytes, allowed: at most " +
            std::to_string(kKvMaxValueBytes);
  }
  if (!wrong.empty()) {
    Answer(seq, StatusCode::kInvalidArgument, "");
    return InvalidArgumentError("slot " + std::to_string(slot_) + ": key-value request: " + wrong);
  }
  request.op = static_cast<KvOp>(op);
  request.key = LoadSharedBytes(page_->kv_key, key_bytes);
  if (request.op == kKvSet) request.value = LoadSharedBytes(page_->kv_value, value_bytes);
  request.timeout = std::chrono::milliseconds(LoadShared(page_->kv_timeout_ms));
  return std::optional<KvRequest>(std::move(request));
}

void AgentChannel::AnswerKv(uint32_t seq, const Status& status, std::string_view value) {
  if (value.size() > kKvMaxValueBytes) {
    Answer(seq, StatusCode::kResourceExhausted, "");
    return;
  }
  Answer(seq, status.code(), value);
}

void AgentChannel::Answer(uint32_t seq, StatusCode code, std::string_view value) {
  // The worker starts no other request before this one is answered, so the fields are ours until
  // the response's number is set.
  if (page_->kv_request_seq.load(std::memory_order_acquire) != seq ||
      page_->kv_response_seq.load(std::memory_order_acquire) == seq) {
    return;
  }
  StoreSharedBytes(page_->kv_value, value);
  StoreShared(page_->kv_value_bytes, static_cast<uint32_t>(value.size()));
  StoreShared(page_->kv_status, static_cast<int32_t>(code));
  page_->kv_response_seq.store(seq, std::memory_order_release);
  FutexWake(page_->kv_response_seq, FutexScope::kShared);
}

}  // namespace godwit
