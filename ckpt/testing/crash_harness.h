#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace godwit::ckpt::testing {

// Puts an engine that is wrong on purpose between the engine and the file system; without one the
// engine is as it is.
using Decorator = std::function<std::unique_ptr<FileSystem>(FileSystem& target)>;

struct CrashReport {
  uint64_t cases = 0;
  // Each broken promise, with what was done to break it. Empty for a correct engine.
  std::vector<std::string> violations;
};

// A save of `world_size` ranks (packs, commit, retention) on top of earlier ones, once for every
// call to the file system, in which that call
//   - is the last of the process (killed): all that was written stays;
//   - is the last before power fails: what was not synced is lost, or survives in part;
//   - is the last of a process whose successor begins a term before power fails;
//   - fails with ENOSPC or EIO, or writes short, and the process goes on.
// Afterwards the newest checkpoint must be found, be bit-exact, be no older than what was
// acknowledged, and the next save must work.
// Of a save that refers to others, the earlier ones do, too, and retention has to keep what they
// refer to; and no commit may be left that is not whole.
enum class SaveKind { kFull, kReferences, kDeltas };
CrashReport CrashSave(uint32_t world_size, const Decorator& decorate,
                      SaveKind kind = SaveKind::kFull);

// The same for the start of a directory and of a term.
CrashReport CrashBegin(const Decorator& decorate);

// A name that is taken stays what it is, for manifests and packs.
CrashReport CheckExclusive(const Decorator& decorate);

}  // namespace godwit::ckpt::testing
