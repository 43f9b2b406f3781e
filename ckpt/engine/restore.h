#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "ckpt/engine/arena.h"
#include "ckpt/format/save_id.h"
#include "ckpt/include/godwit/ckpt/state.h"

namespace godwit::ckpt {

struct RestoreStats {
  uint64_t bytes_read = 0;
  uint64_t tensors = 0;
  // Tracked per rank, but this rank did not exist when it was saved: derived, or left as the
  // program set it up.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;  // in the checkpoint, not tracked
};

// Reads a committed checkpoint into the tracked state of one rank, at any world size: replicated
// state from whichever rank's pack holds each chunk, per-rank blobs from the pack of the same rank
// (derived when there is none). Digests are checked after decompression. Entries in the checkpoint
// that are not tracked are reported, not errors. NOT_FOUND, DATA_LOSS or
// FAILED_PRECONDITION (a shape, dtype or missing name; strict) name the file, chunk and tensor; the
// state is then partly written and must not be used.
Result<RestoreStats> RestoreFromStorage(FileSystem& fs, const std::string& directory,
                                        const SaveId& save, uint32_t rank, uint32_t world_size,
                                        const StateList& state);

// Reads the newest whole snapshot of this step in this rank's arena; same rank, world size and
// plan. Digests are checked: DATA_LOSS names the chunk, and the state must not be used.
Result<RestoreStats> RestoreFromMemory(const Arena& arena, uint64_t step, uint32_t rank,
                                       uint32_t world_size, const StateList& state);

// Every chunk of every pack of the save: digest after decompression. DATA_LOSS lists each damaged
// chunk with the tensors that it holds. The save must be committed.
Status VerifySave(FileSystem& fs, const std::string& directory, const SaveId& save);

// One blob of a committed save, for tools ("sampler" holds the ledger).
Result<std::string> ReadBlob(FileSystem& fs, const std::string& directory, const SaveId& save,
                             const std::string& name, uint32_t rank);

}  // namespace godwit::ckpt
