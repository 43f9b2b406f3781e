#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace godwit {

// The living children (zombies too) of this process, from /proc. A child that is not reaped keeps
// its number, so it may be signalled by it.
Result<std::vector<pid_t>> ChildPids();

// The value of an environment variable that the process was executed with; nullopt when it has none
// or can't be asked (it ended, changed its uid).
std::optional<std::string> EnvironmentOf(pid_t pid, std::string_view name);

}  // namespace godwit
