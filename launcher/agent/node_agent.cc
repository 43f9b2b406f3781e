#include "launcher/agent/node_agent.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/log.h"
#include "base/process.h"
#include "base/strings.h"
#include "launcher/agent/log_tail.h"

namespace godwit {

namespace {

constexpr uint32_t kAgentProtocolVersion = 1;
constexpr size_t kLogTailBytes = 4096;
constexpr size_t kMaxUnsent = 1024;
// A killed process that has not ended is killed again.
constexpr Duration kKillAgain = std::chrono::seconds(1);
constexpr int kExitParked = 75;

std::string SlotName(uint32_t slot) { return "slot " + std::to_string(slot); }

}  // namespace

NodeAgent::NodeAgent(Options options, NodeEffects* effects, MonotonicTime now)
    : options_(std::move(options)),
      effects_(effects),
      slots_(options_.slots),
      lost_at_(now),
      next_heartbeat_(now) {}

NodeAgent::~NodeAgent() {
  for (Slot& slot : slots_) {
    if (slot.channel) effects_->UnwatchDoorbell(slot.channel->doorbell());
  }
}

// ---- to the master ----

void NodeAgent::Report(proto::AgentReport report) {
  using Kind = proto::AgentReport::ReportCase;
  const Kind kind = report.report_case();
  // The rest is in the next Hello, or is asked for again by the master.
  const bool keep = kind == Kind::kPackWritten || kind == Kind::kPackFailed ||
                    kind == Kind::kOrderFailed || kind == Kind::kKeeperLost;
  if (attached_) {
    if (!keep) {
      effects_->SendToMaster(std::move(report));
      return;
    }
    if (effects_->SendToMaster(report)) return;
  }
  if (!keep) return;
  if (unsent_.size() >= kMaxUnsent) {
    LogError("{} reports wait for a master; the oldest is dropped", kMaxUnsent);
    unsent_.pop_front();
  }
  unsent_.push_back(std::move(report));
}

void NodeAgent::Fail(uint64_t epoch, const char* order, uint32_t rank, const Status& why) {
  LogWarning("{} of epoch {}, rank {}: {}", order, epoch, rank, why.ToString());
  proto::AgentReport report;
  proto::OrderFailed* const failed = report.mutable_order_failed();
  failed->set_epoch(epoch);
  failed->set_order(order);
  failed->set_rank(rank);
  failed->set_code(static_cast<int32_t>(why.code()));
  failed->set_message(ValidUtf8(why.message()));
  Report(std::move(report));
}

proto::GateReply NodeAgent::GateReplyOf(const Slot& slot, const GateView& gate) {
  proto::GateReply reply;
  reply.set_epoch(slot.membership.epoch);
  reply.set_rank(slot.membership.rank);
  reply.set_entered(gate.entered);
  reply.set_limit(gate.limit);
  reply.set_closed(gate.closed);
  reply.set_finished(gate.finished);
  return reply;
}

proto::WorkerClaimed NodeAgent::ClaimOf(const Slot& slot, uint32_t index) {
  proto::WorkerClaimed claimed;
  claimed.set_epoch(slot.membership.epoch);
  claimed.set_slot(index);
  claimed.set_rank(slot.membership.rank);
  claimed.set_directory(ValidUtf8(slot.claim.directory));
  claimed.set_total_steps(slot.claim.total_steps);
  claimed.set_persist_every(slot.claim.persist_every);
  for (const uint32_t size : slot.claim.legal_world_sizes) {
    claimed.add_legal_world_sizes(size);
  }
  return claimed;
}

proto::SnapshotWhole NodeAgent::SnapshotOf(const Slot& slot, const ckpt::SlotInfo& info) const {
  proto::SnapshotWhole whole;
  whole.set_epoch(info.epoch);
  whole.set_rank(info.rank);
  whole.set_world_size(info.world_size);
  whole.set_step(info.step);
  whole.set_bytes(slot.memory.arena->plan().data_bytes());
  return whole;
}

void NodeAgent::SayHello() {
  if (!connected_ || !keeper_ready_ || attached_) return;
  proto::AgentReport report;
  proto::Hello* const hello = report.mutable_hello();
  hello->set_job_id(options_.job_id);
  hello->set_node_id(options_.node_id);
  hello->set_node_index(options_.node_index);
  hello->set_slots(options_.slots);
  hello->set_agent_pid(getpid());
  hello->set_keeper_pid(keeper_pid_);
  hello->set_protocol_version(kAgentProtocolVersion);
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.membership.epoch == 0) continue;  // no worker was ever started in it
    proto::SlotReport* const state = hello->add_slot_reports();
    state->set_slot(i);
    state->set_pid(slot.running ? slot.pid : 0);
    state->set_epoch(slot.membership.epoch);
    state->set_rank(slot.membership.rank);
    state->set_world_size(slot.membership.world_size);
    state->set_claimed(slot.claimed);
    if (slot.claimed) *state->mutable_claim() = ClaimOf(slot, i);
    if (slot.channel) {
      if (const Result<WorkerReport> said = slot.channel->Report(); said.ok()) {
        state->set_state(static_cast<uint32_t>(said->state));
        state->set_at_step(said->at_step);
        slot.told_report = said->seq;
      }
      *state->mutable_gate() = GateReplyOf(slot, slot.channel->gate());
    }
    slot.told.clear();
    if (!slot.memory.restorable) continue;
    for (const ckpt::SlotInfo& info : WholeSnapshots(&slot)) {
      *state->add_snapshots() = SnapshotOf(slot, info);
      slot.told.insert({info.epoch, info.step});
    }
  }
  attached_ = effects_->SendToMaster(std::move(report));
  if (!attached_) return;  // OnMasterLost is on its way
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.exited) {
      proto::AgentReport again;
      *again.mutable_worker_exited() = *slot.exited;
      Report(std::move(again));
    }
    if (slot.kv) PassKv(i);
  }
  std::deque<proto::AgentReport> unsent;
  unsent.swap(unsent_);
  for (proto::AgentReport& waiting : unsent) Report(std::move(waiting));
}

void NodeAgent::SendHeartbeat(MonotonicTime now) {
  proto::AgentReport report;
  proto::Heartbeat* const beat = report.mutable_heartbeat();
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (!slot.running || !slot.channel || !slot.claimed) continue;
    const WorkerProgress progress = slot.channel->Progress();
    const Result<WorkerReport> said = slot.channel->Report();
    proto::RankProgress* const rank = beat->add_ranks();
    rank->set_epoch(slot.membership.epoch);
    rank->set_rank(slot.membership.rank);
    rank->set_entered(progress.gate.entered);
    rank->set_phase(static_cast<uint32_t>(progress.phase));
    rank->set_step_last_ns(static_cast<uint64_t>(progress.step_last.count()));
    rank->set_step_longest_ns(static_cast<uint64_t>(progress.step_longest.count()));
    if (said.ok()) {
      rank->set_fence_wait_ns(static_cast<uint64_t>(said->fence_wait.count()));
      if (said->state == WorkerState::kRunning && progress.phase == Phase::kStep &&
          ToNanos(progress.step_started) > 0 && now > progress.step_started) {
        rank->set_in_step_ns(static_cast<uint64_t>((now - progress.step_started).count()));
      }
    }
    if (slot.memory.arena) rank->set_snapshot_bytes(slot.memory.arena->plan().data_bytes());
  }
  Report(std::move(report));
}

// ---- the keeper ----

void NodeAgent::OnKeeperMessage(const KeeperMessage& message, std::vector<UniqueFd> fds,
                                MonotonicTime) {
  if (ended_) return;
  if (const auto* attach = std::get_if<AttachReply>(&message)) {
    if (attach->slots != slots_.size()) {
      effects_->End(78, "the keeper in " + options_.run_dir + " has " +
                            std::to_string(attach->slots) + " slots, this agent was given " +
                            std::to_string(slots_.size()));
      return;
    }
    keeper_pid_ = attach->keeper_pid;
    states_due_ = attach->slots;
  } else if (const auto* state = std::get_if<SlotState>(&message)) {
    OnSlotState(*state, std::move(fds));
  } else if (const auto* claimed = std::get_if<ClaimedEvent>(&message)) {
    OnClaimed(*claimed);
  } else if (const auto* exited = std::get_if<ExitedEvent>(&message)) {
    OnExited(*exited);
  } else if (const auto* started = std::get_if<StartWorkerReply>(&message)) {
    OnStarted(*started);
  } else if (const auto* error = std::get_if<ErrorReply>(&message)) {
    OnKeeperError(*error);
  } else {
    LogWarning("the keeper sent a message of type {}, which is none for an agent", message.index());
  }
}

void NodeAgent::OnSlotState(const SlotState& state, std::vector<UniqueFd> fds) {
  const size_t expected_fds = state.snapshot_bytes > 0 ? 3 : 2;
  if (state.slot >= slots_.size() || fds.size() != expected_fds) {
    LogError("the keeper told of {} with {} descriptors, allowed: slots 0 to {}, {} descriptors",
             SlotName(state.slot), fds.size(), slots_.size() - 1, expected_fds);
    return;
  }
  Slot& slot = slots_[state.slot];
  const bool first = slot.channel == nullptr;
  if (first) {
    Result<std::unique_ptr<AgentChannel>> channel =
        AgentChannel::Map(fds[0].get(), std::move(fds[1]));
    if (!channel.ok()) {
      effects_->End(1, SlotName(state.slot) + ": " + channel.status().message());
      return;
    }
    slot.channel = std::move(*channel);
    effects_->WatchDoorbell(state.slot, slot.channel->doorbell());
    slot.started_epoch = state.epoch;
    if (const Membership page = slot.channel->membership();
        page.epoch == state.epoch && state.epoch != 0) {
      slot.membership = page;
      epoch_ = std::max(epoch_, state.epoch);
    }
    slot.running = state.pid != 0;
    slot.gone = state.pid == 0;
    slot.pid = state.pid;
    slot.claimed = state.claimed != 0;
    slot.claim = state.claim;
  }
  if (state.snapshot_bytes == 0) {
    // Memory that outlived its keeper stays, to be written to storage; memory that this keeper gave
    // back goes.
    if (slot.memory.restorable) slot.memory = Memory();
  } else if (!slot.memory.mapping || !slot.memory.restorable ||
             slot.memory.mapping->size() != state.snapshot_bytes) {
    Result<SharedMapping> mapping = SharedMapping::Map(fds[2].get(), state.snapshot_bytes);
    if (mapping.ok()) {
      slot.memory = Memory();
      slot.memory.mapping = std::make_shared<SharedMapping>(std::move(*mapping));
      slot.told.clear();
    } else {
      LogError("snapshot memory of {}: {}", SlotName(state.slot), mapping.status().message());
    }
  }
  if (!first && state.pid == 0 && !slot.starting) {
    if (slot.running) {
      // Its end was told to an agent that is no more.
      OnExited(ExitedEvent{.slot = state.slot,
                           .pid = slot.pid,
                           .epoch = slot.membership.epoch,
                           .exit_code = 1,
                           .signal = 0});
    }
    slot.gone = true;
    TellIfGone();
  }
  if (states_due_ > 0 && --states_due_ == 0) {
    keeper_ready_ = true;
    SayHello();
    if (start_) {
      const proto::StartEpoch order = std::move(*start_);
      start_.reset();
      Do(order);
    }
  }
}

void NodeAgent::OnClaimed(const ClaimedEvent& event) {
  if (event.claim.slot >= slots_.size()) return;
  Slot& slot = slots_[event.claim.slot];
  if (event.claim.epoch != slot.membership.epoch) return;
  slot.claimed = true;
  slot.claim = event.claim;
  slot.memory.arena.reset();  // the new worker may lay it out anew
  slot.memory.history.reset();
  proto::AgentReport report;
  *report.mutable_worker_claimed() = ClaimOf(slot, event.claim.slot);
  Report(std::move(report));
}

void NodeAgent::OnStarted(const StartWorkerReply& reply) {
  if (reply.slot >= slots_.size() || !slots_[reply.slot].starting) return;
  Slot& slot = slots_[reply.slot];
  slot.starting = false;
  slot.started_epoch = slot.membership.epoch;
  slot.pid = reply.pid;
  LogInfo("rank {} of epoch {} runs in {}: process {}", slot.membership.rank, slot.membership.epoch,
          SlotName(reply.slot), reply.pid);
  proto::AgentReport report;
  proto::WorkerStarted* const started = report.mutable_worker_started();
  started->set_epoch(slot.membership.epoch);
  started->set_slot(reply.slot);
  started->set_rank(slot.membership.rank);
  started->set_pid(reply.pid);
  Report(std::move(report));
}

void NodeAgent::OnKeeperError(const ErrorReply& error) {
  const int code = error.code;
  const Status why(code > 0 && code <= 16 ? static_cast<StatusCode>(code) : StatusCode::kUnknown,
                   error.message);
  if (error.slot >= slots_.size() || !slots_[error.slot].starting) {
    LogWarning("keeper: {}", why.ToString());
    return;
  }
  Slot& slot = slots_[error.slot];
  slot.starting = false;
  slot.running = false;
  slot.gone = true;
  Fail(slot.membership.epoch, "StartEpoch", slot.membership.rank, why);
  TellIfGone();
}

void NodeAgent::OnExited(const ExitedEvent& event) {
  if (event.slot >= slots_.size()) return;
  Slot& slot = slots_[event.slot];
  if (!slot.running || event.epoch != slot.membership.epoch) return;
  PassOn(event.slot, /*again=*/false);  // its last words first
  slot.running = false;
  slot.starting = false;
  slot.kv.reset();
  proto::WorkerExited exited;
  exited.set_epoch(event.epoch);
  exited.set_slot(event.slot);
  exited.set_rank(slot.membership.rank);
  exited.set_pid(event.pid);
  exited.set_exit_code(event.signal == 0 ? event.exit_code : 0);
  exited.set_signal(event.signal);
  if (slot.channel) {
    if (const Result<WorkerReport> said = slot.channel->Report(); said.ok()) {
      exited.set_worker_message(ValidUtf8(said->message));
    }
    exited.set_entered(slot.channel->gate().entered);
  }
  exited.set_log_tail(LogTail(LogPath(event.epoch, slot.membership.rank, "err"), kLogTailBytes));
  const ExitStatus status = {.code = event.exit_code, .signal = event.signal};
  LogInfo("rank {} of epoch {}, process {}: {}", slot.membership.rank, event.epoch, event.pid,
          status.ToString());
  const bool expected = wish_.has_value() || event.exit_code == 0 ||
                        (event.signal == 0 && event.exit_code == kExitParked);
  if (!expected) {
    effects_->Tell("rank " + std::to_string(slot.membership.rank) + " (process " +
                   std::to_string(event.pid) + "): " + status.ToString() +
                   (exited.worker_message().empty() ? "" : ": " + exited.worker_message()));
  }
  slot.exited = exited;
  proto::AgentReport report;
  *report.mutable_worker_exited() = std::move(exited);
  Report(std::move(report));
}

void NodeAgent::OnKeeperLost(const std::string& why, MonotonicTime) {
  if (ended_) return;
  const bool was_ready = keeper_ready_;
  keeper_ready_ = false;
  states_due_ = 0;
  keeper_pid_ = 0;
  for (Slot& slot : slots_) {
    if (slot.channel) effects_->UnwatchDoorbell(slot.channel->doorbell());
    slot.channel.reset();
    slot.running = slot.starting = slot.claimed = false;
    slot.gone = true;
    slot.pid = 0;
    slot.kv.reset();
    slot.told.clear();
    slot.told_report = 0;
    slot.memory.restorable = false;
  }
  if (was_ready) {
    LogError("keeper lost: {}", why);
    proto::AgentReport report;
    report.mutable_keeper_lost()->set_message(ValidUtf8(why));
    Report(std::move(report));
    TellIfGone();
  }
  effects_->StartKeeper();
}

// ---- workers ----

void NodeAgent::OnDoorbell(uint32_t index, MonotonicTime) {
  if (ended_ || index >= slots_.size() || !slots_[index].channel) return;
  Slot& slot = slots_[index];
  slot.channel->DrainDoorbell();
  PassOn(index, /*again=*/false);
  Result<std::optional<KvRequest>> request = slot.channel->TakeKvRequest();
  if (!request.ok()) {
    LogWarning("{}", request.status().message());
  } else if (*request) {
    slot.kv = std::move(**request);
    PassKv(index);
  }
}

void NodeAgent::PassKv(uint32_t index) {
  const Slot& slot = slots_[index];
  proto::AgentReport report;
  proto::KvRequest* const request = report.mutable_kv_request();
  request->set_epoch(slot.membership.epoch);
  request->set_rank(slot.membership.rank);
  request->set_request(slot.kv->seq);
  request->set_set(slot.kv->op == kKvSet);
  request->set_key(ValidUtf8(slot.kv->key));
  request->set_value(slot.kv->value);
  request->set_timeout_ms(static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(slot.kv->timeout).count()));
  Report(std::move(report));
}

void NodeAgent::PassOn(uint32_t index, bool again) {
  Slot& slot = slots_[index];
  if (!slot.channel || slot.membership.epoch == 0) return;
  const Result<WorkerReport> said = slot.channel->Report();
  if (!said.ok()) {
    // UNAVAILABLE: it is being written, and the bell rings after it.
    if (said.status().code() != StatusCode::kUnavailable) {
      LogWarning("{}", said.status().message());
    }
    return;
  }
  if (said->seq == slot.told_report && !again) return;
  slot.told_report = said->seq;
  // Snapshots first: what a state means often hangs on them.
  if (said->staged_step && said->staged_step != slot.seen_staged) {
    slot.seen_staged = said->staged_step;
    slot.memory.arena.reset();  // the worker may have laid it out anew since we looked
    slot.memory.history.reset();
    TellSnapshots(index);
  }
  proto::AgentReport report;
  if (said->state == WorkerState::kAtGate || said->state == WorkerState::kStaged) {
    proto::WorkerAtGate* const at_gate = report.mutable_worker_at_gate();
    at_gate->set_epoch(slot.membership.epoch);
    at_gate->set_rank(slot.membership.rank);
    at_gate->set_step(said->at_step);
    Report(std::move(report));
  } else if (said->state == WorkerState::kFinished) {
    proto::WorkerFinished* const finished = report.mutable_worker_finished();
    finished->set_epoch(slot.membership.epoch);
    finished->set_rank(slot.membership.rank);
    finished->set_step(said->at_step);
    Report(std::move(report));
  }
}

std::vector<ckpt::SlotInfo> NodeAgent::WholeSnapshots(Slot* slot) {
  Memory& memory = slot->memory;
  if (!memory.mapping) return {};
  if (!memory.arena) {
    Result<ckpt::Arena> arena = ckpt::Arena::Attach(memory.mapping->bytes());
    if (!arena.ok()) {
      // FAILED_PRECONDITION: no worker has laid it out yet.
      if (arena.status().code() != StatusCode::kFailedPrecondition) {
        LogWarning("snapshot memory: {}", arena.status().message());
      }
      return {};
    }
    memory.arena = std::move(*arena);
    memory.history = std::make_shared<ckpt::PackHistory>(ckpt::BaseLimits{});
  }
  std::vector<ckpt::SlotInfo> whole = memory.arena->slots();
  std::erase_if(whole, [](const auto& info) { return info.state != ckpt::SlotState::kWhole; });
  return whole;
}

void NodeAgent::TellSnapshots(uint32_t index) {
  Slot& slot = slots_[index];
  if (!slot.memory.restorable) return;
  std::set<SnapshotName> whole;
  for (const ckpt::SlotInfo& info : WholeSnapshots(&slot)) {
    const SnapshotName name(info.epoch, info.step);
    whole.insert(name);
    if (slot.told.contains(name)) continue;
    proto::AgentReport report;
    *report.mutable_snapshot_whole() = SnapshotOf(slot, info);
    Report(std::move(report));
  }
  slot.told = std::move(whole);
}

// ---- time ----

MonotonicTime NodeAgent::deadline() const {
  MonotonicTime next = MonotonicTime::max();
  if (attached_) next = std::min(next, next_heartbeat_);
  if (wish_) next = std::min(next, wish_->kill_at);
  if (lost_at_) next = std::min(next, SaturatingAdd(*lost_at_, options_.master_lost_limit));
  return next;
}

void NodeAgent::OnTick(MonotonicTime now) {
  if (ended_) return;
  if (wish_ && now >= wish_->kill_at) {
    SignalWorkers(SIGKILL);
    wish_->kill_at = SaturatingAdd(now, kKillAgain);
  }
  if (lost_at_ && now >= SaturatingAdd(*lost_at_, options_.master_lost_limit)) {
    ended_ = true;
    effects_->End(76, "no master of job " + options_.job_id + " was there for " +
                          HumanDuration(options_.master_lost_limit));
    return;
  }
  if (attached_ && now >= next_heartbeat_) {
    next_heartbeat_ = SaturatingAdd(now, kHeartbeat);
    SendHeartbeat(now);
  }
}

}  // namespace godwit
