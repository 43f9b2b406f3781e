#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "ckpt/engine/arena.h"
#include "ckpt/engine/base_choice.h"
#include "ckpt/lineage/checkpoint_dir.h"

namespace godwit::ckpt {

// Persists the snapshots of a process that nobody launched: the writer of its directory (it begins
// a term) and the whole of its world. A thread "gw-persist" writes, commits and retains, at idle
// priority. A save that fails is logged and kept in last_error(); the next one tries again.
// Thread-safe.
class SoloSaver {
 public:
  struct Options {
    std::string dir;  // of checkpoints, absolute; made when it is missing
    std::string job_id;
    uint32_t keep = 3;            // newest commits
    BaseLimits base;              // what a save may refer to
    std::set<SaveId> distrusted;  // never gone on from (BeginTerm)
  };
  // Blocks on the file system: opens the directory, begins a term. The errors of BeginTerm.
  static Result<std::unique_ptr<SoloSaver>> Open(FileSystem& fs, Clock& clock, Options options,
                                                 Arena arena);
  ~SoloSaver();  // cancels what is under way, joins

  uint64_t term() const;
  // What was there when the term began: restore from `newest`.
  const Found& found() const;

  // For each whole snapshot (Snapshotter::Options::on_whole), whether it's to be saved or not:
  // older ones are freed, except those that wait to be saved. Never blocks on I/O.
  void Whole(uint64_t step, uint64_t epoch);
  // The same, and the snapshot is to be saved. One waits beside the one being written; a newer one
  // takes its place.
  void Offer(uint64_t step, uint64_t epoch);

  // Waits until all that was offered is saved or has failed, writing at normal priority meanwhile:
  // OK, the last save's error, or DEADLINE_EXCEEDED.
  Status Drain(Duration budget);

  Status last_error() const;        // of the last save that ended; OK when it was committed
  uint64_t committed_step() const;  // by this term; 0: none yet

 private:
  struct Impl;
  explicit SoloSaver(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace godwit::ckpt
