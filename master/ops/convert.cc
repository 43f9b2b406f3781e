#include "master/ops/convert.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace godwit::master {
namespace {

constexpr size_t kMaxMessage = 4096;
constexpr size_t kMaxTail = 1 << 20;
constexpr int kMaxSlots = 4096;
constexpr int kMaxSnapshots = 16;

std::string Clip(const std::string& text, size_t limit = kMaxMessage) {
  return text.substr(0, limit);
}

Claim ToClaim(const proto::WorkerClaimed& in) {
  Claim out;
  out.directory = Clip(in.directory());
  out.total_steps = in.total_steps();
  out.persist_every = in.persist_every();
  const int sizes = std::min(in.legal_world_sizes_size(), kMaxSlots);
  out.legal_world_sizes.assign(in.legal_world_sizes().begin(),
                               in.legal_world_sizes().begin() + sizes);
  return out;
}

GateState ToGate(const proto::GateReply& in) {
  return {in.entered(), in.limit(), in.closed(), in.finished()};
}

Snapshot ToSnapshot(const proto::SnapshotWhole& in) {
  return {in.epoch(), in.step(), in.world_size(), in.bytes()};
}

SaveId ToSave(const proto::SaveIdProto& in) { return {in.term(), in.step(), in.attempt()}; }

void Fill(const SaveId& save, proto::SaveIdProto* out) {
  out->set_term(save.term);
  out->set_step(save.step);
  out->set_attempt(save.attempt);
}

Status ToStatus(int32_t code, const std::string& message) {
  const bool known = code > 0 && code <= static_cast<int>(StatusCode::kUnauthenticated);
  return Status(known ? static_cast<StatusCode>(code) : StatusCode::kUnknown, Clip(message));
}

AgentAttached ToAttached(uint32_t node, const proto::Hello& in) {
  AgentAttached out;
  out.node = node;
  out.node_id = Clip(in.node_id(), 256);
  out.slots = std::min(in.slots(), static_cast<uint32_t>(kMaxSlots));
  out.keeper_pid = in.keeper_pid();
  for (int i = 0; i < std::min(in.slot_reports_size(), kMaxSlots); ++i) {
    const proto::SlotReport& report = in.slot_reports(i);
    SlotReport slot;
    slot.slot = report.slot();
    slot.pid = report.pid();
    slot.epoch = report.epoch();
    slot.rank = report.rank();
    slot.world_size = report.world_size();
    slot.claimed = report.claimed();
    if (report.state() <= static_cast<uint32_t>(WorkerState::kFailed)) {
      slot.state = static_cast<WorkerState>(report.state());
    }
    slot.at_step = report.at_step();
    if (report.has_gate()) slot.gate = ToGate(report.gate());
    if (report.has_claim()) slot.claim = ToClaim(report.claim());
    for (int s = 0; s < std::min(report.snapshots_size(), kMaxSnapshots); ++s) {
      slot.snapshots.push_back(ToSnapshot(report.snapshots(s)));
    }
    out.slot_reports.push_back(std::move(slot));
  }
  return out;
}

}  // namespace

std::string Utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned char c = byte(i);
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    bool valid = n > 0 && i + n <= text.size();
    for (size_t k = 1; valid && k < n; ++k) valid = (byte(i + k) & 0xc0) == 0x80;
    if (valid && n == 3) {
      // Neither overlong nor a surrogate.
      valid = !(c == 0xe0 && byte(i + 1) < 0xa0) && !(c == 0xed && byte(i + 1) >= 0xa0);
    } else if (valid && n == 4) {
      valid = !(c == 0xf0 && byte(i + 1) < 0x90) && !(c == 0xf4 && byte(i + 1) >= 0x90);
    }
    if (valid) {
      out.append(text.substr(i, n));
      i += n;
    } else {
      out += '?';
      ++i;
    }
  }
  return out;
}

Duration FromWire(uint64_t nanos) {
  constexpr uint64_t kCentury = 100ull * 365 * 24 * 3600 * 1'000'000'000;
  return Duration(static_cast<int64_t>(std::min(nanos, kCentury)));
}

uint64_t ToWire(Duration d) { return static_cast<uint64_t>(std::max(d.count(), Duration::rep{0})); }

std::optional<Event> ToEvent(uint32_t node, const proto::AgentReport& report) {
  switch (report.report_case()) {
    case proto::AgentReport::kHello:
      return ToAttached(node, report.hello());
    case proto::AgentReport::kHeartbeat: {
      Heartbeat out;
      out.node = node;
      for (int i = 0; i < std::min(report.heartbeat().ranks_size(), kMaxSlots); ++i) {
        const proto::RankProgress& in = report.heartbeat().ranks(i);
        out.ranks.push_back({in.epoch(), in.rank(), in.entered(), FromWire(in.step_last_ns()),
                             FromWire(in.step_longest_ns()), FromWire(in.in_step_ns()),
                             in.snapshot_bytes()});
      }
      return out;
    }
    case proto::AgentReport::kWorkerStarted: {
      const auto& in = report.worker_started();
      return WorkerStarted{node, in.epoch(), in.slot(), in.rank(), in.pid()};
    }
    case proto::AgentReport::kWorkerClaimed: {
      const auto& in = report.worker_claimed();
      return WorkerClaimed{node, in.epoch(), in.rank(), ToClaim(in)};
    }
    case proto::AgentReport::kWorkerExited: {
      const auto& in = report.worker_exited();
      return WorkerExited{node,
                          in.epoch(),
                          in.rank(),
                          in.exit_code(),
                          in.signal(),
                          Clip(in.worker_message()),
                          Clip(in.log_tail()),
                          in.entered()};
    }
    case proto::AgentReport::kGateReply: {
      const auto& in = report.gate_reply();
      return GateReplied{node, in.epoch(), in.rank(), ToGate(in)};
    }
    case proto::AgentReport::kWorkerAtGate: {
      const auto& in = report.worker_at_gate();
      return WorkerAtGate{node, in.epoch(), in.rank(), in.step()};
    }
    case proto::AgentReport::kSnapshotWhole:
      return SnapshotWhole{node, report.snapshot_whole().rank(),
                           ToSnapshot(report.snapshot_whole())};
    case proto::AgentReport::kPackWritten: {
      const auto& in = report.pack_written();
      return PackWritten{node,       ToSave(in.save()),
                         in.rank(),  Clip(in.tail(), kMaxTail),
                         in.bytes(), FromWire(in.duration_ns())};
    }
    case proto::AgentReport::kPackFailed: {
      const auto& in = report.pack_failed();
      return PackFailed{node, ToSave(in.save()), in.rank(), ToStatus(in.code(), in.message())};
    }
    case proto::AgentReport::kWorkerFinished: {
      const auto& in = report.worker_finished();
      return WorkerFinished{node, in.epoch(), in.rank(), in.step()};
    }
    case proto::AgentReport::kKeeperLost:
      return KeeperLost{node, Clip(report.keeper_lost().message())};
    case proto::AgentReport::kWorkersGone:
      return WorkersGone{node, report.workers_gone().epoch()};
    case proto::AgentReport::kOrderFailed: {
      const auto& in = report.order_failed();
      return OrderFailed{node, in.epoch(), Clip(in.order(), 64), in.rank(),
                         ToStatus(in.code(), in.message())};
    }
    case proto::AgentReport::kKvRequest:
    case proto::AgentReport::REPORT_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

proto::MasterOrder ToProto(const Order& order, const Config& config) {
  proto::MasterOrder out;
  std::visit(
      [&](const auto& in) {
        using T = std::decay_t<decltype(in)>;
        if constexpr (std::is_same_v<T, StartEpochOrder>) {
          auto* o = out.mutable_start_epoch();
          o->set_epoch(in.epoch);
          o->set_world_size(in.world_size);
          o->set_restart_count(in.restart_count);
          for (const SlotRank& r : in.ranks) {
            auto* rank = o->add_ranks();
            rank->set_slot(r.slot);
            rank->set_rank(r.rank);
          }
          for (const std::string& arg : config.argv) o->add_argv(arg);
          for (const std::string& env : config.env) o->add_env(env);
        } else if constexpr (std::is_same_v<T, ResumeOrder>) {
          auto* o = out.mutable_resume();
          o->set_epoch(in.epoch);
          o->set_term(in.term);
          o->set_kind(static_cast<uint32_t>(in.kind));
          o->set_resume_term(in.save.term);
          o->set_resume_step(in.save.step);
          o->set_resume_attempt(in.save.attempt);
          o->set_message(Utf8(in.message));
        } else if constexpr (std::is_same_v<T, CloseGatesOrder>) {
          out.mutable_close_gates()->set_epoch(in.epoch);
        } else if constexpr (std::is_same_v<T, SetLimitOrder>) {
          out.mutable_set_limit()->set_epoch(in.epoch);
          out.mutable_set_limit()->set_step(in.step);
        } else if constexpr (std::is_same_v<T, OpenGatesOrder>) {
          out.mutable_open_gates()->set_epoch(in.epoch);
        } else if constexpr (std::is_same_v<T, StageAtOrder>) {
          out.mutable_stage_at()->set_epoch(in.epoch);
          out.mutable_stage_at()->set_step(in.step);
        } else if constexpr (std::is_same_v<T, PersistOrder>) {
          auto* o = out.mutable_persist();
          Fill(in.save, o->mutable_save());
          o->set_snapshot_step(in.snapshot_step);
          o->set_snapshot_epoch(in.snapshot_epoch);
          o->set_directory(in.directory);
          o->set_time_left_ns(ToWire(in.time_left));
          o->set_world_size(in.world_size);
        } else if constexpr (std::is_same_v<T, CommittedOrder>) {
          Fill(in.save, out.mutable_committed()->mutable_save());
        } else if constexpr (std::is_same_v<T, FreeSnapshotsOrder>) {
          auto* o = out.mutable_free_snapshots();
          o->set_below_step(in.below_step);
          o->set_epoch(in.epoch);
          for (const SnapshotName& name : in.drop) {
            auto* drop = o->add_drop();
            drop->set_epoch(name.epoch);
            drop->set_step(name.step);
          }
        } else if constexpr (std::is_same_v<T, ParkWorkersOrder>) {
          out.mutable_park_workers()->set_epoch(in.epoch);
          out.mutable_park_workers()->set_time_left_ns(ToWire(in.time_left));
        } else if constexpr (std::is_same_v<T, StopWorkersOrder>) {
          auto* o = out.mutable_stop_workers();
          o->set_epoch(in.epoch);
          o->set_grace_ns(ToWire(in.grace));
          o->set_reason(Utf8(in.reason));
        } else {
          static_assert(std::is_same_v<T, LeaveOrder>);
          out.mutable_leave()->set_exit_code(in.exit_code);
          out.mutable_leave()->set_reason(Utf8(in.reason));
        }
      },
      order);
  return out;
}

proto::NoticeReply ToProto(const ReplyNotice& reply) {
  proto::NoticeReply out;
  out.set_id(reply.id);
  out.set_accepted(reply.accepted);
  out.set_message(Utf8(reply.message));
  out.set_eta_ns(ToWire(reply.eta));
  out.set_eta_gpu_ns(ToWire(reply.eta_gpu));
  return out;
}

proto::NoticeRecord ToProto(const NoticeRecord& in) {
  proto::NoticeRecord out;
  out.set_id(in.id);
  out.set_reason(Utf8(in.reason));
  out.set_preemptor(Utf8(in.preemptor));
  out.set_time_left_ns(ToWire(in.time_left));
  out.set_predicted_ns(ToWire(in.predicted));
  out.set_agreed_step(in.agreed_step);
  out.set_safe_step(in.safe_step);
  out.set_steps_lost(in.steps_lost);
  out.set_parked_ns(ToWire(in.parked));
  out.set_released_gpu_ns(ToWire(in.released_gpu));
  out.set_committed_ns(ToWire(in.committed));
  out.set_released_node_ns(ToWire(in.released_node));
  out.set_in_time(in.in_time);
  out.set_message(Utf8(in.message));
  out.set_longest_step_ns(ToWire(in.longest_step));
  return out;
}

proto::FailureRecord ToProto(const FailureRecord& in) {
  proto::FailureRecord out;
  out.set_sequence(in.sequence);
  out.set_unix_ms(in.unix_ms);
  out.set_epoch(in.epoch);
  out.set_rank(in.rank);
  out.set_node_id(Utf8(in.node_id));
  out.set_exit_code(in.exit_code);
  out.set_signal(in.signal);
  out.set_message(Utf8(in.message));
  out.set_log_tail(Utf8(in.log_tail));
  out.set_step(in.step);
  out.set_action(Utf8(in.action));
  out.set_steps_redone(in.steps_redone);
  return out;
}

proto::JobOutcome ToProto(const Outcome& in) {
  proto::JobOutcome out;
  out.set_state(OutcomeName(in.state));
  out.set_reason(Utf8(in.reason));
  out.set_retryable(in.retryable);
  out.set_exit_code(in.exit_code);
  return out;
}

proto::MasterStatus StatusOf(const State& state) {
  const Durable& d = state.durable;
  proto::MasterStatus out;
  out.set_job_id(state.config.job_id);
  out.set_state(StatusWord(state));
  out.set_epoch(d.epoch);
  out.set_term(state.term);
  out.set_world_size(state.config.workers);
  out.set_step(std::max(state.max_entered, d.resumed_step));
  out.set_total_steps(d.total_steps);
  out.set_committed_step(d.committed ? d.committed->step : 0);
  out.set_has_commit(d.committed.has_value());
  out.set_directory(d.directory);
  out.set_restarts_used(d.restarts_used);
  out.set_max_restarts(state.config.max_restarts);
  for (const FailureRecord& f : d.failures) *out.add_failures() = ToProto(f);
  for (const NoticeRecord& n : d.notices) *out.add_notices() = ToProto(n);
  out.set_resumed_step(d.resumed_step);
  out.set_resumed_from(d.resumed_known ? d.resumed_from : "");
  return out;
}

NoticeReceived ToEvent(const proto::NoticeRequest& in, uint64_t directive) {
  NoticeReceived out;
  out.id = Clip(in.id(), 256);
  out.reason = Clip(in.reason(), 256);
  out.preemptor = Clip(in.preemptor(), 256);
  out.time_left = FromWire(in.time_left_ns());
  out.directive = directive;
  return out;
}

}  // namespace godwit::master
