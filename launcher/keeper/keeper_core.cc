#include "launcher/keeper/keeper_core.h"

#include <csignal>
#include <utility>

#include "base/check.h"
#include "base/strings.h"

namespace godwit::keeper {

namespace {

constexpr int kLastSignal = 64;

std::string SlotName(uint32_t slot) { return "slot " + std::to_string(slot); }

void Append(Actions* to, Actions from) {
  for (Action& action : from) to->push_back(std::move(action));
}

}  // namespace

KeeperCore::KeeperCore(const Options& options, MonotonicTime now)
    : options_(options),
      slots_(options.slots),
      alone_until_(SaturatingAdd(now, options.first_attach)) {}

Actions KeeperCore::Refuse(ConnectionId from, uint32_t slot, Status why, bool close) {
  Actions actions;
  actions.push_back(
      Send{.to = from,
           .message = ErrorReply{
               .slot = slot, .code = static_cast<int32_t>(why.code()), .message = why.message()}});
  if (close) actions.push_back(Close{from});
  return actions;
}

Actions KeeperCore::OnMessage(ConnectionId from, uint32_t uid, const KeeperMessage& message,
                              MonotonicTime now) {
  if (uid != options_.uid) {
    return OnBadPacket(from,
                       PermissionDeniedError("keeper: got a client of uid " + std::to_string(uid) +
                                             ", allowed: " + std::to_string(options_.uid)),
                       now);
  }
  const auto worker = workers_.find(from);
  const bool agent = from == agent_;
  if (agent && std::holds_alternative<StartWorkerRequest>(message)) {
    return OnStartWorker(std::get<StartWorkerRequest>(message));
  }
  if (agent && std::holds_alternative<SignalRequest>(message)) {
    return OnSignal(std::get<SignalRequest>(message));
  }
  if (agent && std::holds_alternative<PingRequest>(message)) {
    return {Send{.to = from, .message = PongReply{std::get<PingRequest>(message).number}}};
  }
  if (agent && std::holds_alternative<ShutdownRequest>(message)) {
    asked_to_stop_ = true;
    return Stop("the agent asked for it", now);
  }
  if (worker != workers_.end() && std::holds_alternative<ReserveRequest>(message)) {
    return OnReserve(from, std::get<ReserveRequest>(message));
  }
  if (!agent && worker == workers_.end()) {
    if (std::holds_alternative<ClaimRequest>(message)) {
      return OnClaim(from, std::get<ClaimRequest>(message));
    }
    if (std::holds_alternative<AttachRequest>(message)) {
      return OnAttach(from, std::get<AttachRequest>(message));
    }
  }
  const char* const who = agent                      ? "an agent"
                          : worker != workers_.end() ? "a worker"
                                                     : "a new client";
  return OnBadPacket(
      from,
      InvalidArgumentError("keeper: got message type " + std::to_string(message.index()) +
                           " from " + who + ", which may not send it"),
      now);
}

Actions KeeperCore::OnBadPacket(ConnectionId from, const Status& why, MonotonicTime now) {
  Actions actions = Refuse(from, 0, why, /*close=*/true);
  Append(&actions, OnClosed(from, now));
  return actions;
}

Actions KeeperCore::OnClosed(ConnectionId connection, MonotonicTime now) {
  if (const auto worker = workers_.find(connection); worker != workers_.end()) {
    slots_[worker->second].claimant = 0;
    workers_.erase(worker);
    return {};
  }
  if (connection != agent_) return {};
  agent_ = 0;
  alone_until_ = SaturatingAdd(now, options_.adopt_window);
  return OnTick(now);
}

bool KeeperCore::identified(ConnectionId connection) const {
  return connection == agent_ || workers_.contains(connection);
}

Actions KeeperCore::OnClaim(ConnectionId from, const ClaimRequest& claim) {
  const std::string what = "claim of " + SlotName(claim.slot);
  const auto refuse = [&](Status why) { return Refuse(from, claim.slot, std::move(why), true); };
  if (claim.version != kKeeperProtocolVersion) {
    return refuse(FailedPreconditionError(what + ": protocol version " +
                                          std::to_string(claim.version) + ", this keeper has " +
                                          std::to_string(kKeeperProtocolVersion)));
  }
  if (claim.slot >= slots_.size()) {
    return refuse(OutOfRangeError(what + ": allowed: 0 to " + std::to_string(slots_.size() - 1)));
  }
  Slot& slot = slots_[claim.slot];
  if (slot.pid == 0 && !slot.spawning) {
    return refuse(FailedPreconditionError(what + ": no worker runs in it"));
  }
  if (claim.epoch != slot.epoch) {
    return refuse(FailedPreconditionError(what + ": epoch " + std::to_string(claim.epoch) +
                                          ", its worker is of epoch " +
                                          std::to_string(slot.epoch)));
  }
  if (slot.claimed) {
    return refuse(AlreadyExistsError(what + ": process " + std::to_string(slot.claim.pid) +
                                     " has claimed it in epoch " + std::to_string(slot.epoch)));
  }
  slot.claimed = true;
  slot.claim = claim;
  slot.claimant = from;
  workers_[from] = claim.slot;
  Actions actions;
  actions.push_back(Send{.to = from,
                         .message = ClaimReply{.snapshot_bytes = slot.snapshot_bytes},
                         .passed = Passed::kSlot,
                         .slot = claim.slot});
  if (agent_ != 0) actions.push_back(Send{.to = agent_, .message = ClaimedEvent{.claim = claim}});
  return actions;
}

Send KeeperCore::StateOf(uint32_t index) const {
  const Slot& slot = slots_[index];
  SlotState state;
  state.slot = index;
  // Until nothing of a worker is left, and its end was told, the slot is its.
  state.pid = slot.quiet && !slot.unseen_exit ? slot.pid : slot.last_pid;
  state.epoch = slot.epoch;
  state.claimed = slot.claimed ? 1 : 0;
  state.snapshot_bytes = slot.snapshot_bytes;
  if (slot.claimed) state.claim = slot.claim;
  return Send{.to = agent_, .message = state, .passed = Passed::kSlot, .slot = index};
}

Actions KeeperCore::OnAttach(ConnectionId from, const AttachRequest& request) {
  if (request.version != kKeeperProtocolVersion) {
    return Refuse(
        from, 0,
        FailedPreconditionError("attach: protocol version " + std::to_string(request.version) +
                                ", this keeper has " + std::to_string(kKeeperProtocolVersion)),
        true);
  }
  if (stopping_) {
    return Refuse(from, 0, UnavailableError("attach: the keeper is ending: " + stop_reason_), true);
  }
  Actions actions;
  if (agent_ != 0) actions.push_back(Close{agent_});
  agent_ = from;
  alone_until_.reset();
  actions.push_back(Send{.to = agent_,
                         .message = AttachReply{.slots = static_cast<uint32_t>(slots_.size()),
                                                .keeper_pid = options_.pid}});
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    actions.push_back(StateOf(i));
    if (slots_[i].unseen_exit) {
      actions.push_back(Send{.to = agent_, .message = *slots_[i].unseen_exit});
      slots_[i].unseen_exit.reset();
      if (slots_[i].quiet) actions.push_back(StateOf(i));
    }
  }
  return actions;
}

Actions KeeperCore::OnReserve(ConnectionId from, const ReserveRequest& request) {
  const uint32_t index = workers_.at(from);
  Slot& slot = slots_[index];
  if (slot.reserving) {
    return Refuse(from, index,
                  FailedPreconditionError("snapshot memory of " + SlotName(index) +
                                          ": a request is under way"),
                  false);
  }
  if (request.bytes == 0) {
    return Refuse(from, index,
                  InvalidArgumentError("snapshot memory of " + SlotName(index) +
                                       ": got 0 bytes, allowed: 1 and more"),
                  false);
  }
  if (request.bytes == slot.snapshot_bytes) {
    return {Send{.to = from,
                 .message = SnapshotReply{.bytes = slot.snapshot_bytes},
                 .passed = Passed::kSnapshot,
                 .slot = index}};
  }
  slot.reserving = true;
  return {Reserve{.slot = index, .bytes = request.bytes}};
}

Actions KeeperCore::OnReserved(uint32_t index, const Result<uint64_t>& bytes) {
  Slot& slot = slots_[index];
  GODWIT_CHECK(slot.reserving);
  slot.reserving = false;
  const bool had_memory = slot.snapshot_bytes != 0;
  slot.snapshot_bytes = bytes.ok() ? *bytes : 0;  // an older one was given back to make room
  Actions actions;
  if (slot.claimant != 0) {
    if (bytes.ok()) {
      actions.push_back(Send{.to = slot.claimant,
                             .message = SnapshotReply{.bytes = *bytes},
                             .passed = Passed::kSnapshot,
                             .slot = index});
    } else {
      Append(&actions, Refuse(slot.claimant, index, bytes.status(), false));
    }
  }
  if (agent_ != 0 && (bytes.ok() || had_memory)) actions.push_back(StateOf(index));
  return actions;
}

Actions KeeperCore::OnStartWorker(const StartWorkerRequest& request) {
  const std::string what = "start of a worker in " + SlotName(request.slot);
  const auto refuse = [&](Status why) {
    return Refuse(agent_, request.slot, std::move(why), false);
  };
  if (request.slot >= slots_.size()) {
    return refuse(OutOfRangeError(what + ": allowed: 0 to " + std::to_string(slots_.size() - 1)));
  }
  if (stopping_) return refuse(UnavailableError(what + ": the keeper is ending: " + stop_reason_));
  Slot& slot = slots_[request.slot];
  if (slot.pid != 0 || slot.spawning) {
    return refuse(FailedPreconditionError(what + ": process " + std::to_string(slot.pid) +
                                          " of epoch " + std::to_string(slot.epoch) +
                                          " still runs in it"));
  }
  if (!slot.quiet) {
    return refuse(FailedPreconditionError(
        what + ": processes that the last worker started have not all ended"));
  }
  if (request.argv.empty()) return refuse(InvalidArgumentError(what + ": got no program"));
  slot.spawning = true;
  slot.epoch = request.epoch;
  slot.claimed = false;
  slot.claim = ClaimRequest();
  if (slot.claimant != 0) workers_.erase(slot.claimant);
  slot.claimant = 0;
  slot.unseen_exit.reset();
  return {Spawn{request}};
}

Actions KeeperCore::OnSpawned(uint32_t index, const Result<int32_t>& pid) {
  Slot& slot = slots_[index];
  GODWIT_CHECK(slot.spawning);
  slot.spawning = false;
  if (agent_ == 0) {
    if (pid.ok()) slot.pid = slot.last_pid = *pid;
    return {};
  }
  if (!pid.ok()) return Refuse(agent_, index, pid.status(), false);
  slot.pid = slot.last_pid = *pid;
  return {Send{.to = agent_, .message = StartWorkerReply{.slot = index, .pid = *pid}}};
}

Actions KeeperCore::OnSignal(const SignalRequest& request) {
  const std::string what = "signal to " + SlotName(request.slot);
  if (request.slot >= slots_.size()) {
    return Refuse(agent_, request.slot,
                  OutOfRangeError(what + ": allowed: 0 to " + std::to_string(slots_.size() - 1)),
                  false);
  }
  if (request.signal <= 0 || request.signal > kLastSignal) {
    return Refuse(agent_, request.slot,
                  InvalidArgumentError(what + ": got signal " + std::to_string(request.signal) +
                                       ", allowed: 1 to " + std::to_string(kLastSignal)),
                  false);
  }
  // No worker: it has ended meanwhile, and its ExitedEvent is on the way or was sent.
  if (slots_[request.slot].pid == 0) return {};
  return {SignalWorker{.slot = request.slot, .signal = request.signal}};
}

Actions KeeperCore::OnWorkerExited(uint32_t index, int32_t exit_code, int32_t signal) {
  Slot& slot = slots_[index];
  GODWIT_CHECK(slot.pid != 0);
  ExitedEvent exited;
  exited.slot = index;
  exited.pid = slot.pid;
  exited.epoch = slot.epoch;
  exited.exit_code = signal != 0 ? -1 : exit_code;
  exited.signal = signal;
  slot.pid = 0;
  slot.quiet = false;
  Actions actions;
  if (agent_ != 0) {
    actions.push_back(Send{.to = agent_, .message = exited});
  } else {
    slot.unseen_exit = exited;
  }
  actions.push_back(Sweep{index});
  return actions;
}

Actions KeeperCore::OnSlotQuiet(uint32_t index) {
  Slot& slot = slots_[index];
  if (slot.quiet) return {};
  slot.quiet = true;
  Actions actions;
  if (agent_ != 0) actions.push_back(StateOf(index));
  ExitIfDone(&actions);
  return actions;
}

Actions KeeperCore::Stop(std::string why, MonotonicTime now) {
  if (stopping_) return {};
  stopping_ = true;
  stop_reason_ = std::move(why);
  stop_limit_ = SaturatingAdd(now, kEndLimit);
  alone_until_.reset();
  Actions actions;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].pid != 0) actions.push_back(SignalWorker{.slot = i, .signal = SIGKILL});
  }
  ExitIfDone(&actions);
  return actions;
}

void KeeperCore::ExitIfDone(Actions* actions) {
  if (!stopping_ || exited_) return;
  for (const Slot& slot : slots_) {
    if (slot.pid != 0 || !slot.quiet) return;
  }
  exited_ = true;
  actions->push_back(Exit{stop_reason_});
}

std::optional<MonotonicTime> KeeperCore::deadline() const {
  if (stopping_) return stop_limit_;
  return alone_until_;
}

Actions KeeperCore::OnTick(MonotonicTime now) {
  if (stopping_) {
    if (now < stop_limit_ || exited_) return {};
    exited_ = true;
    return {Exit{stop_reason_ + "; some processes have not ended within " +
                 HumanDuration(kEndLimit) + " of SIGKILL"}};
  }
  if (agent_ != 0 || !alone_until_ || now < *alone_until_) return {};
  return Stop("no agent within the adopt window of " + HumanDuration(options_.adopt_window), now);
}

bool KeeperCore::no_worker_runs() const {
  for (const Slot& slot : slots_) {
    if (slot.pid != 0 || slot.spawning) return false;
  }
  return true;
}

}  // namespace godwit::keeper
