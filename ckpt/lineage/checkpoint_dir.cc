#include "ckpt/lineage/checkpoint_dir.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "ckpt/format/version.h"
#include "ckpt/io/pack_reader.h"
#include "ckpt/io/stored_file.h"
#include "ckpt/lineage/lineage.h"

namespace godwit::ckpt {
namespace {

constexpr uint64_t kMaxTerm = 1'000'000'000'000'000;
// Files vanish under a reader when a writer retains; then it starts over, this often.
constexpr int kReaderTries = 5;
constexpr std::string_view kClaimSuffix = ".claim";

std::string FormatPath(const std::string& dir) { return JoinPath(dir, "FORMAT"); }
std::string TermsDir(const std::string& dir) { return JoinPath(dir, "terms"); }
std::string PacksDir(const std::string& dir) { return JoinPath(dir, "packs"); }
std::string ManifestsDir(const std::string& dir) { return JoinPath(dir, "manifests"); }

// A name that no reader takes for anything. Retain finds by the term whether its writer is gone.
std::string TempPath(const std::string& dir, uint64_t term) {
  return JoinPath(dir, fmt::format(".tmp-{}-{:016x}", TermName(term), SystemRandom64()));
}
std::optional<uint64_t> TempTerm(std::string_view name) {
  constexpr std::string_view kPrefix = ".tmp-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto term = ParseTermName(name.substr(0, name.find('-')));
  return term.ok() ? std::optional<uint64_t>(*term) : std::nullopt;
}

Status CheckAbsolute(const std::string& dir) {
  if (!dir.empty() && dir.front() == '/') return OkStatus();
  return InvalidArgumentError(
      fmt::format("directory of checkpoints '{}': allowed is an absolute path", dir));
}

Status CheckFormat(FileSystem& fs, const std::string& dir) {
  GODWIT_RETURN_IF_ERROR(CheckAbsolute(dir));
  const std::string path = FormatPath(dir);
  GODWIT_ASSIGN_OR_RETURN(const std::string text, ReadStored(fs, path, 4096));
  return CheckFormatFile(path, text);
}

// What a directory lists. Nothing of it is believed yet.
struct Scan {
  std::map<uint64_t, TermEntry> terms;
  std::set<SaveId> manifests;
  std::set<SaveId> packs;  // directories
};

Result<std::set<SaveId>> ScanSaves(FileSystem& fs, const std::string& dir) {
  GODWIT_ASSIGN_OR_RETURN(const auto entries, fs.List(dir));
  std::set<SaveId> saves;
  for (const DirEntry& e : entries) {
    if (auto id = ParseSaveId(e.name); id.ok()) saves.insert(*id);
  }
  return saves;
}

// The newest number that some writer has taken, whether its record is there yet or not.
Result<uint64_t> NewestClaim(FileSystem& fs, const std::string& dir) {
  GODWIT_ASSIGN_OR_RETURN(const auto entries, fs.List(TermsDir(dir)));
  uint64_t newest = 0;
  for (const DirEntry& e : entries) {
    std::string_view name = e.name;
    if (name.ends_with(kClaimSuffix)) name.remove_suffix(kClaimSuffix.size());
    if (auto term = ParseTermName(name); term.ok()) newest = std::max(newest, *term);
  }
  if (newest > kMaxTerm) {
    return DataLossError(
        fmt::format("{}: term {}, allowed are 1 to {}", TermsDir(dir), newest, kMaxTerm));
  }
  return newest;
}

Result<Scan> ScanDir(FileSystem& fs, const std::string& dir) {
  GODWIT_RETURN_IF_ERROR(CheckFormat(fs, dir));
  Scan scan;
  GODWIT_ASSIGN_OR_RETURN(const auto entries, fs.List(TermsDir(dir)));
  for (const DirEntry& e : entries) {
    const auto term = ParseTermName(e.name);
    if (!term.ok()) continue;
    if (*term > kMaxTerm) {
      return DataLossError(
          fmt::format("{}: term {}, allowed are 1 to {}", TermsDir(dir), *term, kMaxTerm));
    }
    const std::string path = TermPath(dir, *term);
    TermEntry entry;
    auto bytes = ReadStored(fs, path, kMaxTermBytes);
    Status status = bytes.status();
    if (bytes.ok()) {
      auto record = ParseTerm(AsBytes(*bytes), path);
      status = record.status();
      if (record.ok() && record->term != *term) {
        status = DataLossError(fmt::format("{}: it is of term {}", path, record->term));
      }
      if (status.ok()) entry.record = *record;
    }
    if (!status.ok()) {
      // Damage is looked around; what may be read later, or by another version, is not.
      if (status.code() != StatusCode::kDataLoss) return status;
      entry.error = status.message();
    }
    scan.terms[*term] = entry;
  }
  GODWIT_ASSIGN_OR_RETURN(scan.manifests, ScanSaves(fs, ManifestsDir(dir)));
  GODWIT_ASSIGN_OR_RETURN(scan.packs, ScanSaves(fs, PacksDir(dir)));
  return scan;
}

// What the packs of a save refer to.
Result<std::vector<PackSource>> SourcesOf(FileSystem& fs, const std::string& dir,
                                          const std::vector<PackTail>& tails) {
  std::vector<PackSource> all;
  for (const PackTail& tail : tails) {
    GODWIT_ASSIGN_OR_RETURN(const auto sources,
                            ReadPackSources(fs, PackPath(dir, tail.save, tail.rank), tail));
    all.insert(all.end(), sources.begin(), sources.end());
  }
  return all;
}

Status CheckSourcesOf(FileSystem& fs, const std::string& dir, const std::vector<PackTail>& tails) {
  GODWIT_ASSIGN_OR_RETURN(const auto sources, SourcesOf(fs, dir, tails));
  return CheckSources(fs, dir, sources);
}

// Manifest and all tails. DATA_LOSS when it is damaged or a pack is missing, ABORTED when the
// manifest itself has vanished.
Result<Manifest> CheckCommit(FileSystem& fs, const std::string& dir, const SaveId& save,
                             const std::optional<Digest128>& recorded) {
  const auto vanished = [&] {
    return AbortedError(fmt::format("{}: deleted meanwhile", ManifestPath(dir, save)));
  };
  auto manifest = ReadManifest(fs, dir, save);
  if (manifest.status().code() == StatusCode::kNotFound) return vanished();
  if (!manifest.ok()) return manifest.status();
  if (recorded && manifest->digest != *recorded) {
    return DataLossError(fmt::format("{}: digest {}, the term that goes on from it recorded {}",
                                     ManifestPath(dir, save), manifest->digest.ToHex(),
                                     recorded->ToHex()));
  }
  for (const PackTail& tail : manifest->tails) {
    const std::string path = PackPath(dir, save, tail.rank);
    const auto found = ReadPackTail(fs, path);
    if (found.status().code() == StatusCode::kNotFound) {
      if (fs.Stat(ManifestPath(dir, save)).status().code() == StatusCode::kNotFound) {
        return vanished();
      }
      return DataLossError(fmt::format("{}: the pack is missing", path));
    }
    if (!found.ok()) return found.status();
    if (*found != tail) {
      return DataLossError(fmt::format("{}: its tail is not the one that was committed", path));
    }
  }
  const Status sources = CheckSourcesOf(fs, dir, manifest->tails);
  if (sources.ok()) return manifest;
  if (fs.Stat(ManifestPath(dir, save)).status().code() == StatusCode::kNotFound) return vanished();
  // A pack of its own that has no sources to read any more is damage, too.
  return sources.code() == StatusCode::kNotFound ? DataLossError(sources.message()) : sources;
}

// The packs of a save that is not committed.
struct Uncommitted {
  std::vector<std::string> tails;
  bool complete = false;
  std::string note;
};

Result<Uncommitted> LookAtPacks(FileSystem& fs, const std::string& dir, const SaveId& save) {
  Uncommitted out;
  auto entries = fs.List(SaveDir(dir, save));
  if (entries.status().code() == StatusCode::kNotFound) {
    out.note = "incomplete: deleted meanwhile";
    return out;
  }
  if (!entries.ok()) return entries.status();
  uint32_t world_size = 0;
  uint64_t unfinished = 0;
  for (const DirEntry& e : *entries) {
    if (!e.name.ends_with(".pack")) {
      ++unfinished;
      continue;
    }
    auto tail = ReadPackTail(fs, JoinPath(SaveDir(dir, save), e.name));
    if (tail.status().code() == StatusCode::kDataLoss ||
        tail.status().code() == StatusCode::kNotFound) {
      ++unfinished;
      continue;
    }
    if (!tail.ok()) return tail.status();
    if (PackPath(dir, save, tail->rank) != JoinPath(SaveDir(dir, save), e.name)) {
      ++unfinished;
      continue;
    }
    world_size = tail->world_size;
    out.tails.push_back(EncodePackTail(*tail));
  }
  if (out.tails.empty()) {
    out.note = fmt::format("incomplete: none of {} packs is whole", unfinished);
  } else if (out.tails.size() < world_size) {
    out.note = fmt::format("incomplete: {} of {} packs {} not whole", world_size - out.tails.size(),
                           world_size, world_size - out.tails.size() == 1 ? "is" : "are");
  } else if (auto manifest = MakeManifest(save, out.tails); !manifest.ok()) {
    out.note = "incomplete: " + manifest.status().message();
  } else {
    out.complete = true;
    out.note = "complete, but not committed";
  }
  return out;
}

Commit CommitOf(const Manifest& manifest) {
  return {manifest.save, manifest.digest, manifest.world_size, manifest.bytes()};
}

// ABORTED: start over.
Result<Found> Find(FileSystem& fs, const std::string& dir, const Scan& scan,
                   const std::set<SaveId>& distrusted) {
  const Lineage lineage(scan.terms);
  Found found;
  found.newest_term = lineage.newest_term();
  if (found.newest_term == 0) {
    if (!scan.manifests.empty()) {
      return DataLossError(
          fmt::format("{}: {} commits, but no record of any term", dir, scan.manifests.size()));
    }
    return found;
  }
  found.damaged_term = lineage.broken();
  std::string tried;
  for (auto it = scan.manifests.rbegin(); it != scan.manifests.rend(); ++it) {
    if (std::string why = lineage.WhyNot(*it); !why.empty()) {
      found.rejected.push_back({*it, std::move(why)});
      continue;
    }
    // Ids sort by term first, and the path goes to older terms: the first that checks is the
    // newest.
    if (found.newest) continue;
    auto manifest = CheckCommit(fs, dir, *it, lineage.RecordedDigest(*it));
    if (manifest.ok() && distrusted.contains(*it)) {
      manifest =
          DataLossError(fmt::format("{}: its chunks could not be read", ManifestPath(dir, *it)));
    }
    if (manifest.ok()) {
      found.newest = CommitOf(*manifest);
    } else if (manifest.status().code() == StatusCode::kDataLoss) {
      tried += (tried.empty() ? "" : "; ") + manifest.status().message();
      found.rejected.push_back({*it, "damaged: " + manifest.status().message(), true});
    } else {
      return manifest.status();
    }
  }
  if (!found.newest &&
      (lineage.has_committed_parent() || !lineage.broken().empty() || !tried.empty())) {
    if (!lineage.broken().empty()) tried += (tried.empty() ? "" : "; ") + lineage.broken();
    return DataLossError(fmt::format("{}: no readable checkpoint in the lineage of term {}: {}",
                                     dir, found.newest_term,
                                     tried.empty() ? "the commits that its terms go on from are "
                                                     "missing"
                                                   : tried));
  }
  for (const SaveId& save : scan.packs) {
    if (scan.manifests.contains(save)) continue;
    if (found.newest && save < found.newest->save) continue;
    GODWIT_ASSIGN_OR_RETURN(const Uncommitted packs, LookAtPacks(fs, dir, save));
    std::string why = packs.note;
    if (save.term < found.newest_term) {
      why += fmt::format("; superseded by term {}", found.newest_term);
    }
    found.rejected.push_back({save, std::move(why)});
  }
  std::sort(found.rejected.begin(), found.rejected.end(),
            [](const Rejected& a, const Rejected& b) { return a.save > b.save; });
  return found;
}

// Durable on OK. When it differs from what is there already: DATA_LOSS.
Status Publish(FileSystem& fs, const std::string& dir, const Manifest& manifest) {
  const std::string path = ManifestPath(dir, manifest.save);
  const Status written = WriteFileAtomic(fs, TempPath(ManifestsDir(dir), manifest.save.term), path,
                                         AsBytes(manifest.encoded));
  if (written.code() != StatusCode::kAlreadyExists) return written;
  GODWIT_ASSIGN_OR_RETURN(const std::string there, ReadStored(fs, path, kMaxManifestBytes));
  if (there != manifest.encoded) {
    return DataLossError(fmt::format("{}: another manifest has the name: digest {}, this one {}",
                                     path, DigestOf(AsBytes(there)).ToHex(),
                                     manifest.digest.ToHex()));
  }
  // Whoever published it may not have got to this.
  return fs.SyncDir(ManifestsDir(dir));
}

// Adds to `saves` all whose packs one of them refers to, over any number of steps. What can't be
// read refers to nothing any more.
Status AddReferred(FileSystem& fs, const std::string& dir, std::set<SaveId>& saves) {
  std::vector<SaveId> open(saves.begin(), saves.end());
  while (!open.empty()) {
    const SaveId save = open.back();
    open.pop_back();
    auto entries = fs.List(SaveDir(dir, save));
    if (entries.status().code() == StatusCode::kNotFound) continue;
    if (!entries.ok()) return entries.status();
    for (const DirEntry& e : *entries) {
      if (!e.name.ends_with(".pack")) continue;
      const std::string path = JoinPath(SaveDir(dir, save), e.name);
      const auto tail = ReadPackTail(fs, path);
      auto sources = tail.ok() ? ReadPackSources(fs, path, *tail) : tail.status();
      if (sources.status().code() == StatusCode::kDataLoss ||
          sources.status().code() == StatusCode::kNotFound) {
        continue;
      }
      if (!sources.ok()) return sources.status();
      for (const PackSource& source : *sources) {
        // Each source is older than what refers to it (ParsePackSources): this comes to an end.
        if (saves.insert(source.save).second) open.push_back(source.save);
      }
    }
  }
  return OkStatus();
}

Status RemoveSaveDir(FileSystem& fs, const std::string& dir, const SaveId& save) {
  const std::string path = SaveDir(dir, save);
  auto entries = fs.List(path);
  if (entries.status().code() == StatusCode::kNotFound) return OkStatus();
  if (!entries.ok()) return entries.status();
  for (const DirEntry& e : *entries) {
    const Status s = fs.Unlink(JoinPath(path, e.name));
    if (!s.ok() && s.code() != StatusCode::kNotFound) return s;
  }
  const Status s = fs.RemoveDir(path);
  return s.code() == StatusCode::kNotFound ? OkStatus() : s;
}

Status RemoveFile(FileSystem& fs, const std::string& path) {
  const Status s = fs.Unlink(path);
  return s.code() == StatusCode::kNotFound ? OkStatus() : s;
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

}  // namespace

std::string SaveDir(const std::string& dir, const SaveId& save) {
  return JoinPath(PacksDir(dir), ToString(save));
}
std::string PackPath(const std::string& dir, const SaveId& save, uint32_t rank) {
  return JoinPath(SaveDir(dir, save), fmt::format("{:05}.pack", rank));
}
ChunkReader::PackPathFn PacksOf(const std::string& dir) {
  return [dir](const SaveId& save, uint32_t rank) { return PackPath(dir, save, rank); };
}
std::string ManifestPath(const std::string& dir, const SaveId& save) {
  return JoinPath(ManifestsDir(dir), ToString(save));
}
std::string TermPath(const std::string& dir, uint64_t term) {
  return JoinPath(TermsDir(dir), TermName(term));
}

Status OpenCheckpointDir(FileSystem& fs, const std::string& dir, bool create) {
  GODWIT_RETURN_IF_ERROR(CheckAbsolute(dir));
  const Status format = CheckFormat(fs, dir);
  if (format.code() != StatusCode::kNotFound || !create) return format;
  GODWIT_RETURN_IF_ERROR(fs.CreateDirs(dir));
  // FORMAT comes last: where it is, the rest is.
  for (const std::string& sub : {TermsDir(dir), PacksDir(dir), ManifestsDir(dir)}) {
    const Status made = fs.CreateDir(sub);
    if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  }
  GODWIT_RETURN_IF_ERROR(fs.SyncDir(dir));
  const Status written =
      WriteFileAtomic(fs, JoinPath(dir, fmt::format(".tmp-FORMAT-{:016x}", SystemRandom64())),
                      FormatPath(dir), AsBytes(kFormatFileText));
  if (!written.ok() && written.code() != StatusCode::kAlreadyExists) return written;
  GODWIT_RETURN_IF_ERROR(CheckFormat(fs, dir));
  return fs.SyncDir(dir);
}

Result<Manifest> ReadManifest(FileSystem& fs, const std::string& dir, const SaveId& save) {
  const std::string path = ManifestPath(dir, save);
  auto bytes = ReadStored(fs, path, kMaxManifestBytes);
  if (!bytes.ok()) return bytes.status();
  auto manifest = ParseManifest(AsBytes(*bytes), path);
  if (manifest.ok() && manifest->save != save) {
    return DataLossError(fmt::format("{}: it is of {}", path, ToString(manifest->save)));
  }
  return manifest;
}

Status VerifyPacks(FileSystem& fs, const std::string& dir, const Manifest& manifest) {
  std::string damage;
  for (const PackTail& tail : manifest.tails) {
    const Status s = VerifyPack(fs, PackPath(dir, manifest.save, tail.rank), tail, PacksOf(dir));
    if (s.ok()) continue;
    if (s.code() != StatusCode::kDataLoss && s.code() != StatusCode::kNotFound) return s;
    damage += (damage.empty() ? "" : "; ") + s.message();
  }
  return damage.empty() ? OkStatus() : DataLossError(damage);
}

Result<Found> FindNewest(FileSystem& fs, const std::string& dir,
                         const std::set<SaveId>& distrusted) {
  Status last;
  for (int i = 0; i < kReaderTries; ++i) {
    GODWIT_ASSIGN_OR_RETURN(const Scan scan, ScanDir(fs, dir));
    auto found = Find(fs, dir, scan, distrusted);
    if (found.status().code() != StatusCode::kAborted) return found;
    last = found.status();
  }
  return last;
}

Result<std::optional<Commit>> CommitComplete(FileSystem& fs, const std::string& dir) {
  GODWIT_ASSIGN_OR_RETURN(const Scan scan, ScanDir(fs, dir));
  const Lineage lineage(scan.terms);
  const uint64_t term = lineage.newest_term();
  std::optional<Commit> newest;
  if (term == 0) return newest;
  std::optional<SaveId> committed;
  for (const SaveId& save : scan.manifests) {
    if (save.term == term) committed = save;
  }
  for (const SaveId& save : scan.packs) {
    if (save.term != term || scan.manifests.contains(save)) continue;
    if ((committed && save < *committed) || !lineage.WhyNot(save).empty()) continue;
    GODWIT_ASSIGN_OR_RETURN(const Uncommitted packs, LookAtPacks(fs, dir, save));
    if (!packs.complete) continue;
    // The packs' bytes are durable because their names are there; the names may not be.
    GODWIT_RETURN_IF_ERROR(fs.SyncDir(SaveDir(dir, save)));
    GODWIT_RETURN_IF_ERROR(fs.SyncDir(PacksDir(dir)));
    GODWIT_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(save, packs.tails));
    const Status sources = CheckSourcesOf(fs, dir, manifest.tails);
    if (sources.code() == StatusCode::kDataLoss) continue;  // as good as incomplete
    GODWIT_RETURN_IF_ERROR(sources);
    GODWIT_RETURN_IF_ERROR(Publish(fs, dir, manifest));
    newest = CommitOf(manifest);
  }
  return newest;
}

Result<NewTerm> BeginTerm(FileSystem& fs, const std::string& dir, std::string_view job_id,
                          uint64_t now_unix_ms, const std::set<SaveId>& distrusted) {
  GODWIT_RETURN_IF_ERROR(CheckFormat(fs, dir));
  GODWIT_ASSIGN_OR_RETURN(const uint64_t before, NewestClaim(fs, dir));
  TermRecord record;
  record.term = before + 1;
  // The number first: from here on no older writer's commit is acknowledged (CommitSave), so that
  // none that was is missed below. A claim without a record, of a writer that died here, is only a
  // number that nobody takes again.
  const std::string claim = TermPath(dir, record.term) + std::string(kClaimSuffix);
  const Status claimed = WriteFileExclusive(fs, claim, {}, Durability::kFileAndName);
  if (claimed.code() == StatusCode::kAlreadyExists) {
    return AbortedError(fmt::format("{}: another writer took term {} first", dir, record.term));
  }
  GODWIT_RETURN_IF_ERROR(claimed);
  GODWIT_RETURN_IF_ERROR(CommitComplete(fs, dir).status());
  // A manifest whose writer was killed before its own sync is seen, but may not be durable. The
  // record below must not outlive it.
  GODWIT_RETURN_IF_ERROR(fs.SyncDir(ManifestsDir(dir)));
  GODWIT_ASSIGN_OR_RETURN(Found found, FindNewest(fs, dir, distrusted));
  if (found.newest_term >= record.term) {
    return AbortedError(
        fmt::format("{}: term {} was begun before term {}", dir, found.newest_term, record.term));
  }
  if (!found.damaged_term.empty()) {
    LogWarning("{}: {}; older commits can't be seen", dir, found.damaged_term);
  }
  if (found.newest) {
    record.parent = {found.newest->save.term, found.newest->save, found.newest->manifest_digest};
  }
  record.created_unix_ms = now_unix_ms;
  record.host = HostName();
  record.pid = getpid();
  record.job_id = job_id;
  const Status written = WriteFileAtomic(fs, TempPath(TermsDir(dir), record.term),
                                         TermPath(dir, record.term), AsBytes(EncodeTerm(record)));
  if (written.code() == StatusCode::kAlreadyExists) {
    return AbortedError(fmt::format("{}: another writer took term {} first", dir, record.term));
  }
  GODWIT_RETURN_IF_ERROR(written);
  found.newest_term = record.term;
  return NewTerm{record, std::move(found)};
}

Result<Commit> CommitSave(FileSystem& fs, const std::string& dir, const SaveId& save,
                          const std::vector<std::string>& tails) {
  GODWIT_RETURN_IF_ERROR(CheckFormat(fs, dir));
  GODWIT_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(save, tails));
  const auto check_term = [&]() -> Status {
    GODWIT_ASSIGN_OR_RETURN(const uint64_t newest, NewestClaim(fs, dir));
    if (newest > save.term) {
      return AbortedError(
          fmt::format("commit of {}: superseded by term {}", ToString(save), newest));
    }
    if (newest < save.term) {
      return FailedPreconditionError(
          fmt::format("commit of {}: no such term, the newest is {}", ToString(save), newest));
    }
    return OkStatus();
  };
  GODWIT_RETURN_IF_ERROR(check_term());
  // What it refers to may have been removed since its packs were begun.
  GODWIT_RETURN_IF_ERROR(CheckSourcesOf(fs, dir, manifest.tails));
  GODWIT_RETURN_IF_ERROR(Publish(fs, dir, manifest));
  // Again: only a commit that a new term can't have missed is acknowledged (BeginTerm).
  GODWIT_RETURN_IF_ERROR(check_term());
  return CommitOf(manifest);
}

Status CheckSources(FileSystem& fs, const std::string& dir, std::vector<PackSource> sources) {
  std::set<std::pair<SaveId, uint32_t>> checked;
  // Each source is older than what refers to it (ParsePackSources): this comes to an end.
  while (!sources.empty()) {
    const PackSource source = sources.back();
    sources.pop_back();
    if (!checked.emplace(source.save, source.rank).second) continue;
    const std::string path = PackPath(dir, source.save, source.rank);
    if (fs.Stat(ManifestPath(dir, source.save)).status().code() == StatusCode::kNotFound) {
      return DataLossError(fmt::format("{} is referred to, but its save is not committed", path));
    }
    const auto tail = ReadPackTail(fs, path);
    if (tail.status().code() == StatusCode::kNotFound) {
      return DataLossError(fmt::format("{} is referred to, but missing", path));
    }
    if (!tail.ok()) return tail.status();
    if (TailDigest(EncodePackTail(*tail)) != source.tail_digest) {
      return DataLossError(fmt::format("{} is not the pack that is referred to", path));
    }
    GODWIT_ASSIGN_OR_RETURN(const auto more, ReadPackSources(fs, path, *tail));
    sources.insert(sources.end(), more.begin(), more.end());
  }
  return OkStatus();
}

Result<std::vector<BranchEntry>> ListBranches(FileSystem& fs, const std::string& dir, bool deep) {
  GODWIT_ASSIGN_OR_RETURN(const Scan scan, ScanDir(fs, dir));
  const Lineage lineage(scan.terms);
  std::set<SaveId> all = scan.manifests;
  all.insert(scan.packs.begin(), scan.packs.end());
  std::vector<BranchEntry> out;
  const auto note = [](BranchEntry& entry, const std::string& text) {
    if (text.empty()) return;
    entry.note += (entry.note.empty() ? "" : "; ") + text;
  };
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    BranchEntry entry;
    entry.save = *it;
    const std::string why = lineage.WhyNot(*it);
    if (!scan.manifests.contains(*it)) {
      GODWIT_ASSIGN_OR_RETURN(const Uncommitted packs, LookAtPacks(fs, dir, *it));
      note(entry, packs.note);
      note(entry, why);
      for (const std::string& bytes : packs.tails) {
        GODWIT_ASSIGN_OR_RETURN(const PackTail tail, ParsePackTail(AsBytes(bytes), "tail"));
        entry.world_size = tail.world_size;
        entry.bytes += tail.file_bytes;
      }
      out.push_back(std::move(entry));
      continue;
    }
    entry.committed = true;
    entry.in_lineage = why.empty();
    note(entry, why);
    auto manifest = CheckCommit(fs, dir, *it, lineage.RecordedDigest(*it));
    if (manifest.status().code() == StatusCode::kAborted) continue;  // deleted meanwhile
    if (manifest.ok()) {
      entry.world_size = manifest->world_size;
      entry.bytes = manifest->bytes();
      if (deep) {
        const Status intact = VerifyPacks(fs, dir, *manifest);
        entry.intact = intact.ok();
        note(entry, intact.ok() ? "" : "damaged: " + intact.message());
      }
    } else {
      note(entry, "damaged: " + manifest.status().message());
    }
    out.push_back(std::move(entry));
  }
  return out;
}

Status Retain(FileSystem& fs, const std::string& dir, uint64_t term, uint32_t keep) {
  if (keep == 0) return InvalidArgumentError("retain: keep is 0, allowed are 1 and more");
  // From its claim on a newer term goes on from what it finds; only it deletes.
  const auto check_term = [&]() -> Status {
    GODWIT_ASSIGN_OR_RETURN(const uint64_t claimed, NewestClaim(fs, dir));
    if (claimed == term) return OkStatus();
    return FailedPreconditionError(
        fmt::format("{}: only the newest term deletes: that is {}, not {}", dir, claimed, term));
  };
  GODWIT_ASSIGN_OR_RETURN(const Scan scan, ScanDir(fs, dir));
  GODWIT_RETURN_IF_ERROR(check_term());
  const Lineage lineage(scan.terms);
  std::optional<SaveId> newest;  // the newest intact commit
  std::optional<SaveId> oldest;  // the oldest that is kept
  uint32_t kept = 0;
  for (auto it = scan.manifests.rbegin(); it != scan.manifests.rend() && kept < keep; ++it) {
    if (!lineage.WhyNot(*it).empty()) continue;
    const auto manifest = CheckCommit(fs, dir, *it, lineage.RecordedDigest(*it));
    if (manifest.ok()) {
      if (!newest) newest = *it;
      oldest = *it;
      ++kept;
    } else if (manifest.status().code() != StatusCode::kDataLoss) {
      return manifest.status();
    }
  }
  if (!newest || newest->term != term) {
    return FailedPreconditionError(
        fmt::format("{}: term {} deletes only after its own first commit", dir, term));
  }
  // Fewer than `keep` are intact: what is damaged may be all that is left of older state.
  if (kept < keep) oldest = SaveId{};

  // What stays, and all that it refers to, manifests included: a base stays a commit.
  std::set<SaveId> roots;
  for (const SaveId& save : scan.manifests) {
    if (lineage.WhyNot(save).empty() && save >= *oldest) roots.insert(save);
  }
  for (const SaveId& save : scan.packs) {
    if (!scan.manifests.contains(save) && save > *newest) roots.insert(save);
  }
  GODWIT_RETURN_IF_ERROR(AddReferred(fs, dir, roots));
  std::set<SaveId> doomed;
  for (const SaveId& save : scan.manifests) {
    if (!roots.contains(save)) doomed.insert(save);
  }
  GODWIT_RETURN_IF_ERROR(check_term());
  if (!doomed.empty()) {
    for (const SaveId& save : doomed) {
      GODWIT_RETURN_IF_ERROR(RemoveFile(fs, ManifestPath(dir, save)));
    }
    // A manifest must never come back without its packs.
    GODWIT_RETURN_IF_ERROR(fs.SyncDir(ManifestsDir(dir)));
  }
  GODWIT_RETURN_IF_ERROR(check_term());
  bool removed = false;
  for (const SaveId& save : scan.packs) {
    const bool committed = scan.manifests.contains(save);
    if (committed ? !doomed.contains(save) : roots.contains(save)) continue;
    GODWIT_RETURN_IF_ERROR(RemoveSaveDir(fs, dir, save));
    removed = true;
  }
  if (removed) GODWIT_RETURN_IF_ERROR(fs.SyncDir(PacksDir(dir)));

  // What writers left that were killed: pieces of packs of committed saves, temporary names.
  for (const SaveId& save : scan.manifests) {
    if (doomed.contains(save)) continue;
    auto entries = fs.List(SaveDir(dir, save));
    if (entries.status().code() == StatusCode::kNotFound) continue;
    if (!entries.ok()) return entries.status();
    for (const DirEntry& e : *entries) {
      if (e.name.find(".pack.part-") == std::string::npos) continue;
      GODWIT_RETURN_IF_ERROR(RemoveFile(fs, JoinPath(SaveDir(dir, save), e.name)));
    }
  }
  for (const std::string& sub : {TermsDir(dir), ManifestsDir(dir)}) {
    GODWIT_ASSIGN_OR_RETURN(const auto entries, fs.List(sub));
    for (const DirEntry& e : entries) {
      std::string_view name = e.name;
      auto of = TempTerm(name);
      if (name.ends_with(kClaimSuffix)) {
        name.remove_suffix(kClaimSuffix.size());
        if (auto claimed_term = ParseTermName(name); claimed_term.ok()) of = *claimed_term;
      }
      if (of && *of < term) GODWIT_RETURN_IF_ERROR(RemoveFile(fs, JoinPath(sub, e.name)));
    }
  }
  return OkStatus();
}

}  // namespace godwit::ckpt
