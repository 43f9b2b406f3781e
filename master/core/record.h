#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

// What stays of a notice, a failure and the job: the truth, where exit codes only hint. The fields
// are those of proto/master.proto and proto/scheduler.proto.
namespace godwit::master {

struct NoticeRecord {
  std::string id;
  std::string reason;
  std::string preemptor;
  Duration time_left{0};     // as given
  Duration predicted{0};     // until released(node)
  uint64_t agreed_step = 0;  // S; 0 when the fallback was used
  uint64_t safe_step = 0;    // newest committed
  uint64_t steps_lost = 0;   // entered beyond safe_step
  Duration parked{0};        // from the notice until all ranks stood at S; 0: never
  Duration released_gpu{0};
  Duration committed{0};
  Duration released_node{0};
  bool in_time = false;
  std::string message;       // what was not possible, and why
  Duration longest_step{0};  // of this run
  friend bool operator==(const NoticeRecord&, const NoticeRecord&) = default;
};

struct FailureRecord {
  uint64_t sequence = 0;
  uint64_t unix_ms = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  std::string node_id;
  int32_t exit_code = 0;
  int32_t signal = 0;
  std::string message;
  std::string log_tail;
  uint64_t step = 0;  // entered when it happened
  std::string action;
  uint64_t steps_redone = 0;
  friend bool operator==(const FailureRecord&, const FailureRecord&) = default;
};

enum class OutcomeState : uint8_t { kSucceeded = 0, kFailed = 1, kPreempted = 2, kStopped = 3 };

struct Outcome {
  OutcomeState state = OutcomeState::kFailed;
  std::string reason;
  bool retryable = false;  // kFailed: may the job be started again through the queue
  int32_t exit_code = 1;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// "Succeeded" and so on: the scheduler's words.
const char* OutcomeName(OutcomeState state);

}  // namespace godwit::master
