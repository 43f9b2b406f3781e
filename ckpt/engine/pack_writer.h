#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "ckpt/engine/arena.h"
#include "ckpt/engine/pack_history.h"
#include "ckpt/format/save_id.h"

namespace godwit::ckpt {

// Writes one rank's pack of one save out of its arena: the rank's share of replicated chunks (dealt
// round-robin over the ranks of the save), and all that is its own. Chunks are checked against the
// digests that were taken at staging before they are encoded: damage in memory is DATA_LOSS naming
// chunk and tensor, nothing is published.
struct WritePackOptions {
  std::string directory;  // of checkpoints, absolute, opened before
  SaveId save;
  uint64_t snapshot_epoch = 0;
  uint64_t snapshot_step = 0;
  uint32_t rank = 0;  // must be those of the snapshot
  uint32_t world_size = 0;
  std::optional<MonotonicTime> deadline;  // none: the caller's thread runs at idle priority
  // That encode, when there is a deadline; 0: as many as processors. Without one it is one.
  uint32_t threads = 0;
  // Of this rank's writer; null: nothing is referred to. On OK the pack was added to it.
  PackHistory* history = nullptr;
  const std::atomic<bool>* cancel = nullptr;
  size_t append_bytes = 1 << 20;  // frames are gathered up to this size before a write
};

struct WrittenPack {
  std::string tail;    // bytes for CommitSave
  uint64_t bytes = 0;  // of the file
  uint64_t raw_bytes = 0;
  std::string choice;  // what it refers to and why; empty: the pack was there already
};

// Blocks for the whole write. On OK the pack is durable: data, fsync of file and folder, then the
// tail, fsync, all under a name of its own; then the pack's name, fsync of the folder. So whoever
// sees the name knows that the bytes are durable. On error the name isn't there, or the pack is
// whole and trying again says so; the space is given back as far as the file system allows.
// RESOURCE_EXHAUSTED names path and need (checked before the first byte, too, unless there is a
// deadline). An existing whole pack of the same save and rank is returned as it is.
// NOT_FOUND when the arena has no such snapshot, ABORTED when it was given up meanwhile, CANCELLED
// and DEADLINE_EXCEEDED between two chunks. Memory: a few chunks for each thread.
//
// What nobody waits for is written at idle priority with rests while others want the processors
// (BackgroundPace), and is stored rather than encoded where they want them all the time.
//
// With a history, chunks that are those of the last committed pack refer to it (ChooseBase), and
// floats may be written as differences to it, whose bytes are then read from its snapshot.
Result<WrittenPack> WritePack(FileSystem& fs, Clock& clock, const Arena& arena,
                              const WritePackOptions& options);

}  // namespace godwit::ckpt
