#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "godwit/runtime/collective.h"

namespace godwit {

// How ranks find each other: set once per key, get waits for it. Blocking, thread-safe.
struct KeyExchange {
  std::function<Status(std::string_view key, std::string_view value)> set;
  std::function<Result<std::string>(std::string_view key, Duration timeout)> get;
};

struct GlooOptions {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string host;  // this rank's address, as its peers reach it
  Duration connect_timeout = std::chrono::seconds(60);
  Duration timeout = std::chrono::minutes(10);  // of one operation
};

// Collectives on CPUs over TCP by Gloo. Blocks until all ranks are connected with each other, at
// most connect_timeout. An operation fails at once when a peer's connection breaks.
Result<std::unique_ptr<Collective>> OpenGlooCollective(const GlooOptions& options,
                                                       const KeyExchange& exchange);

}  // namespace godwit
