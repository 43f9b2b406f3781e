// Saves: from a snapshot that is whole on all ranks to a commit.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "master/core/machine.h"

namespace godwit::master {

using enum Phase;

bool Machine::SaveStepSettled(uint64_t step) {
  if (s_.durable.directory.empty() || s_.save_given_up) return true;
  if (s_.durable.committed && CommittedStep() == step) return true;
  for (const SaveInFlight& save : s_.saves) {
    if (save.save.step == step) {
      return EnsureSave({save.snapshot_epoch, step, 0}, /*urgent=*/true);
    }
  }
  const auto whole = NewestWhole(s_, false);
  if (!whole || whole->step != step) {
    s_.save_given_up = true;
    if (s_.durable.notice) {
      s_.durable.notice->message = fmt::format("the snapshot of step {} was lost", step);
    }
    return true;
  }
  return EnsureSave(*whole, /*urgent=*/true);
}

bool Machine::EnsureSave(const GlobalSnapshot& snapshot, bool urgent) {
  if (s_.durable.directory.empty() || s_.save_given_up) return true;
  if (s_.durable.committed && CommittedStep() >= snapshot.step) return true;
  for (SaveInFlight& save : s_.saves) {
    if (save.save.step != snapshot.step) continue;
    if (urgent && !save.urgent) {
      // Said again, with the time that is left: it was begun without hurry.
      save.urgent = true;
      for (uint32_t n = 0; n < s_.nodes.size(); ++n) SendPersist(n, save);
    }
    return false;
  }
  if (Armed(TimerId::kSaveRetry) || !EnsureTerm()) return false;
  StartSave(snapshot, urgent);
  return false;
}

void Machine::StartSave(const GlobalSnapshot& snapshot, bool urgent) {
  // The oldest makes room, unless its manifest is being published.
  if (s_.saves.size() == kMaxSaves) {
    const auto it = std::find_if(s_.saves.begin(), s_.saves.end(),
                                 [](const SaveInFlight& save) { return !save.committing; });
    if (it == s_.saves.end()) return;
    Say(fmt::format("save {} makes room", SaveName(it->save)));
    s_.saves.erase(it);
  }
  SaveInFlight save;
  save.save = SaveId{s_.term, snapshot.step, ++s_.durable.save_attempt};
  save.snapshot_epoch = snapshot.epoch;
  save.urgent = urgent;
  save.tails.resize(s_.ranks.size());
  save.limit = SaturatingAdd(now_, timeouts().save);
  Say(fmt::format("save {} begins", SaveName(save.save)));
  for (uint32_t n = 0; n < s_.nodes.size(); ++n) SendPersist(n, save);
  s_.saves.push_back(std::move(save));
}

void Machine::SendPersist(uint32_t node, const SaveInFlight& save) {
  bool due = false;
  for (uint32_t r = 0; r < s_.ranks.size(); ++r) {
    due |= s_.ranks[r].node == node && !save.tails[r];
  }
  if (!due) return;
  PersistOrder order;
  order.save = save.save;
  order.snapshot_step = save.save.step;
  order.snapshot_epoch = save.snapshot_epoch;
  order.directory = s_.durable.directory;
  order.world_size = static_cast<uint32_t>(s_.ranks.size());
  if (save.urgent) {
    // Zero means "no hurry" on the wire.
    order.time_left = std::max(s_.durable.notice ? TimeLeft() : Duration(timeouts().stop),
                               Duration(std::chrono::milliseconds(1)));
  }
  Send(node, std::move(order));
}

void Machine::On(const PackWritten& e) {
  const auto it = std::find_if(s_.saves.begin(), s_.saves.end(),
                               [&](const SaveInFlight& save) { return save.save == e.save; });
  if (it == s_.saves.end() || e.rank >= it->tails.size() || s_.ranks[e.rank].node != e.node) return;
  if (it->tails[e.rank]) return;
  it->tails[e.rank] = e.tail;
  for (const WholeSnapshot& s : s_.ranks[e.rank].snapshots) {
    if (s.epoch != it->snapshot_epoch || s.step != e.save.step || s.bytes == 0) continue;
    const double rate = static_cast<double>(e.duration.count()) / static_cast<double>(s.bytes);
    // Follows a faster disk slowly, a slower one at once.
    s_.measured.pack_ns_per_byte = std::max(rate, 0.8 * s_.measured.pack_ns_per_byte);
  }
  CommitIfWhole(*it);
  SnapshotsChanged();
}

void Machine::CommitIfWhole(SaveInFlight& save) {
  if (save.committing || !std::all_of(save.tails.begin(), save.tails.end(),
                                      [](const auto& t) { return t.has_value(); })) {
    return;
  }
  save.committing = true;
  CommitSave action{s_.durable.directory, save.save, {}};
  for (const auto& tail : save.tails) action.tails.push_back(*tail);
  decision_.actions.push_back(std::move(action));
}

void Machine::On(const PackFailed& e) {
  for (size_t i = 0; i < s_.saves.size(); ++i) {
    const SaveInFlight& save = s_.saves[i];
    if (save.save != e.save || e.rank >= save.tails.size() || s_.ranks[e.rank].node != e.node) {
      continue;
    }
    if (save.tails[e.rank]) return;
    return SaveFailed(i, fmt::format("{}: {}", RankName(e.rank), e.status.message()),
                      e.status.code() != StatusCode::kDataLoss);
  }
}

void Machine::SaveFailed(size_t index, std::string why, bool retry_helps) {
  const SaveInFlight save = s_.saves[index];
  s_.saves.erase(s_.saves.begin() + static_cast<ptrdiff_t>(index));
  Say(fmt::format("save {} failed: {}", SaveName(save.save), why));
  Tell("alarm", fmt::format("the save of step {} failed: {}", save.save.step, why),
       fmt::format("{{\"step\":{},\"error\":{}}}", save.save.step, JsonString(why)));
  SnapshotsChanged();
  // Only some phases wait for a save; in the others the next periodic one is the next try.
  uint32_t tries = 0;
  switch (s_.phase) {
    case kParking:
    case kCommitting:
    case kAbandoning:
      tries = 3;
      break;
    case kFinishing:
      tries = 6;
      break;
    case kFailing:
    case kRestarting:
      tries = 1;
      break;
    default:
      return;
  }
  ++s_.save_failures;
  if (s_.durable.notice && InNoticePhase()) s_.durable.notice->message = why;
  if (!retry_helps || s_.save_failures >= tries) {
    s_.save_given_up = true;
    return;
  }
  Arm(TimerId::kSaveRetry,
      SaturatingAdd(now_, timeouts().storage_retry * (1u << std::min(s_.save_failures, 5u))));
}

void Machine::On(const CommitDone& e) {
  const auto it = std::find_if(s_.saves.begin(), s_.saves.end(),
                               [&](const SaveInFlight& save) { return save.save == e.save; });
  if (it == s_.saves.end() || !it->committing) return;
  if (e.status.ok()) {
    const bool newer = !s_.durable.committed || s_.durable.committed->step < e.save.step;
    if (newer) s_.durable.committed = e.save;
    s_.measured.commit = std::max(e.duration, s_.measured.commit * 4 / 5);
    s_.saves.erase(it);
    // A try that was overtaken is not worth finishing.
    std::erase_if(s_.saves, [&](const SaveInFlight& save) {
      return !save.committing && save.save.step <= e.save.step;
    });
    if (s_.durable.notice) s_.durable.notice->committed_at = now_;
    Say(fmt::format("save {} is committed", SaveName(e.save)));
    Tell("committed", fmt::format("step {} is on storage ({})", e.save.step, SaveName(e.save)),
         fmt::format("{{\"step\":{},\"term\":{},\"attempt\":{},\"bytes\":{}}}", e.save.step,
                     e.save.term, e.save.attempt, e.bytes));
    SendAll(CommittedOrder{e.save});
    decision_.actions.push_back(RetainSaves{s_.durable.directory, s_.term, s_.config.keep});
    SnapshotsChanged();
    return;
  }
  if (e.status.code() == StatusCode::kAborted) {
    const std::string why = fmt::format("another writer has taken over '{}': {}",
                                        s_.durable.directory, e.status.message());
    s_.saves.erase(it);
    if (ExitExpected()) {
      if (s_.durable.notice) s_.durable.notice->message = why;
      s_.save_given_up = true;
      Tell("alarm", why);
      return;
    }
    return Fail(why, false, 1);
  }
  if (e.status.code() == StatusCode::kDataLoss || it->commit_failures >= 2) {
    const auto index = static_cast<size_t>(it - s_.saves.begin());
    return SaveFailed(index, e.status.message(), true);
  }
  ++it->commit_failures;
  it->committing = false;  // the packs are there: only the commit is tried again
  Say(fmt::format("commit of {} failed: {}", SaveName(e.save), e.status.message()));
  Arm(TimerId::kSaveRetry, SaturatingAdd(now_, timeouts().storage_retry));
}

void Machine::MaybePersist() {
  const Durable& d = s_.durable;
  if (d.persist_every == 0 || d.directory.empty() || !s_.saves.empty()) return;
  const auto whole = NewestWhole(s_, false);
  if (!whole || whole->step < d.last_persist_step + d.persist_every) return;
  if (whole->step <= CommittedStep() || !EnsureTerm()) return;
  s_.durable.last_persist_step = whole->step;
  StartSave(*whole, /*urgent=*/false);
}

// Lets agents free what a newer snapshot has replaced everywhere (except what a save still reads),
// and what can't become whole on all ranks. Without the latter, ranks that skipped different steps
// would fill their slots with different snapshots, and never have a common one again.
void Machine::SnapshotsChanged() {
  const auto whole = NewestWhole(s_, false);
  SnapshotName floor{s_.freed_epoch, s_.freed_below};
  if (whole) {
    floor = {whole->epoch, whole->step};
    for (const SaveInFlight& save : s_.saves) {
      if (SaveReads(save)) floor = std::min(floor, {save.snapshot_epoch, save.save.step});
    }
    floor = std::max(floor, {s_.freed_epoch, s_.freed_below});
  }
  bool freed = false;
  for (RankInfo& r : s_.ranks) {
    freed |= std::erase_if(r.snapshots, [&](const WholeSnapshot& s) {
               return SnapshotName{s.epoch, s.step} < floor;
             }) > 0;
  }
  s_.freed_epoch = floor.epoch;
  s_.freed_below = floor.step;
  std::vector<SnapshotName> drop;
  for (const RankInfo& r : s_.ranks) {
    for (const WholeSnapshot& s : r.snapshots) {
      const SnapshotName name{s.epoch, s.step};
      if (IsHopeless(name) && std::find(drop.begin(), drop.end(), name) == drop.end()) {
        drop.push_back(name);
      }
    }
  }
  for (RankInfo& r : s_.ranks) {
    std::erase_if(r.snapshots, [&](const WholeSnapshot& s) {
      return std::find(drop.begin(), drop.end(), SnapshotName{s.epoch, s.step}) != drop.end();
    });
  }
  for (const SnapshotName& name : drop) {
    if (s_.dropped.size() == kMaxRecords) s_.dropped.erase(s_.dropped.begin());
    s_.dropped.push_back(name);
  }
  if (freed || !drop.empty()) {
    SendAll(FreeSnapshotsOrder{floor.step, floor.epoch, std::move(drop)});
  }
}

bool Machine::SaveReads(const SaveInFlight& save) const {
  return !std::all_of(save.tails.begin(), save.tails.end(),
                      [](const auto& t) { return t.has_value(); });
}

// Whether some rank lacks the snapshot and can't get it any more: it has a newer one, or no room
// (ranks run in step, so by the time one's copy is whole the others have passed the boundary).
bool Machine::IsHopeless(const SnapshotName& name) const {
  for (const SaveInFlight& save : s_.saves) {
    if (SnapshotName{save.snapshot_epoch, save.save.step} == name && SaveReads(save)) return false;
  }
  // Only what lies behind some rank: it can't become S, for which ranks wait to have room.
  if (name.epoch == s_.durable.epoch && name.step >= s_.max_entered) return false;
  const bool staging_other = s_.phase == kStaging && name.step != s_.agreed_step;
  for (const RankInfo& r : s_.ranks) {
    bool has = false, newer = false;
    for (const WholeSnapshot& s : r.snapshots) {
      has |= SnapshotName{s.epoch, s.step} == name;
      newer |= SnapshotName{s.epoch, s.step} > name;
    }
    if (!has && (newer || staging_other || r.snapshots.size() >= kSnapshotSlots)) return true;
  }
  return false;
}

}  // namespace godwit::master
