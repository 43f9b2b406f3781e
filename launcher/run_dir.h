#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace godwit {

// A node's run directory has one owner, its agent, who holds a lock in it for as long as it lives.
// What a killed owner has left can so be told from what is in use, whatever was killed with it.

// Takes the lock; waits up to 5 s for an owner that is just ending, then FAILED_PRECONDITION names
// it. The lock ends with the process, however that ends; its children don't have it.
Result<UniqueFd> LockRunDir(const std::string& run_dir);

// Marks the directory as one that is to stay, for a person to look at.
Status KeepRunDir(const std::string& run_dir);

// Removes the directory, with all that is in it, if it had an owner, who is dead, and was not
// marked. False: it's in use, was never locked, or is marked. OK and true when there is none.
Result<bool> RemoveIfAbandoned(const std::string& run_dir);

// RemoveIfAbandoned for this user's directories `root`/`prefix`*, at most 64 of them: those whose
// owner and keeper were killed together. What can't be removed is logged.
void RemoveAbandonedIn(const std::string& root, const std::string& prefix);

}  // namespace godwit
