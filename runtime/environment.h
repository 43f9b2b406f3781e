#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace godwit {

// How this process was started, as its environment says.
struct LaunchEnvironment {
  bool launched = false;  // by a keeper; else this process is on its own
  std::string keeper_socket;
  uint32_t slot = 0;
  uint64_t epoch = 0;
  std::string job;   // empty: none given
  std::string dir;   // of checkpoints, overrides the program's; empty: it does not
  std::string host;  // where peers reach this process
};

// `get` gives a variable's value, or null. FAILED_PRECONDITION for a world size above 1 that no
// keeper stands behind, naming `godwit run`; INVALID_ARGUMENT naming a variable that makes no
// sense.
Result<LaunchEnvironment> ReadLaunchEnvironment(
    const std::function<const char*(const char* name)>& get);

}  // namespace godwit
