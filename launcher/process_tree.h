#pragma once

#include <sys/types.h>

#include <cstdint>
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

// All processes that were executed with `name`=`value` in their environment, zombies not.
Result<std::vector<pid_t>> ProcessesWithEnvironment(std::string_view name, std::string_view value);

// What a process does: the state letter of proc(5) and the processor time it has used so far, in
// clock ticks.
struct ProcessActivity {
  char state = '?';
  uint64_t cpu_ticks = 0;
};
// NOT_FOUND when there is no such process.
Result<ProcessActivity> ActivityOf(pid_t pid);

// A child that has ended and was not reaped; 0: there is none. The number stays its own until it is
// reaped.
Result<pid_t> PeekEndedChild();
// Reaps a child that has ended, whatever its status.
void ReapUnknownChild(pid_t pid);

}  // namespace godwit
