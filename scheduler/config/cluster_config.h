#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "scheduler/policy/cluster.h"

namespace godwit {

// The cluster as its administrator wants it. A JSON object:
//   {"quotas": [{"name": "team-a", "guaranteed": 1, "max": 3, "lendable": true,
//                "queue": "round-robin"}],
//    "notice_s": 30, "max_notice_s": 600, "grow_after_s": 5, "checkpoint_root": "/data/ckpt"}
// A quota needs name and guaranteed (slots); max unset: no bound on borrowing; lendable: true;
// queue: "round-robin" (default) or "strict-fifo". Everything else is optional.
struct ClusterConfig {
  std::vector<policy::Quota> quotas;
  // Of a notice when the job doesn't say; and the most that a job may ask for.
  Duration notice = std::chrono::seconds(30);
  Duration max_notice = std::chrono::seconds(600);
  Duration grow_after = std::chrono::seconds(5);
  // A job without a directory of its own gets <checkpoint_root>/<job id>; empty: it has none.
  std::string checkpoint_root;
};

// "3x1" is three nodes, node-0 to node-2, with one slot each. INVALID_ARGUMENT says what is allowed
// (1 to 1024 nodes of 1 to 64 slots).
Result<std::vector<policy::Node>> ParseNodes(std::string_view text);

// INVALID_ARGUMENT, on one line, for what isn't JSON, an unknown key (with the nearest known one),
// a value out of range, a quota twice, and guarantees that exceed `capacity` (slots of all nodes).
// `source` stands before each message.
Result<ClusterConfig> ParseClusterConfig(std::string_view json, std::string_view source,
                                         uint32_t capacity);

// One quota "default" that guarantees everything.
ClusterConfig DefaultClusterConfig(uint32_t capacity);

}  // namespace godwit
