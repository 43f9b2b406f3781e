// What agents report: noted in the state here, judged by the phases.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <variant>

#include "base/strings.h"
#include "master/core/machine.h"

namespace godwit::master {

using enum Phase;

void Machine::On(const AgentAttached& e) {
  if (e.node >= s_.nodes.size()) {
    decision_.actions.push_back(
        RefuseAgent{e.node, fmt::format("node index {} is outside of the job's {} nodes (0 to {})",
                                        e.node, s_.nodes.size(), s_.nodes.size() - 1)});
    return;
  }
  NodeInfo& n = s_.nodes[e.node];
  if (n.known && (n.node_id != e.node_id || n.slots != e.slots)) {
    decision_.actions.push_back(
        RefuseAgent{e.node, fmt::format("node index {} is '{}' with {} slots, not '{}' with {}",
                                        e.node, n.node_id, n.slots, e.node_id, e.slots)});
    return;
  }
  if (n.lost) {
    decision_.actions.push_back(
        RefuseAgent{e.node, fmt::format("{} was given up for lost", NodeName(e.node))});
    return;
  }
  n.attached = true;
  n.known = true;
  n.node_id = e.node_id;
  n.slots = e.slots;
  n.last_heard = now_;
  n.reported_epoch = 0;
  n.epoch_sent = false;
  for (const SlotReport& r : e.slot_reports) n.reported_epoch = std::max(n.reported_epoch, r.epoch);
  Say(fmt::format("{} attached with {}", NodeName(e.node), Count(e.slots, "slot")));
  if (s_.ranks.empty()) {
    n.reports = e.slot_reports;  // until it is known which rank is where
    if (s_.phase != kWaiting) SendPhaseOrders(e.node);
    return;
  }
  ApplyReports(e.node, e.slot_reports);
  if (s_.phase == kWaiting) return;
  // It never heard of this epoch, and will not: it has none of its workers.
  if (ExitExpected() && n.reported_epoch < s_.durable.epoch) n.gone = true;
  // It may have missed what was freed meanwhile.
  if (s_.freed_epoch > 0) Send(e.node, FreeSnapshotsOrder{s_.freed_below, s_.freed_epoch, {}});
  SnapshotsChanged();
  if (s_.durable.gates_opened && s_.term > 0 && s_.durable.resume) Send(e.node, MakeResume());
  SendPhaseOrders(e.node);
  for (const SaveInFlight& save : s_.saves) SendPersist(e.node, save);
}

bool Machine::KeepEarly(const Event& event) {
  if (!s_.ranks.empty() || s_.phase != kWaiting) return false;
  if (s_.early.size() < kMaxEarly) s_.early.push_back(event);
  return true;
}

void Machine::ApplyReports(uint32_t node, const std::vector<SlotReport>& reports) {
  for (RankInfo& r : s_.ranks) {
    if (r.node != node) continue;
    r.replies_due = 0;  // what was asked on the stream before
    const auto missing = [&] {
      if (r.started && !r.exited && !r.missing_since && !ExitExpected()) r.missing_since = now_;
    };
    const auto it = std::find_if(reports.begin(), reports.end(),
                                 [&](const SlotReport& s) { return s.slot == r.slot; });
    if (it == reports.end()) {
      missing();
      continue;
    }
    const SlotReport& report = *it;
    r.snapshots.clear();
    for (const Snapshot& s : report.snapshots) {
      if (s.world_size != s_.ranks.size() || s.epoch > s_.durable.epoch) continue;
      if (r.snapshots.size() == kMaxSnapshotsPerRank) break;
      r.snapshots.push_back({s.epoch, s.step, s.bytes, true});
    }
    if (report.epoch != s_.durable.epoch || s_.durable.epoch == 0) {
      missing();
      continue;
    }
    if (report.claimed && report.claim) r.claim = report.claim;
    if (report.pid == 0) {
      missing();
    } else {
      r.started = true;
      r.missing_since.reset();
    }
    if (report.gate) Entered(r, report.gate->entered);
    switch (report.state) {
      case WorkerState::kAtGate:
      case WorkerState::kStaging:
      case WorkerState::kStaged:
        Entered(r, report.at_step);
        r.at_gate = report.at_step;
        break;
      case WorkerState::kFinished:
        Entered(r, report.at_step);
        r.finished = report.at_step;
        break;
      default:
        break;
    }
  }
}

void Machine::On(const AgentDetached& e) {
  if (e.node >= s_.nodes.size() || !s_.nodes[e.node].attached) return;
  NodeInfo& n = s_.nodes[e.node];
  n.attached = false;
  n.last_heard = now_;
  // Its next Hello says all of this again.
  std::erase_if(s_.early, [&](const Event& event) {
    return std::visit(
        [&](const auto& early) {
          if constexpr (requires { early.node; }) return early.node == e.node;
          return false;
        },
        event);
  });
  for (RankInfo& r : s_.ranks) {
    if (r.node == e.node) r.replies_due = 0;
  }
  Say(fmt::format("{} detached", NodeName(e.node)));
}

void Machine::On(const Heartbeat& e) {
  if (e.node >= s_.nodes.size() || !s_.nodes[e.node].attached) return;
  s_.nodes[e.node].last_heard = now_;
  for (const RankProgress& p : e.ranks) {
    RankInfo* r = Mine(e.node, p.epoch, p.rank);
    if (r == nullptr) continue;
    Entered(*r, p.entered);
    s_.measured.longest_step = std::max({s_.measured.longest_step, p.step_longest, p.in_step});
    s_.measured.snapshot_bytes = std::max(s_.measured.snapshot_bytes, p.snapshot_bytes);
  }
  SnapshotsChanged();
}

void Machine::On(const WorkerStarted& e) {
  if (KeepEarly(e)) return;
  if (RankInfo* r = Mine(e.node, e.epoch, e.rank)) {
    r->started = true;
    r->missing_since.reset();
    s_.nodes[e.node].reported_epoch = std::max(s_.nodes[e.node].reported_epoch, e.epoch);
  }
}

void Machine::On(const WorkerClaimed& e) {
  if (KeepEarly(e)) return;
  if (RankInfo* r = Mine(e.node, e.epoch, e.rank)) {
    r->started = true;
    r->claim = e.claim;
  }
}

void Machine::On(const WorkerExited& e) {
  if (KeepEarly(e)) return;
  RankInfo* r = Mine(e.node, e.epoch, e.rank);
  if (r == nullptr || r->exited) return;
  r->exited = true;
  r->missing_since.reset();
  Entered(*r, e.entered);
  if (ExitExpected()) return;
  const bool ok = e.exit_code == 0 && e.signal == 0;
  if (ok && s_.phase == kStarting && !r->claim) {
    r->exited_ok = true;
    s_.durable.exited_ok.push_back(e.rank);
    return;
  }
  if (s_.phase == kFinishing && WholeOnAll(s_, s_.durable.epoch, *r->finished)) {
    return;  // all that it had to give is in snapshot memory
  }
  FailureRecord record;
  record.rank = e.rank;
  record.exit_code = e.exit_code;
  record.signal = e.signal;
  record.log_tail = e.log_tail;
  record.step = e.entered;
  const std::string how = e.signal != 0 ? fmt::format("was killed by signal {}", e.signal)
                                        : fmt::format("exited with {}", e.exit_code);
  record.message =
      fmt::format("{} {}{}{}", RankName(e.rank), how, ok ? " before its last step" : "",
                  e.message.empty() ? "" : ": " + e.message);
  // The code that the worker's status begins with (runtime/run.cc TryRestore).
  Failure(std::move(record), e.exit_code == 78, e.message.starts_with("DATA_LOSS: "));
}

void Machine::On(const GateReplied& e) {
  if (KeepEarly(e)) return;
  RankInfo* r = Mine(e.node, e.epoch, e.rank);
  if (r == nullptr) return;
  Entered(*r, e.gate.entered);
  if (r->replies_due > 0) --r->replies_due;
  if (s_.phase == kClosing && r->replies_due == 0) r->gate = e.gate;
}

void Machine::On(const WorkerAtGate& e) {
  if (KeepEarly(e)) return;
  RankInfo* r = Mine(e.node, e.epoch, e.rank);
  if (r == nullptr) return;
  r->at_gate = e.step;
  Entered(*r, e.step);
}

void Machine::On(const SnapshotWhole& e) {
  if (KeepEarly(e)) return;
  if (e.rank >= s_.ranks.size() || s_.ranks[e.rank].node != e.node) return;
  const Snapshot& snapshot = e.snapshot;
  if (snapshot.epoch == 0 || snapshot.epoch > s_.durable.epoch ||
      snapshot.world_size != s_.ranks.size() ||
      SnapshotName{snapshot.epoch, snapshot.step} < SnapshotName{s_.freed_epoch, s_.freed_below}) {
    return;
  }
  // Late news of one that was dropped meanwhile.
  const SnapshotName name{snapshot.epoch, snapshot.step};
  if (std::find(s_.dropped.begin(), s_.dropped.end(), name) != s_.dropped.end()) {
    return Send(e.node, FreeSnapshotsOrder{s_.freed_below, s_.freed_epoch, {name}});
  }
  RankInfo& r = s_.ranks[e.rank];
  for (const WholeSnapshot& s : r.snapshots) {
    if (s.epoch == snapshot.epoch && s.step == snapshot.step) return;
  }
  if (r.snapshots.size() == kMaxSnapshotsPerRank) r.snapshots.erase(r.snapshots.begin());
  r.snapshots.push_back({snapshot.epoch, snapshot.step, snapshot.bytes, true});
  if (snapshot.epoch == s_.durable.epoch) Entered(r, snapshot.step);
  s_.measured.snapshot_bytes = std::max(s_.measured.snapshot_bytes, snapshot.bytes);
  SnapshotsChanged();
}

void Machine::On(const WorkerFinished& e) {
  if (KeepEarly(e)) return;
  RankInfo* r = Mine(e.node, e.epoch, e.rank);
  if (r == nullptr) return;
  r->finished = e.step;
  Entered(*r, e.step);
}

void Machine::On(const KeeperLost& e) {
  if (KeepEarly(e)) return;
  if (e.node >= s_.nodes.size() || s_.ranks.empty()) return;
  // Without a worker of this epoch it was an earlier keeper: the loss is known, or costs nothing.
  // Once all ranks have finished, snapshot memory alone is the loss.
  const bool only_memory = s_.phase == kFinishing;
  bool first = std::any_of(s_.ranks.begin(), s_.ranks.end(), [&](const RankInfo& r) {
    return r.node == e.node && r.started && (!r.exited || only_memory);
  });
  for (uint32_t i = 0; i < s_.ranks.size(); ++i) {
    RankInfo& r = s_.ranks[i];
    if (r.node != e.node) continue;
    r.exited |= r.started;
    r.missing_since.reset();
    for (WholeSnapshot& s : r.snapshots) s.restorable = false;
    if (!first) continue;
    first = false;
    if (ExitExpected()) continue;
    FailureRecord record;
    record.rank = i;
    record.step = r.entered;
    record.message = fmt::format("the keeper of {} died, and its workers with it{}{}",
                                 NodeName(e.node), e.message.empty() ? "" : ": ", e.message);
    Failure(std::move(record), false);
  }
  if (ExitExpected()) s_.nodes[e.node].gone = true;
}

void Machine::On(const WorkersGone& e) {
  if (e.node >= s_.nodes.size() || e.epoch != s_.durable.epoch) return;
  if (!ExitExpected()) return;  // an answer to an order that was given before this phase
  s_.nodes[e.node].gone = true;
}

void Machine::On(const OrderFailed& e) {
  if (e.node >= s_.nodes.size() || e.epoch != s_.durable.epoch) return;
  std::string order;  // "StartEpoch", "start_epoch" and so on
  for (const char c : e.order) {
    if (c != '_') order += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const std::string what =
      fmt::format("{}: {} failed: {}", NodeName(e.node), e.order, e.status.message());
  if (order == "startepoch" && s_.phase == kStarting) {
    switch (e.status.code()) {
      case StatusCode::kNotFound:
      case StatusCode::kPermissionDenied:
      case StatusCode::kInvalidArgument:
        return Fail(fmt::format("{}: {}", NodeName(e.node), e.status.message()), false, 1);
      default: {
        FailureRecord record;
        if (e.rank < s_.ranks.size() && s_.ranks[e.rank].node == e.node) record.rank = e.rank;
        record.message = what;
        return Failure(std::move(record), false);
      }
    }
  }
  Tell("alarm", what);
  if (order == "stageat" && s_.phase == kStaging && s_.durable.notice) return Abandon(what);
}

}  // namespace godwit::master
