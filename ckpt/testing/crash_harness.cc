#include "ckpt/testing/crash_harness.h"

#include <fmt/core.h>

#include <cerrno>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/fault_file_system.h"
#include "base/memory_file_system.h"
#include "ckpt/engine/arena_rep.h"
#include "ckpt/engine/restore.h"
#include "ckpt/format/version.h"
#include "ckpt/io/pack_reader.h"
#include "ckpt/testing/toy_rank.h"

namespace godwit::ckpt::testing {
namespace {

const std::string kDir = "/data/ckpt";
constexpr uint32_t kKeep = 2;
constexpr uint64_t kScale = 0;  // small tensors only
const SaveId kBefore{1, 30, 3};
const SaveId kSave{1, 40, 4};
const SaveId kAgain{1, 40, 5};
constexpr uint64_t kNextStep = 50;
// MemoryFileSystem::CrashImage: 0 to 2 are extremes, 3 keeps everything.
constexpr uint64_t kKillSeed = 3;
const std::vector<uint64_t> kPowerSeeds = {0, 1, 2, 17, 23, 99};

ToyState::Change ChangeOf(SaveKind kind) {
  if (kind == SaveKind::kFull) return ToyState::Change::kAll;
  return kind == SaveKind::kReferences ? ToyState::Change::kOneTensor
                                       : ToyState::Change::kLowestByte;
}

// The jobs, staged once: a case only writes.
struct Jobs {
  Jobs(uint32_t world_size, SaveKind kind)
      : kind(kind),
        save(world_size, 1, 1, kScale, kMaxArenaSlots),
        next(world_size, 2, 2, kScale),
        world_size(world_size) {
    for (ToyJob* job : {&save, &next}) {
      for (auto& r : job->ranks) r->state.change = ChangeOf(kind);
    }
    // Every frame is a write of its own.
    for (auto& r : save.ranks) r->append_bytes = 1;
    ResetHistory();
    GODWIT_CHECK(next.Stage(kNextStep).ok());
  }

  // What was there before, on disk and in the writers' memory; then what the cases save is staged.
  void Before(FileSystem& fs) {
    for (const SaveId& id : {SaveId{1, 10, 1}, SaveId{1, 20, 2}, kBefore}) {
      GODWIT_CHECK(save.Stage(id.step).ok());
      GODWIT_CHECK(save.Save(fs, kDir, id).ok());
    }
    if (kind != SaveKind::kFull) {
      for (auto& r : save.ranks) {
        base.push_back(r->history->Base(kBefore.term));
        GODWIT_CHECK(base.back() != nullptr);
      }
    }
    GODWIT_CHECK(save.Stage(kSave.step).ok());
  }

  // As it was before the save: each case is a life of its own.
  void ResetHistory() {
    if (kind == SaveKind::kFull) return;
    BaseLimits limits;
    limits.deltas = kind == SaveKind::kDeltas;
    limits.least_share = 0;
    for (size_t i = 0; i < save.ranks.size(); ++i) {
      ToyRank& r = *save.ranks[i];
      r.history = std::make_unique<PackHistory>(limits);
      if (base.empty()) continue;
      KeptPack kept;
      kept.contents = base[i]->contents;
      if (limits.deltas) {
        auto pin = Arena::Rep::Pin(r.arena.rep(), r.epoch, kBefore.step);
        GODWIT_CHECK(pin.has_value());
        kept.snapshot.emplace(std::move(*pin));
      }
      r.history->Written(std::move(kept));
      r.history->Committed(kBefore);
    }
  }

  const SaveKind kind;
  ToyJob save;
  ToyJob next;
  const uint32_t world_size;
  std::vector<std::shared_ptr<const KeptPack>> base;  // by rank; empty: none yet
};

class Harness {
 public:
  Harness(uint32_t world_size, const Decorator& decorate, SaveKind kind = SaveKind::kFull)
      : decorate_(decorate), jobs_(world_size, kind) {}

  void Before(FileSystem& fs) { jobs_.Before(fs); }

  CrashReport report;

  std::unique_ptr<FileSystem> Decorate(FileSystem& target) const {
    return decorate_ ? decorate_(target) : nullptr;
  }

  void Violation(const std::string& text) { report.violations.push_back(where_ + ": " + text); }
  void SetCase(std::string where) {
    where_ = std::move(where);
    ++report.cases;
    jobs_.ResetHistory();
  }

  // Runs the save on `fs` through the wrong engine, if there is one. True when it was acknowledged.
  bool Save(FileSystem& fs, const SaveId& id, Status* outcome = nullptr) {
    auto wrong = Decorate(fs);
    FileSystem& engine = wrong ? *wrong : fs;
    auto commit = jobs_.save.Save(engine, kDir, id);
    Status status = commit.status();
    const bool acknowledged = status.ok();
    if (status.ok()) status = Retain(engine, kDir, id.term, kKeep);
    if (outcome) *outcome = status;
    return acknowledged;
  }

  // Finds the newest, restores it on all ranks and more, compares. Returns it.
  std::optional<SaveId> CheckNewest(FileSystem& fs, const SaveId& at_least) {
    auto found = FindNewest(fs, kDir);
    if (!found.ok()) {
      Violation("FindNewest: " + found.status().ToString());
      return std::nullopt;
    }
    if (!found->newest) {
      Violation("nothing was found");
      return std::nullopt;
    }
    const SaveId newest = found->newest->save;
    if (newest < at_least) {
      std::string why;
      for (const Rejected& r : found->rejected) why += ToString(r.save) + ": " + r.reason + "; ";
      Violation(fmt::format("{} was acknowledged, {} was found ({})", ToString(at_least),
                            ToString(newest), why));
      return newest;
    }
    for (const Rejected& r : found->rejected) {
      if (r.reason.empty()) Violation("rejected without a reason: " + ToString(r.save));
    }
    auto branches = ListBranches(fs, kDir, /*deep=*/true);
    if (!branches.ok()) {
      Violation("ListBranches: " + branches.status().ToString());
    } else {
      for (const BranchEntry& b : *branches) {
        if (b.committed && b.in_lineage && !b.intact) {
          Violation(ToString(b.save) + " is a commit and not whole: " + b.note);
        }
      }
    }
    for (uint32_t rank = 0; rank < jobs_.world_size; ++rank) {
      ToyState state(rank, jobs_.world_size, kScale);
      state.change = ChangeOf(jobs_.kind);
      auto stats = RestoreFromStorage(fs, kDir, newest, rank, jobs_.world_size, state.List());
      if (!stats.ok()) {
        Violation("RestoreFromStorage: " + stats.status().ToString());
      } else if (!state.Holds(newest.step)) {
        Violation(fmt::format("rank {} is not what was staged at step {}", rank, newest.step));
      }
    }
    return newest;
  }

  // The next process: opens, begins a term, saves, retains.
  void CheckNextLife(FileSystem& fs, const SaveId& at_least) {
    if (Status s = OpenCheckpointDir(fs, kDir, true); !s.ok()) {
      return Violation("next life: OpenCheckpointDir: " + s.ToString());
    }
    auto term = BeginTerm(fs, kDir, "job", 1);
    if (!term.ok()) return Violation("next life: BeginTerm: " + term.status().ToString());
    if (term->record.parent.save < at_least) {
      return Violation(fmt::format("next life: goes on from {}, {} was there",
                                   ToString(term->record.parent.save), ToString(at_least)));
    }
    const SaveId id{term->record.term, kNextStep, 1};
    auto commit = jobs_.next.Save(fs, kDir, id);
    if (!commit.ok()) return Violation("next life: save: " + commit.status().ToString());
    if (Status s = Retain(fs, kDir, id.term, kKeep); !s.ok()) {
      return Violation("next life: Retain: " + s.ToString());
    }
    CheckNewest(fs, id);
  }

  void Kill(const MemoryFileSystem& start, uint64_t calls) {
    for (uint64_t n = 1; n <= calls; ++n) {
      jobs_.ResetHistory();
      auto fs = start.CrashImage(kKillSeed);
      FaultFileSystem faulty(*fs);
      faulty.CrashAt(n);
      const bool acknowledged = Save(faulty, kSave);
      const SaveId least = acknowledged ? kSave : kBefore;
      for (uint64_t seed : kPowerSeeds) {
        SetCase(fmt::format("power fails at call {} (seed {})", n, seed));
        auto image = fs->CrashImage(seed);
        const auto newest = CheckNewest(*image, least);
        if (newest) CheckNextLife(*image, *newest);
      }
      SetCase(fmt::format("killed at call {}", n));
      auto killed = fs->CrashImage(kKillSeed);
      const auto newest = CheckNewest(*killed, least);
      if (newest) CheckNextLife(*killed, *newest);
      // The successor sees what the page cache holds; then that is lost.
      SetCase(fmt::format("killed at call {}, begun again, power fails", n));
      auto begun = BeginTerm(*fs, kDir, "job", 1);
      if (!begun.ok()) {
        Violation("BeginTerm: " + begun.status().ToString());
        continue;
      }
      const SaveId parent = begun->record.parent.save;
      for (uint64_t seed : kPowerSeeds) {
        auto image = fs->CrashImage(seed);
        CheckNewest(*image, parent);
      }
    }
  }

  void Fail(const MemoryFileSystem& start, uint64_t calls) {
    for (uint64_t n = 1; n <= calls; ++n) {
      for (int error : {ENOSPC, EIO, 0}) {
        SetCase(fmt::format("call {} {}", n,
                            error == 0 ? "writes 7 bytes" : fmt::format("fails ({})", error)));
        auto fs = start.CrashImage(kKillSeed);
        FaultFileSystem faulty(*fs);
        if (error == 0) {
          faulty.ShortWriteAt(n, 7, ENOSPC);
        } else {
          faulty.FailAt(n, error);
        }
        Status outcome;
        const bool acknowledged = Save(faulty, kSave, &outcome);
        if (!outcome.ok() && outcome.message().empty()) Violation("an error without a message");
        const SaveId least = acknowledged ? kSave : kBefore;
        CheckNewest(*fs, least);
        CheckNewest(*fs->CrashImage(0), least);
        // The same process tries again, and that holds.
        Status again;
        if (!Save(*fs, kAgain, &again) || !again.ok()) {
          Violation("the next try: " + again.ToString());
          continue;
        }
        auto image = fs->CrashImage(0);
        const auto newest = CheckNewest(*image, kAgain);
        if (newest) CheckNextLife(*image, *newest);
      }
    }
  }

 private:
  const Decorator& decorate_;
  Jobs jobs_;
  std::string where_;
};

}  // namespace

CrashReport CrashSave(uint32_t world_size, const Decorator& decorate, SaveKind kind) {
  Harness harness(world_size, decorate, kind);
  MemoryFileSystem start;
  GODWIT_CHECK(OpenCheckpointDir(start, kDir, true).ok());
  GODWIT_CHECK(BeginTerm(start, kDir, "job", 1).ok());
  harness.Before(start);
  uint64_t calls = 0;
  {
    harness.SetCase("nothing happens");
    auto fs = start.CrashImage(kKillSeed);
    FaultFileSystem counter(*fs);
    Status outcome;
    const bool saved = harness.Save(counter, kSave, &outcome) && outcome.ok();
    calls = counter.calls();
    // What is to be tested is there.
    uint64_t features = 0;
    for (uint32_t rank = 0; saved && rank < world_size; ++rank) {
      features |= ReadPackTail(*fs, PackPath(kDir, kSave, rank))->must_understand;
    }
    if (kind != SaveKind::kFull && !(features & kFeatureReferences)) {
      harness.Violation("no chunk is referred to: " + outcome.ToString());
    }
    if (kind == SaveKind::kDeltas && !(features & kFeatureDeltas)) {
      harness.Violation("no chunk is a difference");
    }
    harness.CheckNewest(*fs, kSave);
  }
  harness.Kill(start, calls + 1);  // the last one: power fails when all is done
  harness.Fail(start, calls);
  return std::move(harness.report);
}

CrashReport CrashBegin(const Decorator& decorate) {
  Harness harness(1, decorate);
  const auto begin = [&](FileSystem& fs) -> Status {
    auto wrong = harness.Decorate(fs);
    FileSystem& engine = wrong ? *wrong : fs;
    GODWIT_RETURN_IF_ERROR(OpenCheckpointDir(engine, kDir, true));
    return BeginTerm(engine, kDir, "job", 1).status();
  };
  uint64_t calls = 0;
  {
    MemoryFileSystem fs;
    FaultFileSystem counter(fs);
    GODWIT_CHECK(begin(counter).ok());
    calls = counter.calls();
  }
  for (uint64_t n = 1; n <= calls + 1; ++n) {
    MemoryFileSystem fs;
    FaultFileSystem faulty(fs);
    faulty.CrashAt(n);
    const bool begun = begin(faulty).ok();
    for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{2}, kKillSeed, uint64_t{17}}) {
      harness.SetCase(fmt::format("the first term, crash at call {} (seed {})", n, seed));
      auto image = fs.CrashImage(seed);
      if (begun) {
        auto found = FindNewest(*image, kDir);
        if (!found.ok() || found->newest_term != 1) {
          harness.Violation("the term is gone: " + found.status().ToString());
        }
      }
      harness.CheckNextLife(*image, SaveId{});
    }
    for (int error : {ENOSPC, EIO}) {
      harness.SetCase(fmt::format("the first term, call {} fails ({})", n, error));
      MemoryFileSystem other;
      FaultFileSystem failing(other);
      failing.FailAt(n, error);
      static_cast<void>(begin(failing));
      harness.CheckNextLife(other, SaveId{});
    }
  }
  return std::move(harness.report);
}

CrashReport CheckExclusive(const Decorator& decorate) {
  Harness harness(1, decorate);
  MemoryFileSystem fs;
  GODWIT_CHECK(OpenCheckpointDir(fs, kDir, true).ok());
  GODWIT_CHECK(BeginTerm(fs, kDir, "job", 1).ok());
  auto wrong = harness.Decorate(fs);
  FileSystem& engine = wrong ? *wrong : fs;
  ToyJob one(1, 1, 1, kScale);
  ToyJob other(1, 1, 7, kScale);  // other bytes: of another epoch
  const SaveId id{1, 10, 1};
  GODWIT_CHECK(one.Stage(id.step).ok() && other.Stage(id.step).ok());

  harness.SetCase("two packs of one name");
  auto pack = one.ranks[0]->Write(engine, kDir, id);
  GODWIT_CHECK(pack.ok());
  const std::string pack_path = PackPath(kDir, id, 0);
  const std::string before = *fs.ReadFile(pack_path, 1 << 30);
  {
    // The second writer doesn't see the first one's pack until it links its own.
    FaultFileSystem blind(engine);
    bool hidden = false;
    blind.SetHook([&](const FileCall& call) {
      if (call.op == FileOp::kOpenRead && call.path == pack_path && !hidden) {
        hidden = true;
        return ENOENT;
      }
      return 0;
    });
    if (other.ranks[0]->Write(blind, kDir, id).ok()) harness.Violation("both were accepted");
    if (*fs.ReadFile(pack_path, 1 << 30) != before) harness.Violation("the first was replaced");
  }

  harness.SetCase("two manifests of one name");
  MemoryFileSystem elsewhere;
  GODWIT_CHECK(OpenCheckpointDir(elsewhere, kDir, true).ok());
  auto other_pack = other.ranks[0]->Write(elsewhere, kDir, id);
  GODWIT_CHECK(other_pack.ok());
  GODWIT_CHECK(CommitSave(engine, kDir, id, {pack->tail}).ok());
  const std::string manifest = *fs.ReadFile(ManifestPath(kDir, id), 1 << 30);
  if (CommitSave(engine, kDir, id, {other_pack->tail}).ok()) {
    harness.Violation("both were accepted");
  }
  if (*fs.ReadFile(ManifestPath(kDir, id), 1 << 30) != manifest) {
    harness.Violation("the first was replaced");
  }
  return std::move(harness.report);
}

}  // namespace godwit::ckpt::testing
