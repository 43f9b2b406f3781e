#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "master/core/order.h"
#include "master/core/record.h"

// What a decision wants done. The shell makes the state's durable part safe first (journal), then
// does the actions in their order; each one's outcome comes back as an event.
namespace godwit::master {

// To the node's agent, if it is attached: what a detached one missed is said again when it
// attaches.
struct SendOrder {
  uint32_t node = 0;
  Order order;
};
// The answer to an AgentAttached that can't be taken; the stream ends.
struct RefuseAgent {
  uint32_t node = 0;
  std::string message;
};

// Answers: Probed, TermBegun, CommitDone; RetainSaves has none.
struct ProbeStorage {
  std::string directory;
  std::vector<SaveId> distrusted;
};
struct BeginTerm {
  std::string directory;
  std::vector<SaveId> distrusted;
};
struct CommitSave {
  std::string directory;
  SaveId save;
  std::vector<std::string> tails;  // by rank
};
struct RetainSaves {
  std::string directory;
  uint64_t term = 0;
  uint32_t keep = 0;
};

// To who gave the notice.
struct ReplyNotice {
  std::string id;
  bool accepted = false;
  std::string message;
  Duration eta{0};      // until released(node)
  Duration eta_gpu{0};  // until released(gpu)
};
struct ReplyRescind {
  std::string id;
  bool accepted = false;
  std::string message;
};

// To the scheduler.
struct ReportReleased {
  std::string notice_id;
  bool node = false;  // false: only the devices
};
struct ReportNotice {
  NoticeRecord record;
};
// For people: one line, and the same for programs (a JSON object, or empty).
struct ReportEvent {
  std::string kind;
  std::string message;
  std::string data_json;
};

// Tell the scheduler the outcome, then end the process with its exit code.
struct EndMaster {
  Outcome outcome;
};

using Action =
    std::variant<SendOrder, RefuseAgent, ProbeStorage, BeginTerm, CommitSave, RetainSaves,
                 ReplyNotice, ReplyRescind, ReportReleased, ReportNotice, ReportEvent, EndMaster>;

}  // namespace godwit::master
