#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace godwit {

// A process whose environment has "<name>=<value>", which all descendants inherit that don't get an
// environment of their own.
struct TaggedProcess {
  pid_t pid = 0;
  uint64_t start_time = 0;  // as ProcessStartTime
  std::vector<std::string> argv;
};

// All of this user's that live now, by /proc; processes that end meanwhile, and zombies, are left
// out. One that starts meanwhile may be missed: call again.
Result<std::vector<TaggedProcess>> FindTagged(const std::string& name, const std::string& value);

}  // namespace godwit
