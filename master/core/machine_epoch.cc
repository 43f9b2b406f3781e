// Epochs: who takes part, from where they resume, and what ends one.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "master/core/machine.h"

namespace godwit::master {

using enum Phase;

namespace {

bool Transient(StatusCode code) {
  switch (code) {
    case StatusCode::kUnavailable:
    case StatusCode::kUnknown:
    case StatusCode::kAborted:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
    case StatusCode::kCancelled:
      return true;
    default:
      return false;
  }
}

std::string Seconds(Duration d) {
  return fmt::format("{} s", std::chrono::duration_cast<std::chrono::seconds>(d).count());
}

}  // namespace

// Ranks go by (node index, slot), so that the same nodes always give the same ranks.
bool Machine::DealRanks() {
  uint64_t slots = 0;
  for (const NodeInfo& n : s_.nodes) slots += n.slots;
  if (slots < s_.config.workers) {
    Fail(fmt::format("the job needs {}, on {} there is room for {}",
                     Count(s_.config.workers, "worker"), Count(s_.nodes.size(), "node"), slots),
         false, 78);
    return false;
  }
  for (uint32_t n = 0; n < s_.nodes.size(); ++n) {
    for (uint32_t slot = 0; slot < s_.nodes[n].slots && s_.ranks.size() < s_.config.workers;
         ++slot) {
      RankInfo r;
      r.node = n;
      r.slot = slot;
      s_.ranks.push_back(std::move(r));
    }
  }
  // A journal that could not be written is older than what agents have seen: what runs is started
  // again, from memory if it can be.
  for (const NodeInfo& n : s_.nodes) {
    if (n.reported_epoch <= s_.durable.epoch) continue;
    s_.durable.epoch = n.reported_epoch;
    s_.durable.restarting = true;
    s_.durable.exited_ok.clear();
  }
  // Once the gates were opened every rank of the epoch had a worker, whatever its node says now: it
  // may have lost its keeper together with its agent.
  for (RankInfo& r : s_.ranks) r.started = s_.durable.gates_opened;
  for (const uint32_t r : s_.durable.exited_ok) {
    if (r < s_.ranks.size()) {
      s_.ranks[r].started = s_.ranks[r].exited = s_.ranks[r].exited_ok = true;
    }
  }
  for (uint32_t n = 0; n < s_.nodes.size(); ++n) {
    // A worker of this epoch that the agent knows of but that does not run has ended: whether well
    // is something that its agent says again, or nobody.
    for (const SlotReport& report : s_.nodes[n].reports) {
      if (report.epoch != s_.durable.epoch || s_.durable.epoch == 0) continue;
      for (RankInfo& r : s_.ranks) {
        if (r.node == n && r.slot == report.slot) r.started = true;
      }
    }
    ApplyReports(n, s_.nodes[n].reports);
    s_.nodes[n].reports.clear();
    s_.nodes[n].gone = s_.durable.restarting && s_.nodes[n].reported_epoch < s_.durable.epoch;
  }
  return true;
}

void Machine::Adopt() {
  s_.adopted = true;
  s_.max_entered = std::max(s_.max_entered, s_.durable.resumed_step);
  SnapshotsChanged();
  Durable& d = s_.durable;
  if (d.restarting) return Enter(kRestarting, "adopted");
  if (d.notice && d.notice->parking) {
    s_.agreed_step = d.notice->agreed.value_or(0);
    ArmNotice();
    return Enter(kParking, "adopted");
  }
  if (d.notice && d.notice->abandoned) {
    ArmNotice();
    return Enter(kAbandoning, "adopted");
  }
  if (d.notice) ArmNotice();
  if (!d.gates_opened) return Enter(kStarting, "adopted");
  Enter(kRunning, "adopted");
  EnsureTerm();
}

void Machine::BeginNextEpoch(std::string why) {
  Durable& d = s_.durable;
  ++d.epoch;
  d.gates_opened = false;
  d.restarting = false;
  d.resume.reset();
  d.exited_ok.clear();
  s_.restart_wanted = false;
  s_.max_entered = 0;
  s_.agreed_step = 0;
  s_.freed_below = 0;
  s_.freed_epoch = 0;
  for (RankInfo& r : s_.ranks) {
    r.started = r.exited = r.exited_ok = false;
    r.claim.reset();
    r.at_gate.reset();
    r.gate.reset();
    r.replies_due = 0;
    r.finished.reset();
    r.entered = 0;
    r.missing_since.reset();
  }
  for (NodeInfo& n : s_.nodes) {
    n.gone = false;
    n.epoch_sent = false;
  }
  Enter(kStarting, fmt::format("epoch {}: {}", d.epoch, why));
}

bool Machine::CheckClaims() {
  const Claim& first = *s_.ranks.front().claim;
  for (uint32_t r = 1; r < s_.ranks.size(); ++r) {
    const Claim& claim = *s_.ranks[r].claim;
    if (claim.directory != first.directory) {
      Fail(fmt::format("{} keeps checkpoints in '{}', {} in '{}': all ranks must name the same "
                       "directory",
                       RankName(0), first.directory, RankName(r), claim.directory),
           false, 78);
      return false;
    }
    if (claim.total_steps != first.total_steps || claim.persist_every != first.persist_every) {
      Fail(fmt::format("{} runs {} steps and saves each {}, {} runs {} and saves each {}: these "
                       "must be the same on all ranks",
                       RankName(0), first.total_steps, first.persist_every, RankName(r),
                       claim.total_steps, claim.persist_every),
           false, 78);
      return false;
    }
  }
  Durable& d = s_.durable;
  if (!first.directory.empty() && first.directory.front() != '/') {
    Fail(fmt::format("the checkpoint directory '{}' is not absolute", first.directory), false, 78);
    return false;
  }
  if (d.has_directory && d.directory != first.directory) {
    Fail(fmt::format("the workers keep checkpoints in '{}', before a restart it was '{}'",
                     first.directory, d.directory),
         false, 78);
    return false;
  }
  const auto& legal = first.legal_world_sizes;
  const auto world = static_cast<uint32_t>(s_.ranks.size());
  if (!legal.empty() && std::find(legal.begin(), legal.end(), world) == legal.end()) {
    Fail(fmt::format("the program does not run on {}, only on {}", Count(world, "worker"),
                     fmt::join(legal, ", ")),
         false, 78);
    return false;
  }
  d.has_directory = true;
  d.directory = first.directory;
  d.total_steps = first.total_steps;
  d.persist_every = first.persist_every;
  return true;
}

uint64_t Machine::ExpectedStep() const {
  return std::max(s_.config.expected_step.value_or(0), CommittedStep());
}

// True once this process holds a term, or needs none. Asks for it otherwise; the answer is an
// event.
bool Machine::EnsureTerm() {
  if (!s_.durable.has_directory || s_.durable.directory.empty()) return true;
  if (s_.term_status == TermStatus::kHeld) return true;
  if (s_.term_status != TermStatus::kNone || Armed(TimerId::kStorage)) return false;
  if (ExpectedStep() > 0) {
    s_.term_status = TermStatus::kProbing;
    decision_.actions.push_back(ProbeStorage{s_.durable.directory, s_.durable.distrusted});
  } else {
    s_.term_status = TermStatus::kBeginning;
    decision_.actions.push_back(BeginTerm{s_.durable.directory, s_.durable.distrusted});
  }
  return false;
}

void Machine::StorageFailed(const Status& status, std::string_view what) {
  s_.term_status = TermStatus::kNone;
  if (!s_.storage_since) s_.storage_since = now_;
  const Duration waited = now_ - *s_.storage_since;
  const std::string message =
      fmt::format("{} '{}': {}", what, s_.durable.directory, status.message());
  Say(message);
  if (s_.phase == kStarting) {
    if (!Transient(status.code())) return Fail(message, false, 78);
    if (waited >= timeouts().storage_limit) {
      return Fail(fmt::format("{} (tried for {})", message, Seconds(waited)), true, 1);
    }
  } else if (waited == Duration(0)) {
    Tell("alarm", message);  // the steps go on; nothing can be saved meanwhile
  }
  Arm(TimerId::kStorage, SaturatingAdd(now_, timeouts().storage_retry));
}

void Machine::On(const Probed& e) {
  if (s_.term_status != TermStatus::kProbing) return;
  if (!e.status.ok() && e.status.code() != StatusCode::kNotFound) {
    return StorageFailed(e.status, "cannot read the checkpoint directory");
  }
  const uint64_t expected = ExpectedStep();
  const uint64_t found = e.newest ? e.newest->step : 0;
  if (!e.newest || found < expected) {
    if (!s_.storage_since) s_.storage_since = now_;
    const Duration waited = now_ - *s_.storage_since;
    const std::string message = fmt::format(
        "checkpoint directory '{}' has {} as its newest commit, but step {} was committed{}{}",
        s_.durable.directory, e.newest ? fmt::format("step {}", found) : "nothing", expected,
        e.rejected.empty() ? "" : "; not chosen: ", e.rejected);
    const auto& known = s_.durable.distrusted;
    const bool proved =
        e.damaged && std::find(known.begin(), known.end(), *e.damaged) != known.end();
    if (waited < s_.config.expected_step_wait && !proved) {
      s_.term_status = TermStatus::kNone;
      Say(message + "; waiting");
      const Duration left = s_.config.expected_step_wait - waited;
      Arm(TimerId::kStorage, SaturatingAdd(now_, std::min(timeouts().storage_retry, left)));
      return;
    }
    // What is there but damaged won't come any more: TermBegun tells that it was passed over.
    const bool damaged = e.newest && e.damaged && e.damaged->step >= expected;
    if (s_.phase == kStarting && !damaged) {
      s_.term_status = TermStatus::kNone;
      return Fail(fmt::format("{} (waited {})", message, Seconds(waited)), true, 78);
    }
    if (!damaged) Tell("alarm", message);  // the workers have what is missing: go on, save again
  }
  s_.storage_since.reset();
  s_.term_status = TermStatus::kBeginning;
  decision_.actions.push_back(BeginTerm{s_.durable.directory, s_.durable.distrusted});
}

void Machine::On(const TermBegun& e) {
  if (s_.term_status != TermStatus::kBeginning) return;
  if (!e.status.ok()) return StorageFailed(e.status, "cannot begin a term in");
  s_.storage_since.reset();
  s_.term_status = TermStatus::kHeld;
  s_.term = e.term;
  s_.durable.term = e.term;
  s_.durable.committed = e.newest;
  s_.durable.last_persist_step = CommittedStep();
  s_.rejected_commits = e.rejected;
  Say(fmt::format("term {} begun{}", e.term,
                  e.newest ? fmt::format(" after step {}", e.newest->step) : ""));
  if (!e.rejected.empty()) Tell("alarm", "checkpoints that were not chosen: " + e.rejected);
  if (s_.durable.gates_opened && s_.durable.resume) SendAll(MakeResume());
}

ResumeOrder Machine::MakeResume() const {
  const ResumeDecision& decision = *s_.durable.resume;
  return ResumeOrder{s_.durable.epoch, s_.term, decision.kind, decision.save, decision.reason};
}

void Machine::DecideResume() {
  Durable& d = s_.durable;
  ResumeDecision decision;
  const auto memory = NewestWhole(s_, /*restorable=*/true);
  const bool distrusted = s_.memory_failures >= 2;
  std::string from;
  uint64_t step = 0;
  if (memory && !distrusted && memory->step >= CommittedStep()) {
    decision.kind = ResumeKind::kMemory;
    decision.save.step = step = memory->step;
    decision.snapshot_epoch = memory->epoch;
    from = "memory";
    decision.reason = fmt::format("the snapshot of step {} is whole on all ranks", step);
  } else if (d.committed) {
    decision.kind = ResumeKind::kStorage;
    decision.save = *d.committed;
    step = d.committed->step;
    from = "storage";
    decision.reason =
        fmt::format("the newest commit is {}{}{}", SaveName(*d.committed),
                    distrusted && memory ? "; restoring from memory failed twice" : "",
                    s_.rejected_commits.empty() ? "" : "; not chosen: " + s_.rejected_commits);
  } else {
    decision.kind = ResumeKind::kFresh;
    from = "fresh";
    decision.reason = d.directory.empty() ? "the run keeps no checkpoints"
                                          : fmt::format("'{}' holds no commit", d.directory);
  }
  // Whatever else is in snapshot memory belongs to a past that is not gone on from, and would take
  // the room of what comes.
  const SnapshotName kept = decision.kind == ResumeKind::kMemory
                                ? SnapshotName{decision.snapshot_epoch, decision.save.step}
                                : SnapshotName{d.epoch, 0};
  // A save of a branch that is not gone on from must not be committed after this.
  if (decision.kind != ResumeKind::kMemory) s_.saves.clear();
  SnapshotName floor = kept;
  std::vector<SnapshotName> read;
  for (const SaveInFlight& save : s_.saves) {
    if (!SaveReads(save)) continue;
    read.push_back({save.snapshot_epoch, save.save.step});
    floor = std::min(floor, read.back());
  }
  FreeSnapshotsOrder free{floor.step, floor.epoch, {}};
  for (RankInfo& r : s_.ranks) {
    std::erase_if(r.snapshots, [&](const WholeSnapshot& s) {
      const SnapshotName name{s.epoch, s.step};
      if (name == kept || std::find(read.begin(), read.end(), name) != read.end()) return false;
      if (name > floor) free.drop.push_back(name);
      return true;
    });
  }
  s_.freed_epoch = floor.epoch;
  s_.freed_below = floor.step;
  if (d.epoch > 1) SendAll(free);
  d.resume = decision;
  d.resumed_known = true;
  d.resumed_step = step;
  d.resumed_from = from + ": " + decision.reason;
  d.last_persist_step = std::max(CommittedStep(), d.last_persist_step);
  if (decision.kind != ResumeKind::kMemory) d.last_persist_step = step;
  s_.max_entered = step;
  std::string redone;
  if (d.failure_pending) {
    d.failure_pending = false;
    const uint64_t steps = d.entered_at_failure > step ? d.entered_at_failure - step : 0;
    if (!d.failures.empty()) {
      d.failures.back().steps_redone = steps;
      d.failures.back().action = fmt::format("restarted in place from {} at step {}", from, step);
    }
    redone = fmt::format(",\"steps_redone\":{}", steps);
    Tell(
        "restarted",
        fmt::format("epoch {} goes on from {} at step {}; {} done again", d.epoch, from, step,
                    Count(steps, "step")),
        fmt::format("{{\"epoch\":{},\"from\":\"{}\",\"step\":{}{}}}", d.epoch, from, step, redone));
  }
  Tell("resumed",
       fmt::format("{} from step {} ({}: {})",
                   s_.ranks.size() == 1 ? "1 worker goes on"
                                        : fmt::format("{} workers go on", s_.ranks.size()),
                   step, from, decision.reason),
       fmt::format("{{\"epoch\":{},\"term\":{},\"world_size\":{},\"from\":\"{}\",\"step\":{}}}",
                   d.epoch, s_.term, s_.ranks.size(), from, step));
}

// The commit that the workers were told to restore can't be read: the next term goes on from an
// older one. False: it isn't that, or too many are damaged already.
bool Machine::DistrustResumed() {
  Durable& d = s_.durable;
  if (!d.resume || d.resume->kind != ResumeKind::kStorage) return false;
  if (d.distrusted.size() >= kMaxRecords) return false;
  d.distrusted.push_back(d.resume->save);
  d.committed.reset();
  s_.term_status = TermStatus::kNone;
  Disarm(TimerId::kStorage);
  return true;
}

void Machine::Failure(FailureRecord record, bool distrust_memory, bool damaged_save) {
  Durable& d = s_.durable;
  record.sequence = ++d.failure_sequence;
  record.unix_ms = wall_unix_ms_;
  record.epoch = d.epoch;
  if (record.rank < s_.ranks.size()) record.node_id = s_.nodes[s_.ranks[record.rank].node].node_id;
  if (s_.phase == kRestoring && d.resume && d.resume->kind == ResumeKind::kMemory) {
    s_.memory_failures += distrust_memory ? 2 : 1;
  }
  const bool notice = d.notice.has_value();
  // Going back to an older commit is not the program's failure, and ends with the last commit.
  const bool fall_back = s_.phase == kRestoring && damaged_save && DistrustResumed();
  const bool restart = !notice && (fall_back || d.restarts_used < s_.config.max_restarts);
  if (notice) {
    record.action = "a notice is being obeyed: leaving with the newest whole snapshot";
  } else if (fall_back) {
    record.action = "restarting in place from an older checkpoint";
  } else if (restart) {
    record.action = "restarting in place";
  } else {
    record.action = s_.config.max_restarts == 0
                        ? "not restarted in place"
                        : fmt::format("not restarted in place: {} of {} restarts are used",
                                      d.restarts_used, s_.config.max_restarts);
  }
  const std::string message = record.message;
  Tell("failure", fmt::format("{}; {}", message, record.action),
       fmt::format("{{\"rank\":{},\"node\":{},\"exit_code\":{},\"signal\":{},\"step\":{}}}",
                   record.rank, JsonString(record.node_id), record.exit_code, record.signal,
                   record.step));
  d.failures.push_back(std::move(record));
  if (d.failures.size() > kMaxRecords) d.failures.erase(d.failures.begin());
  d.entered_at_failure = s_.max_entered;
  if (notice) return Abandon(message);
  if (!restart) {
    const std::string used = s_.config.max_restarts == 0
                                 ? ""
                                 : fmt::format(" ({} of {} restarts in place are used)",
                                               d.restarts_used, s_.config.max_restarts);
    return Fail(message + used, true, 1);
  }
  d.failure_pending = true;
  if (!fall_back) ++d.restarts_used;
  d.restarting = true;
  Enter(kRestarting, message);
}

void Machine::Fail(std::string reason, bool retryable, int exit_code) {
  if (s_.phase == kFailing || s_.phase == kLeaving || s_.phase == kEnded) return;
  s_.fail_reason = std::move(reason);
  s_.fail_retryable = retryable;
  s_.fail_exit_code = exit_code;
  s_.durable.restarting = false;
  // Who waits for the decision hears why there is none.
  if (s_.phase == kStarting && s_.durable.epoch > 0 && !s_.durable.resume) {
    ResumeOrder refused;
    refused.epoch = s_.durable.epoch;
    refused.kind = ResumeKind::kRefused;
    refused.message = s_.fail_reason;
    SendAll(refused);
  }
  if (s_.durable.epoch == 0) {
    for (NodeInfo& n : s_.nodes) n.gone = true;
  }
  Enter(kFailing, s_.fail_reason);
}

// The outcome is set here and nowhere else.
void Machine::Conclude(OutcomeState state, std::string reason, bool retryable, int exit_code) {
  if (s_.durable.notice) {
    RecordNotices(state == OutcomeState::kSucceeded ? "the job finished"
                                                    : "the job failed: " + reason);
  }
  s_.durable.outcome = Outcome{state, reason, retryable, exit_code};
  Enter(kLeaving, std::move(reason));
}

MonotonicTime Machine::LostAt(const NodeInfo& node) const {
  return SaturatingAdd(node.last_heard,
                       node.attached ? timeouts().agent_silent : timeouts().agent_lost);
}

void Machine::LoseNode(uint32_t node, std::string why) {
  NodeInfo& n = s_.nodes[node];
  n.lost = true;
  n.attached = false;
  n.gone = true;
  for (RankInfo& r : s_.ranks) {
    if (r.node == node) r.snapshots.clear();
  }
  // No save can have this node's packs any more.
  for (size_t i = s_.saves.size(); i-- > 0;) {
    if (!s_.saves[i].committing) SaveFailed(i, why, /*retry_helps=*/false);
  }
  switch (s_.phase) {
    case kWaiting:
    case kParking:
    case kCommitting:
    case kAbandoning:
    case kFailing:
    case kLeaving:
    case kEnded:
      Say(why);
      return;
    case kFinishing:
      if (s_.exit_ordered_at) {
        Say(why);
        return;
      }
      [[fallthrough]];
    default:
      s_.durable.entered_at_failure = s_.max_entered;
      Tell("failure", why);
      Fail(std::move(why), true, 1);
  }
}

}  // namespace godwit::master
