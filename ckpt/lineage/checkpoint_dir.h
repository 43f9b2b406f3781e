#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/file_system.h"
#include "base/status.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/save_id.h"
#include "ckpt/format/term.h"
#include "ckpt/io/chunk_reader.h"

namespace godwit::ckpt {

// A directory of checkpoints:
//   FORMAT                         "godwit checkpoint v1\n": another version is refused by name
//   terms/<term>.claim             the number is taken: older writers' commits don't count any more
//   terms/<term>                   one start of a writer: parent term, step, manifest digest
//   packs/<save id>/<rank>.pack    one rank's share of one save: the name appears when all of its
//                                  bytes are durable
//   manifests/<save id>            the commit: published exclusively, never replaced
// Nothing is ever renamed over an existing name, and nothing is trusted because it was listed:
// a save counts when its manifest is there, a manifest counts when its digest and packs check.

// A committed save that is in the lineage of the newest term.
struct Commit {
  SaveId save;
  Digest128 manifest_digest;
  uint32_t world_size = 0;
  uint64_t bytes = 0;
};

// Something that a reader met on its way and did not choose, and why.
struct Rejected {
  SaveId save;
  std::string reason;    // "incomplete: 2 of 3 packs have no tail", "dead branch of term 2", ...
  bool damaged = false;  // a commit of the lineage: it would have been chosen
};

struct Found {
  std::optional<Commit> newest;    // none: nothing was ever committed in the lineage
  std::vector<Rejected> rejected;  // newer than `newest`, or beside it; newest first
  uint64_t newest_term = 0;        // 0: no writer yet
  // Why the walk back through the terms ended early: a record is damaged or missing, and older
  // commits can't be seen. Empty: it did not. `newest` is right all the same.
  std::string damaged_term;
};

struct BranchEntry {
  SaveId save;
  bool committed = false;
  bool in_lineage = false;
  bool intact = false;  // with `deep`: every chunk's digest was checked
  uint32_t world_size = 0;
  uint64_t bytes = 0;
  std::string note;  // why not in the lineage, not committed or not intact
};

// Free functions of any reader and of the single writer. All block on the file system. The
// directory must be absolute. Errors name the path.
//
// Creates the directory's fixed parts if they are missing (durably), and checks FORMAT.
// FAILED_PRECONDITION for another version, naming both.
Status OpenCheckpointDir(FileSystem& fs, const std::string& dir, bool create);

// The newest complete checkpoint of the lineage: from the newest term back through its parents,
// within a term the newest commit by (step, attempt) that is not below the term's parent. Checks
// each candidate's manifest and pack tails (not every chunk); a damaged one is rejected and the
// next older one taken. If terms exist with a committed parent but nothing in the lineage is
// readable: DATA_LOSS naming everything that was tried: never "fresh". A save in `distrusted`
// counts as damaged, though its tails check: somebody read its chunks.
Result<Found> FindNewest(FileSystem& fs, const std::string& dir,
                         const std::set<SaveId>& distrusted = {});

// Commits complete but uncommitted saves of the newest term that are newer than its newest commit
// (all tails there and whole): same bytes, same name, whoever does it. Returns the newest such.
Result<std::optional<Commit>> CommitComplete(FileSystem& fs, const std::string& dir);

// Starts a writer: takes the next term's number, exclusively and durably, then CommitComplete and
// FindNewest, then records the term with its parent. From the first of these on CommitSave of older
// terms is ABORTED; what it acknowledged before is seen. ABORTED when another writer took the same
// number or began a newer term first (the caller may retry a bounded number of times). The parent
// is never in `distrusted`: whoever goes back behind a damaged save begins a term of its own, or
// its commits would count for nothing until they have passed that save.
struct NewTerm {
  TermRecord record;
  Found found;
};
Result<NewTerm> BeginTerm(FileSystem& fs, const std::string& dir, std::string_view job_id,
                          uint64_t now_unix_ms, const std::set<SaveId>& distrusted = {});

// Publishes the save whose packs' tails (one per rank, as written) are given. OK also when the same
// manifest was already there. ABORTED when a newer term than save.term was begun: the writer was
// superseded (its manifest may then lie there as a dead branch). DATA_LOSS when the tails don't
// belong together (save id, world size, plan or rank set differ), naming which, or when
// CheckSources refuses what their packs refer to. On OK the commit is durable.
Result<Commit> CommitSave(FileSystem& fs, const std::string& dir, const SaveId& save,
                          const std::vector<std::string>& tails);

// Whether packs may be referred to: DATA_LOSS unless all that they lead to, over any number of
// steps, is there, as it was then, and of committed saves. Chunks are not read.
Status CheckSources(FileSystem& fs, const std::string& dir, std::vector<PackSource> sources);

// Everything there, newest first, with branches.
Result<std::vector<BranchEntry>> ListBranches(FileSystem& fs, const std::string& dir, bool deep);

// Deletes saves that are neither the newest `keep` intact commits of the lineage nor younger than
// the newest commit of `term` (complete but uncommitted, or under way). A damaged commit that is
// younger than the oldest that is kept stays, too. Only for the holder of `term`, only after its
// own commit; otherwise FAILED_PRECONDITION. Manifests first, sync, then packs.
Status Retain(FileSystem& fs, const std::string& dir, uint64_t term, uint32_t keep);

// The manifest of a committed save, checked. NOT_FOUND when it isn't committed.
Result<Manifest> ReadManifest(FileSystem& fs, const std::string& dir, const SaveId& save);

// Every chunk of every pack of a save. DATA_LOSS lists what is damaged.
Status VerifyPacks(FileSystem& fs, const std::string& dir, const Manifest& manifest);

std::string SaveDir(const std::string& dir, const SaveId& save);
std::string PackPath(const std::string& dir, const SaveId& save, uint32_t rank);
// PackPath in `dir`.
ChunkReader::PackPathFn PacksOf(const std::string& dir);
std::string ManifestPath(const std::string& dir, const SaveId& save);
std::string TermPath(const std::string& dir, uint64_t term);

}  // namespace godwit::ckpt
