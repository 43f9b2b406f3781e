#include "master/core/machine.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"

namespace godwit::master {

using enum Phase;

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

Machine::Machine(State& state, MonotonicTime now, uint64_t wall_unix_ms, Decision& decision)
    : s_(state), now_(now), wall_unix_ms_(wall_unix_ms), decision_(decision) {}

// ---- small things ----

void Machine::Say(std::string why) {
  if (!decision_.reason.empty()) decision_.reason += "; ";
  decision_.reason += std::move(why);
}

void Machine::Send(uint32_t node, Order order) {
  if (s_.nodes[node].attached) decision_.actions.push_back(SendOrder{node, std::move(order)});
}

void Machine::SendAll(const Order& order) {
  for (uint32_t n = 0; n < s_.nodes.size(); ++n) Send(n, order);
}

void Machine::Tell(std::string kind, std::string message, std::string data_json) {
  decision_.actions.push_back(
      ReportEvent{std::move(kind), std::move(message), std::move(data_json)});
}

void Machine::Arm(TimerId id, MonotonicTime at) { s_.timers[static_cast<size_t>(id)] = at; }
void Machine::Disarm(TimerId id) { s_.timers[static_cast<size_t>(id)].reset(); }
bool Machine::Armed(TimerId id) const { return s_.timers[static_cast<size_t>(id)].has_value(); }

std::string Machine::NodeName(uint32_t node) const {
  const std::string& id = s_.nodes[node].node_id;
  return id.empty() ? fmt::format("node {}", node) : fmt::format("node {} ({})", node, id);
}

std::string Machine::RankName(uint32_t rank) const {
  return fmt::format("rank {} on {}", rank, NodeName(s_.ranks[rank].node));
}

bool Machine::InNoticePhase() const {
  switch (s_.phase) {
    case kClosing:
    case kLimiting:
    case kStaging:
    case kParking:
    case kCommitting:
    case kAbandoning:
      return true;
    default:
      return false;
  }
}

// Whether the end of a worker is what was asked for, so that it is no failure.
bool Machine::ExitExpected() const {
  switch (s_.phase) {
    case kRestarting:
    case kParking:
    case kCommitting:
    case kAbandoning:
    case kFailing:
    case kLeaving:
    case kEnded:
      return true;
    case kFinishing:
      return s_.exit_ordered_at.has_value();
    default:
      return false;
  }
}

RankInfo* Machine::Mine(uint32_t node, uint64_t epoch, uint32_t rank) {
  if (epoch != s_.durable.epoch || rank >= s_.ranks.size()) return nullptr;
  RankInfo& r = s_.ranks[rank];
  return r.node == node ? &r : nullptr;
}

void Machine::Entered(RankInfo& rank, uint64_t entered) {
  rank.entered = std::max(rank.entered, entered);
  s_.max_entered = std::max(s_.max_entered, entered);
}

bool Machine::AllGone() const {
  return std::all_of(s_.nodes.begin(), s_.nodes.end(), [](const NodeInfo& n) {
    return n.gone || n.lost || (!n.known && !n.attached);
  });
}

bool Machine::AllAttached() const {
  return std::all_of(s_.nodes.begin(), s_.nodes.end(),
                     [](const NodeInfo& n) { return n.attached; });
}

bool Machine::AllFinished() const {
  return !s_.ranks.empty() && std::all_of(s_.ranks.begin(), s_.ranks.end(),
                                          [](const RankInfo& r) { return r.finished.has_value(); });
}

// ---- phases ----

void Machine::Enter(Phase to, std::string why) {
  if (!IsTransition(s_.phase, to)) {
    internal::CheckFailed(
        __FILE__, __LINE__,
        fmt::format("no transition {} -> {}: {}", PhaseName(s_.phase), PhaseName(to), why));
  }
  Say(fmt::format("{} -> {}: {}", PhaseName(s_.phase), PhaseName(to), why));
  s_.phase = to;
  Disarm(TimerId::kPhase);
  Disarm(TimerId::kClaim);
  // What the phase before waited for a save is no matter of this one; what runs, runs on.
  if (to != kCommitting) {
    s_.save_failures = 0;
    s_.save_given_up = false;
    Disarm(TimerId::kSaveRetry);
  }
  if (to != kParking && to != kCommitting) s_.exit_ordered_at.reset();
  switch (to) {
    case kStarting:
      Arm(TimerId::kPhase, SaturatingAdd(now_, timeouts().start));
      break;
    case kRestoring:
      Arm(TimerId::kPhase, SaturatingAdd(now_, timeouts().restore));
      break;
    case kRestarting:
      Arm(TimerId::kPhase, SaturatingAdd(now_, timeouts().stop));
      break;
    case kParking:
      s_.exit_ordered_at = now_;
      // Workers that do not go by themselves are killed: their snapshot is whole, nothing is lost.
      Arm(TimerId::kPhase, SaturatingAdd(now_, std::min(timeouts().stop / 3, TimeLeft() / 2)));
      break;
    case kFinishing:
      Arm(TimerId::kPhase, SaturatingAdd(now_, timeouts().finish));
      break;
    case kFailing:
      Arm(TimerId::kPhase, SaturatingAdd(now_, 2 * timeouts().stop));
      break;
    case kLeaving:
      Arm(TimerId::kPhase, SaturatingAdd(now_, timeouts().leave));
      break;
    default:
      break;
  }
  if (to == kClosing) {
    for (RankInfo& r : s_.ranks) {
      r.gate.reset();
      r.at_gate.reset();
    }
  }
  if (to == kStaging) {
    s_.stage_ordered_at = now_;
    SnapshotsChanged();  // what is in the way of S goes
  }
  for (uint32_t n = 0; n < s_.nodes.size(); ++n) SendPhaseOrders(n);
}

// What an agent has to know of the present phase: sent when the phase begins, and again when an
// agent attaches. All of these may be heard twice.
void Machine::SendPhaseOrders(uint32_t node) {
  NodeInfo& n = s_.nodes[node];
  if (!n.attached) return;
  const uint64_t epoch = s_.durable.epoch;
  switch (s_.phase) {
    case kWaiting:
    case kCommitting:
      return;
    case kStarting:
    case kRestoring: {
      if (n.reported_epoch < epoch && !n.epoch_sent) {
        StartEpochOrder order;
        order.epoch = epoch;
        order.world_size = static_cast<uint32_t>(s_.ranks.size());
        order.restart_count = s_.durable.restarts_used;
        for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
          if (s_.ranks[r].node == node) order.ranks.push_back({s_.ranks[r].slot, r});
        }
        n.epoch_sent = true;
        Send(node, std::move(order));
      }
      if (s_.phase == kRestoring) Send(node, MakeResume());
      return;
    }
    case kRunning:
      Send(node, OpenGatesOrder{epoch});
      return;
    case kClosing:
      for (RankInfo& r : s_.ranks) {
        if (r.node == node) ++r.replies_due;
      }
      Send(node, CloseGatesOrder{epoch});
      return;
    case kLimiting:
      Send(node, SetLimitOrder{epoch, s_.agreed_step});
      return;
    case kStaging:
      Send(node, StageAtOrder{epoch, s_.agreed_step});
      return;
    case kParking:
      Send(node, ParkWorkersOrder{epoch, TimeLeft()});
      return;
    case kFinishing:
      if (s_.exit_ordered_at) Send(node, ParkWorkersOrder{epoch, timeouts().stop / 3});
      return;
    case kRestarting:
    case kFailing:
      if (epoch > 0) {
        Send(node, StopWorkersOrder{
                       epoch, timeouts().kill_grace,
                       s_.phase == kFailing ? s_.fail_reason : "the worker group starts again"});
      }
      return;
    case kAbandoning: {
      if (epoch == 0) return;
      // A program without the library gets the time that there is to save by itself.
      const bool claimed = std::any_of(s_.ranks.begin(), s_.ranks.end(),
                                       [](const RankInfo& r) { return r.claim.has_value(); });
      const Duration room = std::max(TimeLeft() - timeouts().kill_grace, Duration(0));
      const Duration grace = claimed ? std::min(timeouts().kill_grace, room / 4) : room;
      Send(node, StopWorkersOrder{epoch, grace, "the job leaves"});
      return;
    }
    case kLeaving:
    case kEnded:  // a scheduler that did not see it end has started it again
      Send(node, LeaveOrder{s_.durable.outcome->exit_code, s_.durable.outcome->reason});
      return;
  }
}

void Machine::StepPhase() {
  switch (s_.phase) {
    case kWaiting:
      return StepWaiting();
    case kStarting:
      return StepStarting();
    case kRestoring:
      return StepRestoring();
    case kRunning:
      return StepRunning();
    case kRestarting:
      return StepRestarting();
    case kClosing:
      return StepClosing();
    case kLimiting:
      return StepLimiting();
    case kStaging:
      return StepStaging();
    case kParking:
      return StepParking();
    case kCommitting:
      return StepCommitting();
    case kAbandoning:
      return StepAbandoning();
    case kFinishing:
      return StepFinishing();
    case kFailing:
      return StepFailing();
    case kLeaving:
      return StepLeaving();
    case kEnded:
      return;
  }
}

void Machine::Settle() {
  for (;;) {
    const Phase before = s_.phase;
    StepPhase();
    if (s_.phase == before) break;
  }
  // Bounds that depend on the whole state.
  Disarm(TimerId::kAgents);
  Disarm(TimerId::kMissing);
  Disarm(TimerId::kSave);
  if (s_.phase == kLeaving || s_.phase == kEnded) {
    Disarm(TimerId::kStorage);
    Disarm(TimerId::kSaveRetry);
    Disarm(TimerId::kFallback);
    Disarm(TimerId::kGiveUp);
    return;
  }
  const auto earliest = [this](TimerId id, MonotonicTime at) {
    if (auto& timer = s_.timers[static_cast<size_t>(id)]; !timer || at < *timer) timer = at;
  };
  for (const NodeInfo& n : s_.nodes) {
    if (n.known && !n.lost) earliest(TimerId::kAgents, LostAt(n));
  }
  for (const RankInfo& r : s_.ranks) {
    if (r.missing_since) {
      earliest(TimerId::kMissing, SaturatingAdd(*r.missing_since, timeouts().missing_exit));
    }
  }
  for (const SaveInFlight& save : s_.saves) earliest(TimerId::kSave, save.limit);
}

void Machine::StepWaiting() {
  if (s_.durable.outcome) {
    // What was said of it may have died with the last master.
    for (const NoticeRecord& record : s_.durable.notices) {
      decision_.actions.push_back(ReportReleased{record.id, true});
      decision_.actions.push_back(ReportNotice{record});
    }
    return Enter(kLeaving, "the outcome is known: " + s_.durable.outcome->reason);
  }
  if (s_.durable.epoch == 0 && s_.durable.notice) {
    return LeaveOnNotice("no worker had been started");
  }
  if (!AllAttached()) return;
  if (!DealRanks()) return;
  if (s_.durable.epoch == 0) {
    BeginNextEpoch("all agents are there");
  } else {
    Adopt();
  }
  const std::vector<Event> early = std::move(s_.early);
  s_.early.clear();
  for (const Event& event : early) {
    std::visit([this](const auto& e) { On(e); }, event);
  }
}

void Machine::StepStarting() {
  if (s_.durable.notice) return Abandon("the workers had not started their steps");
  size_t started = 0, claimed = 0, exited_ok = 0;
  for (const RankInfo& r : s_.ranks) {
    started += r.started || r.claim || r.exited;
    claimed += r.claim.has_value();
    exited_ok += r.exited_ok;
  }
  if (started == s_.ranks.size()) Disarm(TimerId::kPhase);
  if (claimed == 0 && exited_ok == s_.ranks.size()) {
    return Conclude(OutcomeState::kSucceeded, "all workers ended with exit code 0", false, 0);
  }
  if (claimed > 0 && exited_ok > 0) {
    for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
      if (!s_.ranks[r].exited_ok) continue;
      FailureRecord record;
      record.rank = r;
      record.message = fmt::format(
          "{} exited with 0 without joining the run that other ranks joined", RankName(r));
      return Failure(std::move(record), false);
    }
  }
  if (claimed == 0) return;
  if (claimed < s_.ranks.size()) {
    if (!Armed(TimerId::kClaim)) Arm(TimerId::kClaim, SaturatingAdd(now_, timeouts().claim));
    return;
  }
  Disarm(TimerId::kClaim);
  if (!CheckClaims()) return;
  if (!EnsureTerm()) return;
  if (!s_.durable.resume) {
    // What is being committed right now may be what to go on from.
    if (std::any_of(s_.saves.begin(), s_.saves.end(),
                    [](const SaveInFlight& save) { return save.committing; })) {
      return;
    }
    DecideResume();
  } else if (s_.durable.resume->kind == ResumeKind::kStorage && s_.durable.committed &&
             *s_.durable.committed != s_.durable.resume->save) {
    // The new term goes on from a commit that is newer than what some ranks may have restored.
    s_.durable.restarting = true;
    return Enter(kRestarting, "a newer commit was found than the workers were told to restore");
  }
  s_.max_entered = std::max(s_.max_entered, s_.durable.resumed_step);
  Enter(kRestoring, s_.durable.resumed_from);
}

void Machine::StepRestoring() {
  if (s_.durable.notice) return Abandon("the workers had not started their steps");
  std::optional<uint64_t> step;
  uint32_t first = 0;
  for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
    const RankInfo& rank = s_.ranks[r];
    const std::optional<uint64_t> at = rank.finished ? rank.finished : rank.at_gate;
    if (!at) return;
    if (!step) {
      step = at;
      first = r;
    } else if (*at != *step) {
      return Fail(fmt::format("after restoring, {} stands at step {} and {} at step {}: all ranks "
                              "must stand at the same one",
                              RankName(first), *step, RankName(r), *at),
                  false, 78);
    }
  }
  if (const uint64_t expected = s_.durable.resumed_step; *step != expected) {
    return Fail(fmt::format("after restoring ({}) the ranks stand at step {} instead of {}",
                            s_.durable.resumed_from, *step, expected),
                false, 78);
  }
  s_.memory_failures = 0;
  if (AllFinished()) return Enter(kFinishing, "the run's last step is done already");
  if (std::any_of(s_.ranks.begin(), s_.ranks.end(),
                  [](const RankInfo& r) { return r.finished.has_value(); })) {
    return;  // the others are about to say the same
  }
  s_.durable.gates_opened = true;
  Enter(kRunning, fmt::format("all ranks stand at step {}", *step));
}

void Machine::StepRunning() {
  if (AllFinished()) return Enter(kFinishing, "all ranks finished");
  if (s_.durable.notice) return BeginClosing();
  MaybePersist();
}

void Machine::StepRestarting() {
  if (s_.durable.notice) return Abandon("the workers were being restarted after a failure");
  if (!AllGone()) return;
  // What only an agent still holds (its keeper died) can't be restored from memory: store it first.
  const auto any = NewestWhole(s_, /*restorable=*/false);
  const auto restorable = NewestWhole(s_, /*restorable=*/true);
  const bool only_agents_hold =
      any && (!restorable || restorable->step < any->step) && any->step > CommittedStep();
  if (only_agents_hold && AllAttached() && !EnsureSave(*any, /*urgent=*/true)) return;
  BeginNextEpoch("all workers of the last epoch are gone");
}

void Machine::StepClosing() {
  if (AllFinished()) return Enter(kFinishing, "all ranks finished");
  if (!s_.durable.notice) {
    // An answer to these CloseGates must not be taken for one to the next.
    for (const RankInfo& r : s_.ranks) {
      if (r.replies_due > 0 && s_.nodes[r.node].attached) return;
    }
    return Enter(kRunning, "the notice was rescinded");
  }
  uint64_t limit = 0;
  for (const RankInfo& r : s_.ranks) {
    if (!r.gate && !r.finished) return;
    limit = std::max(limit, r.finished.value_or(r.gate ? r.gate->entered : 0));
    if (r.gate) limit = std::max(limit, r.gate->entered);
  }
  s_.agreed_step = limit;
  Enter(kLimiting, fmt::format("S = {}, the largest of {} answers", limit, s_.ranks.size()));
}

void Machine::StepLimiting() {
  if (AllFinished()) return Enter(kFinishing, "all ranks finished");
  if (!s_.durable.notice) return Enter(kRunning, "the notice was rescinded");
  // A rank beyond S would mean that its answer was overtaken: gates are closed, so S can still
  // rise.
  uint64_t limit = s_.agreed_step;
  for (const RankInfo& r : s_.ranks) limit = std::max(limit, r.at_gate.value_or(0));
  if (limit > s_.agreed_step) {
    Say(fmt::format("S rises from {} to {}", s_.agreed_step, limit));
    s_.agreed_step = limit;
    for (uint32_t n = 0; n < s_.nodes.size(); ++n) SendPhaseOrders(n);
  }
  bool all_there = true;
  for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
    const RankInfo& rank = s_.ranks[r];
    if (rank.finished && *rank.finished < limit) {
      return Fail(fmt::format("{} finished the run at step {}, another rank entered step {}: the "
                              "number of steps must be the same on all ranks",
                              RankName(r), *rank.finished, limit),
                  false, 1);
    }
    all_there &= rank.at_gate == limit;
  }
  if (!all_there) return;
  s_.durable.notice->agreed = limit;
  s_.durable.notice->parked_at = now_;
  Tell("parked", fmt::format("all ranks stand at step {}", limit),
       fmt::format("{{\"step\":{}}}", limit));
  Enter(kStaging, fmt::format("all ranks stand at S = {}", limit));
}

void Machine::StepStaging() {
  if (!s_.durable.notice) return Enter(kRunning, "the notice was rescinded");
  const uint64_t step = s_.agreed_step;
  const bool stored =
      s_.durable.directory.empty() || (s_.durable.committed && s_.durable.committed->step == step);
  const auto whole = NewestWhole(s_, false);
  if (!stored && !(whole && whole->step == step)) return;
  if (!stored) {
    const Duration took = now_ - s_.stage_ordered_at;
    s_.measured.stage = std::max(s_.measured.stage, took);
  }
  s_.durable.notice->parking = true;
  Enter(kParking, stored ? fmt::format("step {} needs no snapshot", step)
                         : fmt::format("step {} is whole on all ranks", step));
}

void Machine::StepParking() {
  const bool saved = SaveStepSettled(s_.agreed_step);
  if (!AllGone()) return;
  if (s_.exit_ordered_at) {
    s_.measured.exit = std::max(s_.measured.exit, now_ - *s_.exit_ordered_at);
  }
  if (s_.restart_wanted) return BeginNextEpoch("the notice was rescinded: again in place");
  NoteReleasedGpu();
  if (saved) return LeaveOnNotice("");
  Enter(kCommitting, "workers gone");
}

void Machine::StepCommitting() {
  if (s_.restart_wanted) return BeginNextEpoch("the notice was rescinded: again in place");
  if (SaveStepSettled(s_.agreed_step)) LeaveOnNotice("");
}

void Machine::StepAbandoning() {
  const auto whole = NewestWhole(s_, false);
  const bool saved =
      !whole || whole->step <= CommittedStep() || EnsureSave(*whole, /*urgent=*/true);
  if (!AllGone()) return;
  if (s_.restart_wanted) return BeginNextEpoch("the notice was rescinded: again in place");
  NoteReleasedGpu();
  if (saved) LeaveOnNotice("");
}

void Machine::StepFinishing() {
  const uint64_t total = s_.ranks.front().finished.value_or(0);
  for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
    if (s_.ranks[r].finished != total) {
      return Fail(fmt::format("{} finished the run at step {}, {} at step {}: the number of steps "
                              "must be the same on all ranks",
                              RankName(0), total, RankName(r), s_.ranks[r].finished.value_or(0)),
                  false, 1);
    }
  }
  if (!s_.exit_ordered_at) {
    if (!s_.durable.directory.empty() && CommittedStep() != total) {
      const auto whole = NewestWhole(s_, false);
      if (!whole || whole->step != total) return;
      if (!EnsureSave(*whole, s_.durable.notice.has_value())) return;
      if (CommittedStep() != total) {
        return Fail(fmt::format("the final checkpoint (step {}) could not be written to {}", total,
                                s_.durable.directory),
                    true, 1);
      }
    }
    s_.exit_ordered_at = now_;
    Arm(TimerId::kPhase, SaturatingAdd(now_, timeouts().stop / 3));
    for (uint32_t n = 0; n < s_.nodes.size(); ++n) SendPhaseOrders(n);
  }
  if (!AllGone()) return;
  Tell("finished", fmt::format("all {} steps are done", total));
  Conclude(OutcomeState::kSucceeded, fmt::format("all {} steps are done", total), false, 0);
}

void Machine::StepFailing() {
  const auto whole = NewestWhole(s_, false);
  const bool saved = !whole || whole->step <= CommittedStep() || !AllAttached() ||
                     EnsureSave(*whole, /*urgent=*/true);
  if (!AllGone() || !saved) return;
  Conclude(OutcomeState::kFailed, s_.fail_reason, s_.fail_retryable, s_.fail_exit_code);
}

void Machine::StepLeaving() {
  if (std::any_of(s_.nodes.begin(), s_.nodes.end(), [](const NodeInfo& n) { return n.attached; })) {
    return;
  }
  // Agents that this master has never seen may still come for their Leave.
  if (Armed(TimerId::kPhase) &&
      std::any_of(s_.nodes.begin(), s_.nodes.end(), [](const NodeInfo& n) { return !n.known; })) {
    return;
  }
  Enter(kEnded, "all agents have left");
  decision_.actions.push_back(EndMaster{*s_.durable.outcome});
}

void Machine::PhaseTimeout() {
  const auto failure = [this](uint32_t rank, std::string message) {
    FailureRecord record;
    record.rank = rank;
    record.message = std::move(message);
    Failure(std::move(record), false);
  };
  switch (s_.phase) {
    case kWaiting: {
      std::string missing;
      for (uint32_t n = 0; n < s_.nodes.size(); ++n) {
        if (s_.nodes[n].attached) continue;
        if (!missing.empty()) missing += ", ";
        missing += NodeName(n);
      }
      return Fail(fmt::format("no agent attached within {} s: {}",
                              timeouts().attach / std::chrono::seconds(1), missing),
                  true, 1);
    }
    case kStarting:
      for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
        const RankInfo& rank = s_.ranks[r];
        if (rank.started || rank.claim || rank.exited) continue;
        return failure(r, fmt::format("{} was not started within {} s", RankName(r),
                                      timeouts().start / std::chrono::seconds(1)));
      }
      return;
    case kRestoring:
      for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
        if (s_.ranks[r].at_gate || s_.ranks[r].finished) continue;
        return failure(r, fmt::format("{} did not restore within {} s", RankName(r),
                                      timeouts().restore / std::chrono::seconds(1)));
      }
      return;
    case kRestarting:
      for (uint32_t n = 0; n < s_.nodes.size(); ++n) {
        if (s_.nodes[n].gone) continue;
        return Fail(fmt::format("{} did not stop its workers within {} s", NodeName(n),
                                timeouts().stop / std::chrono::seconds(1)),
                    true, 1);
      }
      if (!s_.saves.empty()) {  // the rescue of what only an agent holds
        s_.save_given_up = true;
        Tell("alarm", "the newest snapshot could not be stored before the restart");
      }
      return;
    case kParking:
      Say("workers did not exit by themselves");
      for (uint32_t n = 0; n < s_.nodes.size(); ++n) {
        if (!s_.nodes[n].gone) {
          Send(n, StopWorkersOrder{s_.durable.epoch, Duration(0), "did not exit when parked"});
        }
      }
      return;
    case kFinishing:
      if (s_.exit_ordered_at) {
        Say("workers did not exit by themselves");
        for (uint32_t n = 0; n < s_.nodes.size(); ++n) {
          if (!s_.nodes[n].gone) {
            Send(n, StopWorkersOrder{s_.durable.epoch, Duration(0), "did not exit when finished"});
          }
        }
        if (!AllGone()) Arm(TimerId::kPhase, SaturatingAdd(now_, timeouts().stop));
        // The final checkpoint is safe: a worker that can't be ended is its node's trouble.
        if (now_ - *s_.exit_ordered_at >= timeouts().stop) {
          for (NodeInfo& n : s_.nodes) n.gone = true;
        }
        return;
      }
      return Fail("the final checkpoint was not committed in time", true, 1);
    case kFailing:
      Conclude(OutcomeState::kFailed, s_.fail_reason, s_.fail_retryable, s_.fail_exit_code);
      return;
    case kLeaving:
      for (NodeInfo& n : s_.nodes) {
        n.attached = false;
        n.known = true;
      }
      return;
    default:
      return;
  }
}

void Machine::On(const Tick&) {
  const auto due = [this](TimerId id) {
    auto& timer = s_.timers[static_cast<size_t>(id)];
    if (!timer || *timer > now_) return false;
    timer.reset();
    return true;
  };
  if (due(TimerId::kGiveUp) && s_.durable.notice) {
    if (InNoticePhase() || s_.phase == kWaiting || s_.phase == kFinishing) {
      if (!AllGone()) {
        SendAll(StopWorkersOrder{s_.durable.epoch, Duration(0), "the notice's time is up"});
      }
      LeaveOnNotice(s_.phase == kAbandoning || s_.phase == kFinishing || s_.phase == kWaiting
                        ? "the save was not committed in time"
                        : fmt::format("the time was up while {}", PhaseName(s_.phase)));
    } else if (s_.phase == kFailing) {
      Conclude(OutcomeState::kFailed, s_.fail_reason, s_.fail_retryable, s_.fail_exit_code);
    }
  }
  if (due(TimerId::kFallback) && s_.durable.notice &&
      (s_.phase == kClosing || s_.phase == kLimiting || s_.phase == kStaging)) {
    std::string late;
    for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
      const RankInfo& rank = s_.ranks[r];
      const bool there = s_.phase == kClosing ? rank.gate.has_value() || rank.finished.has_value()
                                              : rank.at_gate == s_.agreed_step;
      if (s_.phase != kStaging && there) continue;
      if (s_.phase == kStaging && WholeOnAll(s_, s_.durable.epoch, s_.agreed_step)) continue;
      late = RankName(r);
      break;
    }
    const std::string what =
        s_.phase == kClosing ? fmt::format("{} did not answer in time", late)
        : s_.phase == kLimiting
            ? fmt::format("{} did not reach step {} in time", late, s_.agreed_step)
            : fmt::format("step {} was not staged in time", s_.agreed_step);
    const auto whole = NewestWhole(s_, false);
    if (whole && whole->step > CommittedStep() && !s_.durable.directory.empty()) {
      Abandon(what);
    } else {
      s_.durable.notice->message = what + ", and no snapshot newer than the last commit is whole";
      Say(s_.durable.notice->message);
    }
  }
  if (due(TimerId::kPhase)) PhaseTimeout();
  if (due(TimerId::kClaim) && s_.phase == kStarting) {
    for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
      if (s_.ranks[r].claim) continue;
      FailureRecord record;
      record.rank = r;
      record.message = fmt::format("{} did not join within {} s of the first rank", RankName(r),
                                   timeouts().claim / std::chrono::seconds(1));
      Failure(std::move(record), false);
      break;
    }
  }
  if (due(TimerId::kAgents)) {
    for (uint32_t n = 0; n < s_.nodes.size(); ++n) {
      NodeInfo& node = s_.nodes[n];
      if (!node.known || node.lost || now_ < LostAt(node)) continue;
      LoseNode(n, fmt::format("{} was out of reach for {} ms", NodeName(n),
                              (now_ - node.last_heard) / std::chrono::milliseconds(1)));
    }
  }
  if (due(TimerId::kMissing)) {
    for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
      RankInfo& rank = s_.ranks[r];
      if (!rank.missing_since ||
          now_ < SaturatingAdd(*rank.missing_since, timeouts().missing_exit)) {
        continue;
      }
      rank.missing_since.reset();
      rank.exited = true;
      if (ExitExpected()) continue;
      FailureRecord record;
      record.rank = r;
      record.step = rank.entered;
      record.message = fmt::format("{} is gone, and nobody saw how it ended", RankName(r));
      Failure(std::move(record), false);
    }
  }
  if (due(TimerId::kStorage)) {
    if (s_.term_status != TermStatus::kHeld) {
      s_.term_status = TermStatus::kNone;
      if (s_.phase != kStarting) EnsureTerm();  // else StepStarting asks
    }
  }
  if (due(TimerId::kSave)) {
    for (size_t i = s_.saves.size(); i-- > 0;) {
      if (s_.saves[i].limit <= now_) SaveFailed(i, "it took too long", /*retry_helps=*/false);
    }
  }
  if (due(TimerId::kSaveRetry)) {
    for (SaveInFlight& save : s_.saves) CommitIfWhole(save);
  }
}

}  // namespace godwit::master
