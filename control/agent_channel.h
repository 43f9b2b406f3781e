#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "control/page.h"
#include "control/step_gate.h"

namespace godwit {

// What the agent tells a worker before it exists.
struct Membership {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t local_rank = 0;
  uint32_t local_world_size = 1;
  uint32_t restart_count = 0;
};

// From where a worker restores its state.
struct ResumeDecision {
  ResumeKind kind = ResumeKind::kPending;
  uint64_t term = 0;         // of the save; kStorage
  uint64_t step = 0;         // kMemory, kStorage
  uint32_t attempt = 0;      // kStorage
  uint64_t writer_term = 0;  // the master's term while this worker lives
  std::string message;       // kRefused: why, one line; cut at kMessageBytes
};

// One consistent copy of what the worker said last.
struct WorkerReport {
  uint32_t seq = 0;  // grows with each report
  WorkerState state = WorkerState::kNone;
  uint64_t at_step = 0;  // the boundary that `state` is about
  uint64_t total_steps = 0;
  std::optional<uint64_t> staged_step;  // newest whole snapshot of this worker
  uint64_t persist_every = 0;
  Duration fence_wait{0};  // sum over the worker's life
  uint32_t worker_pid = 0;
  std::string message;  // one line, printable; empty unless something went wrong
};

// What the step path writes; read at any time, each field for itself.
struct WorkerProgress {
  GateView gate;
  MonotonicTime step_started;  // of the last entered step
  Duration step_last{0};
  Duration step_longest{0};
  uint64_t collectives = 0;
  Phase phase = Phase::kInit;
};

// A worker's request to the epoch's key-value exchange.
struct KvRequest {
  uint32_t seq = 0;  // hand back to AnswerKv
  KvOp op = kKvSet;
  std::string key;
  std::string value;    // of a set
  Duration timeout{0};  // of a get: answer DEADLINE_EXCEEDED by then
};

// The agent's side of one slot's control page. Never blocks; no call but Map allocates more than
// the messages that it returns. From one thread, except for the gate's calls, which any thread may
// make. Everything read from the page is copied, then checked: nonsense that the worker wrote
// comes back as an error or a clipped value, never as a crash.
class AgentChannel {
 public:
  // Maps the page. `doorbell` is the slot's eventfd. DATA_LOSS when it is no control page or has
  // another layout version.
  static Result<std::unique_ptr<AgentChannel>> Map(int page_fd, UniqueFd doorbell);
  // Over memory that is mapped already (tests); the page outlives the channel.
  static Result<std::unique_ptr<AgentChannel>> Over(ControlPage* page, UniqueFd doorbell);

  uint32_t slot() const;

  // Readable (EPOLLIN) when the worker has reported a state or asked for a key.
  int doorbell() const { return doorbell_.get(); }
  // Makes it unreadable again; call before reading report and request, so that none is missed.
  void DrainDoorbell();

  // Before the slot's next worker is started, while it has none: sets the membership, clears
  // orders, resume decision, report, progress and any unanswered key request, and closes the gate
  // at 0.
  void Prepare(const Membership& membership);
  Membership membership() const;

  // Each of these replaces what was said before and wakes the worker.
  void Decide(const ResumeDecision& decision);
  // The worker, waiting at boundary `step`, stages it whole (kStaging, kStaged). Ignored by a
  // worker at another boundary until it gets there.
  void OrderStage(uint64_t step);
  // The worker leaves the loop (kParked) and exits with 75, or 0 if it had finished.
  void OrderPark();
  // Takes back stage and park orders (a rescinded notice); then OpenGate.
  void ClearOrders();
  void SetCommitted(uint64_t step);

  // The step gate. OpenGate also wakes a worker that waits at it. Open only once the worker has
  // reported kAtGate in this epoch: it closes the gate itself when it starts.
  GateView CloseGate();
  Status LimitGate(uint64_t step);  // wakes, too
  void OpenGate();
  GateView gate() const;

  // UNAVAILABLE while the worker is writing one (the doorbell rings after it; a worker that died
  // in the middle leaves it so); DATA_LOSS naming the field for values that can't be.
  Result<WorkerReport> Report() const;
  WorkerProgress Progress() const;

  // The request that waits for an answer, once; nothing if there is none or it was taken by this
  // channel already. INVALID_ARGUMENT for a malformed one, which is thereby answered.
  Result<std::optional<KvRequest>> TakeKvRequest();
  // Answers the request `seq`; one that is no longer waited for is ignored. `value` (at most
  // kKvMaxValueBytes) is that of an OK get.
  void AnswerKv(uint32_t seq, const Status& status, std::string_view value);

 private:
  AgentChannel(SharedMapping mapping, ControlPage* page, UniqueFd doorbell, uint32_t slot);

  template <typename F>
  void WriteOrders(F&& write);
  void Answer(uint32_t seq, StatusCode code, std::string_view value);

  SharedMapping mapping_;
  ControlPage* page_;
  UniqueFd doorbell_;
  uint32_t slot_;
  uint32_t kv_taken_ = 0;  // the last request that was handed out
};

}  // namespace godwit
