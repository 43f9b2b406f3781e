#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace godwit {

// All numeric addresses of a host's name; may block for as long as it likes.
using Lookup = std::function<Result<std::vector<std::string>>(const std::string& host)>;

// getaddrinfo(3).
Result<std::vector<std::string>> LookUpHost(const std::string& host);

// A numeric address of this host that `host` (a name, or an address already) stands for and that
// can be listened on: for libraries that would resolve the name themselves, without a bound.
// Blocks until `deadline` at most; DEADLINE_EXCEEDED then, and the lookup's thread is left to
// itself (it can't be interrupted). NOT_FOUND when no address is this host's.
Result<std::string> LocalAddressOf(const std::string& host, MonotonicTime deadline,
                                   const Lookup& lookup = LookUpHost);

}  // namespace godwit
