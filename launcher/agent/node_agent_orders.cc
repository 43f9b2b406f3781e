// NodeAgent: what it does on the master's orders. What it hears and tells is in node_agent.cc.
#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include "base/file_system.h"
#include "base/log.h"
#include "base/strings.h"
#include "launcher/agent/free_port.h"
#include "launcher/agent/node_agent.h"

namespace godwit {

namespace {

constexpr size_t kMaxPersisted = 256;
constexpr size_t kMaxFrees = 64;
// Workers are given this long to leave when the order has no bound of its own.
constexpr Duration kDefaultParkLimit = std::chrono::seconds(60);
// For a pack that has no deadline, but nobody to make room for either.
constexpr Duration kUnhurriedLimit = std::chrono::hours(1);

std::string SlotName(uint32_t slot) { return "slot " + std::to_string(slot); }

ckpt::SaveId SaveOf(const proto::SaveIdProto& id) {
  return {.term = id.term(), .step = id.step(), .attempt = id.attempt()};
}

void SetSave(const ckpt::SaveId& save, proto::SaveIdProto* id) {
  id->set_term(save.term);
  id->set_step(save.step);
  id->set_attempt(save.attempt);
}

// The wire carries time left; more than the clock can count is "no bound".
Duration TimeLeft(uint64_t nanos) {
  constexpr uint64_t kMost = 365ull * 24 * 3600 * 1'000'000'000;
  return Duration(static_cast<int64_t>(std::min(nanos, kMost)));
}

}  // namespace

void NodeAgent::OnMasterConnected(MonotonicTime) {
  if (ended_) return;
  connected_ = true;
  attached_ = false;
  SayHello();
}

void NodeAgent::OnMasterLost(const Status& why, MonotonicTime now) {
  if (attached_) LogWarning("master lost: {}", why.message());
  LogDebug("no master: {}", why.ToString());
  connected_ = false;
  attached_ = false;
  if (!lost_at_) lost_at_ = now;
}

void NodeAgent::OnOrder(const proto::MasterOrder& order, MonotonicTime now) {
  if (ended_) return;
  lost_at_.reset();
  using Kind = proto::MasterOrder::OrderCase;
  switch (order.order_case()) {
    case Kind::kWelcome:
      return Do(order.welcome());
    case Kind::kStartEpoch:
      return Do(order.start_epoch());
    case Kind::kResume:
      return Do(order.resume());
    case Kind::kCloseGates:
      return Do(order.close_gates());
    case Kind::kSetLimit:
      return Do(order.set_limit());
    case Kind::kOpenGates:
      return Do(order.open_gates());
    case Kind::kStageAt:
      return Do(order.stage_at());
    case Kind::kPersist:
      return Do(order.persist(), now);
    case Kind::kCommitted:
      return Do(order.committed());
    case Kind::kParkWorkers:
      return Do(order.park_workers(), now);
    case Kind::kStopWorkers:
      return Do(order.stop_workers(), now);
    case Kind::kKvReply:
      return Do(order.kv_reply());
    case Kind::kLeave:
      ended_ = true;
      return effects_->End(order.leave().exit_code(), order.leave().reason());
    case Kind::kFreeSnapshots:
      return Do(order.free_snapshots());
    case Kind::ORDER_NOT_SET:
      break;
  }
  LogError("the master gave an order that this agent doesn't know");
}

void NodeAgent::Do(const proto::Welcome& order) {
  if (!order.refused().empty()) {
    ended_ = true;
    effects_->End(78, "the master refused this agent: " + order.refused());
    return;
  }
  LogInfo("attached to the master: epoch {}, term {}", order.epoch(), order.term());
}

void NodeAgent::Do(const proto::StartEpoch& order) {
  if (!keeper_ready_) {
    start_ = order;
    return;
  }
  const auto fail_all = [&](const Status& why) {
    for (const proto::SlotRank& rank : order.ranks()) {
      Fail(order.epoch(), "StartEpoch", rank.rank(), why);
    }
  };
  if (order.epoch() < epoch_ || order.epoch() == 0) {
    fail_all(FailedPreconditionError("start of epoch " + std::to_string(order.epoch()) +
                                     ": this node is in epoch " + std::to_string(epoch_)));
    return;
  }
  for (const proto::SlotRank& rank : order.ranks()) {
    if (rank.slot() < slots_.size()) continue;
    fail_all(OutOfRangeError("start of epoch " + std::to_string(order.epoch()) + ": got " +
                             SlotName(rank.slot()) + ", allowed: 0 to " +
                             std::to_string(slots_.size() - 1)));
    return;
  }
  if (order.epoch() > epoch_) {
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].gone) continue;
      fail_all(FailedPreconditionError("start of epoch " + std::to_string(order.epoch()) + ": " +
                                       SlotName(i) + " still has a worker of epoch " +
                                       std::to_string(slots_[i].membership.epoch)));
      return;
    }
    epoch_ = order.epoch();
    wish_.reset();
    // Slots without a rank in this epoch take no part in it.
    for (Slot& slot : slots_) {
      slot.exited.reset();
      slot.membership = Membership();
    }
  }
  std::string master_port;
  if (options_.choose_master_port &&
      order.world_size() == static_cast<uint32_t>(order.ranks_size())) {
    if (const Result<uint16_t> port = FreeLoopbackPort(); port.ok()) {
      master_port = std::to_string(*port);
    } else {
      LogWarning("MASTER_PORT stays unset: {}", port.status().message());
    }
  }
  std::vector<proto::SlotRank> ranks(order.ranks().begin(), order.ranks().end());
  std::sort(ranks.begin(), ranks.end(),
            [](const auto& a, const auto& b) { return a.slot() < b.slot(); });
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    Slot& slot = slots_[ranks[i].slot()];
    if (slot.membership.epoch == order.epoch() && slot.running) {
      if (!slot.starting) {
        slot.starting = true;  // said again
        OnStarted({.slot = ranks[i].slot(), .pid = slot.pid});
      }
      continue;
    }
    // One that has ended in this epoch isn't started again: that takes a new epoch.
    if (slot.started_epoch == order.epoch() || slot.exited) continue;
    slot.membership = {.epoch = order.epoch(),
                       .rank = ranks[i].rank(),
                       .world_size = order.world_size(),
                       .local_rank = i,
                       .local_world_size = static_cast<uint32_t>(ranks.size()),
                       .restart_count = order.restart_count()};
    StartWorker(order, ranks[i].slot(), i, master_port);
  }
}

void NodeAgent::StartWorker(const proto::StartEpoch& order, uint32_t index, uint32_t local_rank,
                            const std::string& master_port) {
  Slot& slot = slots_[index];
  slot.membership.local_rank = local_rank;
  slot.channel->Prepare(slot.membership);
  slot.told_report = 0;
  if (const Result<WorkerReport> said = slot.channel->Report(); said.ok()) {
    slot.told_report = said->seq;
  }
  slot.seen_staged.reset();
  slot.claimed = false;
  slot.claim = ClaimRequest();
  slot.kv.reset();

  StartWorkerRequest request;
  request.slot = index;
  request.epoch = order.epoch();
  request.argv.assign(order.argv().begin(), order.argv().end());
  request.env = WorkerEnvironment(order, slot.membership, index, master_port);
  request.cwd = options_.cwd;
  request.stdout_path = LogPath(order.epoch(), slot.membership.rank, "out");
  request.stderr_path = LogPath(order.epoch(), slot.membership.rank, "err");
  slot.running = slot.starting = true;
  slot.gone = false;
  slot.pid = 0;
  effects_->SendToKeeper(request);
}

std::vector<std::string> NodeAgent::WorkerEnvironment(const proto::StartEpoch& order,
                                                      const Membership& membership, uint32_t slot,
                                                      const std::string& master_port) const {
  std::map<std::string, std::string> env;
  const auto add = [&](const std::string& entry) {
    if (const size_t equals = entry.find('='); equals != std::string::npos && equals > 0) {
      env[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  };
  for (const std::string& entry : options_.environment) add(entry);
  if (membership.world_size > 1) env.emplace("OMP_NUM_THREADS", "1");
  for (const std::string& entry : order.env()) add(entry);
  for (const std::string& entry : options_.worker_environment) add(entry);

  const std::string rank = std::to_string(membership.rank);
  const std::string world_size = std::to_string(membership.world_size);
  env["RANK"] = env["ROLE_RANK"] = rank;
  env["WORLD_SIZE"] = env["ROLE_WORLD_SIZE"] = world_size;
  env["ROLE_NAME"] = "default";
  env["LOCAL_RANK"] = std::to_string(membership.local_rank);
  env["LOCAL_WORLD_SIZE"] = std::to_string(membership.local_world_size);
  env["GROUP_RANK"] = std::to_string(options_.node_index);
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(membership.restart_count);
  env["TORCHELASTIC_RUN_ID"] = options_.job_id;
  if (!master_port.empty()) {
    env["MASTER_ADDR"] = "127.0.0.1";
    env["MASTER_PORT"] = master_port;
  }
  env[kEnvJob] = options_.job_id;
  env[kEnvEpoch] = std::to_string(membership.epoch);
  env[kEnvSlot] = std::to_string(slot);
  env[kEnvKeeperSocket] = options_.keeper_socket;

  std::vector<std::string> entries;
  entries.reserve(env.size());
  for (const auto& [name, value] : env) entries.push_back(name + "=" + value);
  return entries;
}

std::string NodeAgent::LogPath(uint64_t epoch, uint32_t rank, const char* suffix) const {
  return JoinPath(options_.log_dir,
                  "e" + std::to_string(epoch) + "-r" + std::to_string(rank) + "." + suffix);
}

void NodeAgent::Do(const proto::Resume& order) {
  if (order.kind() > static_cast<uint32_t>(ResumeKind::kRefused)) {
    LogError("Resume: got kind {}, allowed: 0 to {}", order.kind(),
             static_cast<uint32_t>(ResumeKind::kRefused));
    return;
  }
  for (Slot& slot : slots_) {
    if (!slot.channel || slot.membership.epoch != order.epoch()) continue;
    slot.channel->Decide({.kind = static_cast<ResumeKind>(order.kind()),
                          .term = order.resume_term(),
                          .step = order.resume_step(),
                          .attempt = order.resume_attempt(),
                          .writer_term = order.term(),
                          .message = order.message()});
  }
}

void NodeAgent::Do(const proto::CloseGates& order) {
  for (Slot& slot : slots_) {
    if (!slot.channel || slot.membership.epoch != order.epoch()) continue;
    proto::AgentReport report;
    *report.mutable_gate_reply() = GateReplyOf(slot, slot.channel->CloseGate());
    Report(std::move(report));
  }
}

void NodeAgent::Do(const proto::SetLimit& order) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.channel || slot.membership.epoch != order.epoch()) continue;
    if (const Status s = slot.channel->LimitGate(order.step()); !s.ok()) {
      Fail(order.epoch(), "SetLimit", slot.membership.rank, s);
      continue;
    }
    // One that waits at the limit already has nothing more to say by itself.
    PassOn(i, /*again=*/true);
  }
}

void NodeAgent::Do(const proto::OpenGates& order) {
  for (Slot& slot : slots_) {
    if (!slot.channel || slot.membership.epoch != order.epoch()) continue;
    slot.channel->ClearOrders();
    slot.channel->OpenGate();
  }
}

void NodeAgent::Do(const proto::StageAt& order) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.channel || slot.membership.epoch != order.epoch()) continue;
    bool whole = false;
    for (const ckpt::SlotInfo& info : WholeSnapshots(&slot)) {
      if (info.epoch != order.epoch() || info.step != order.step()) continue;
      whole = true;
      proto::AgentReport report;
      *report.mutable_snapshot_whole() = SnapshotOf(slot, info);
      Report(std::move(report));
    }
    if (!whole) slot.channel->OrderStage(order.step());
  }
}

void NodeAgent::Do(const proto::Persist& order, MonotonicTime now) {
  const ckpt::SaveId save = SaveOf(order.save());
  const SnapshotName name(order.snapshot_epoch(), order.snapshot_step());
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.membership.epoch == 0) continue;
    const std::vector<ckpt::SlotInfo> whole = WholeSnapshots(&slot);
    const auto snapshot = std::find_if(whole.begin(), whole.end(), [&](const auto& info) {
      return info.epoch == name.first && info.step == name.second;
    });
    const uint32_t rank = snapshot != whole.end() ? snapshot->rank : slot.membership.rank;

    const auto before = std::find_if(persisted_.begin(), persisted_.end(), [&](const auto& p) {
      return p.save == save && p.rank == rank;
    });
    if (before != persisted_.end()) {
      if (before->answer) Report(*before->answer);
      continue;  // the write under way will answer
    }
    Status status;
    if (snapshot == whole.end()) {
      status = NotFoundError("snapshot of step " + std::to_string(name.second) + " in epoch " +
                             std::to_string(name.first) + ": not whole in " + SlotName(i));
    } else {
      PersistJob job;
      job.slot = i;
      job.memory = slot.memory.mapping;
      job.arena = slot.memory.arena;
      job.history = slot.memory.history;
      job.options.directory = order.directory();
      job.options.save = save;
      job.options.snapshot_epoch = name.first;
      job.options.snapshot_step = name.second;
      job.options.rank = rank;
      job.options.world_size = order.world_size();
      if (order.time_left_ns() > 0) {
        job.options.deadline = SaturatingAdd(now, TimeLeft(order.time_left_ns()));
        job.alone = true;
      } else if (!Trains()) {
        // Idle priority would spare nobody here, and could wait for ever on a busy host.
        job.options.deadline = SaturatingAdd(now, kUnhurriedLimit);
      }
      status = effects_->StartPersist(std::move(job));
    }
    if (persisted_.size() >= kMaxPersisted) persisted_.pop_front();
    persisted_.push_back({.save = save, .rank = rank, .answer = std::nullopt});
    slot.in_use.insert(name);
    if (!status.ok()) {
      PersistResult result;
      result.slot = i;
      result.save = save;
      result.rank = rank;
      result.snapshot_epoch = name.first;
      result.snapshot_step = name.second;
      result.pack = status;
      OnPersisted(std::move(result), now);
    }
  }
}

bool NodeAgent::Trains() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    if (!slot.running || !slot.channel) return false;
    const Result<WorkerReport> said = slot.channel->Report();
    return !said.ok() || said->state != WorkerState::kFinished;
  });
}

void NodeAgent::OnPersisted(PersistResult result, MonotonicTime) {
  Slot& slot = slots_[result.slot];
  if (const auto used = slot.in_use.find({result.snapshot_epoch, result.snapshot_step});
      used != slot.in_use.end()) {
    slot.in_use.erase(used);
  }
  proto::AgentReport report;
  if (result.pack.ok()) {
    proto::PackWritten* const written = report.mutable_pack_written();
    SetSave(result.save, written->mutable_save());
    written->set_rank(result.rank);
    written->set_tail(result.pack->tail);
    written->set_bytes(result.pack->bytes);
    written->set_duration_ns(static_cast<uint64_t>(result.duration.count()));
    LogInfo("save {}: rank {}'s pack of {} written in {}; {}", ckpt::ToString(result.save),
            result.rank, HumanBytes(result.pack->bytes), HumanDuration(result.duration),
            result.pack->choice.empty() ? "it was there already" : result.pack->choice);
  } else {
    proto::PackFailed* const failed = report.mutable_pack_failed();
    SetSave(result.save, failed->mutable_save());
    failed->set_rank(result.rank);
    failed->set_code(static_cast<int32_t>(result.pack.status().code()));
    failed->set_message(ValidUtf8(result.pack.status().message()));
    LogWarning("save {}: rank {}'s pack: {}", ckpt::ToString(result.save), result.rank,
               result.pack.status().ToString());
  }
  const auto before = std::find_if(persisted_.begin(), persisted_.end(), [&](const auto& p) {
    return p.save == result.save && p.rank == result.rank;
  });
  if (before != persisted_.end()) before->answer = report;
  Report(std::move(report));

  std::vector<proto::FreeSnapshots> again;
  again.swap(frees_);
  for (const proto::FreeSnapshots& order : again) Do(order);
}

void NodeAgent::Do(const proto::Committed& order) {
  for (Slot& slot : slots_) {
    if (slot.channel) slot.channel->SetCommitted(order.save().step());
    if (slot.memory.history) slot.memory.history->Committed(SaveOf(order.save()));
  }
}

// True when something had to be left for now.
bool NodeAgent::FreeIn(Slot* slot, const proto::FreeSnapshots& order) {
  const SnapshotName bound(order.epoch(), order.below_step());
  std::set<SnapshotName> named;
  for (const proto::SnapshotName& name : order.drop()) named.insert({name.epoch(), name.step()});
  bool left = false;
  for (const ckpt::SlotInfo& info : WholeSnapshots(slot)) {
    const SnapshotName name(info.epoch, info.step);
    if (name >= bound && !named.contains(name)) continue;
    if (slot->in_use.contains(name)) {
      left = true;
    } else {
      slot->memory.arena->Free(info.index);
      slot->told.erase(name);
    }
  }
  return left;
}

void NodeAgent::Do(const proto::FreeSnapshots& order) {
  bool left = false;
  for (Slot& slot : slots_) left |= FreeIn(&slot, order);
  if (!left) return;
  if (frees_.size() >= kMaxFrees) frees_.erase(frees_.begin());  // a later one frees as much
  frees_.push_back(order);
}

void NodeAgent::Do(const proto::ParkWorkers& order, MonotonicTime now) {
  const Duration limit =
      order.time_left_ns() > 0 ? TimeLeft(order.time_left_ns()) : kDefaultParkLimit;
  for (Slot& slot : slots_) {
    if (slot.channel && slot.running && slot.membership.epoch <= order.epoch()) {
      slot.channel->OrderPark();
    }
  }
  EndWorkers(order.epoch(), SaturatingAdd(now, limit));
}

void NodeAgent::Do(const proto::StopWorkers& order, MonotonicTime now) {
  LogInfo("stops the workers of epoch {}: {}", order.epoch(), order.reason());
  if (order.epoch() >= epoch_) SignalWorkers(order.grace_ns() > 0 ? SIGTERM : SIGKILL);
  EndWorkers(order.epoch(), SaturatingAdd(now, TimeLeft(order.grace_ns())));
}

void NodeAgent::EndWorkers(uint64_t epoch, MonotonicTime kill_at) {
  start_.reset();  // what waits for a keeper is not started any more
  if (epoch < epoch_) {
    // Its workers ended before those of the present epoch were started.
    proto::AgentReport report;
    report.mutable_workers_gone()->set_epoch(epoch);
    Report(std::move(report));
    return;
  }
  if (wish_) kill_at = std::min(kill_at, wish_->kill_at);
  wish_ = Wish{.epoch = epoch, .kill_at = kill_at};
  TellIfGone();
}

void NodeAgent::SignalWorkers(int signal) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].running) effects_->SendToKeeper(SignalRequest{.slot = i, .signal = signal});
  }
}

void NodeAgent::ForwardSignal(int signal) { SignalWorkers(signal); }

void NodeAgent::TellIfGone() {
  if (!wish_) return;
  if (std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.gone; })) return;
  proto::AgentReport report;
  report.mutable_workers_gone()->set_epoch(wish_->epoch);
  wish_.reset();
  Report(std::move(report));
}

void NodeAgent::Do(const proto::KvReply& order) {
  for (Slot& slot : slots_) {
    if (!slot.channel || !slot.kv || slot.membership.epoch != order.epoch() ||
        slot.membership.rank != order.rank() || slot.kv->seq != order.request()) {
      continue;
    }
    const int code = order.code();
    const Status status = code == 0 ? OkStatus()
                                    : Status(code > 0 && code <= 16 ? static_cast<StatusCode>(code)
                                                                    : StatusCode::kUnknown,
                                             "key-value exchange");
    slot.channel->AnswerKv(slot.kv->seq, status, order.value());
    slot.kv.reset();
  }
}

}  // namespace godwit
