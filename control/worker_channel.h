#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "control/agent_channel.h"
#include "control/keeper_protocol.h"
#include "control/page.h"
#include "control/step_gate.h"

namespace godwit {

// One consistent copy of the agent's orders.
struct Orders {
  uint32_t seq = 0;
  bool stage = false;  // at boundary stage_step
  uint64_t stage_step = 0;
  bool park = false;
  ResumeDecision resume;
};

// The worker's side of its slot: the claim over the keeper's socket, then the control page. Nothing
// here blocks without a bound. Used by the training thread, except for the key-value calls and
// Report, which any thread may make.
class WorkerChannel {
 public:
  // Connects, claims the slot and maps its page. Blocks until `deadline`. The keeper's refusal
  // comes back as it was given (ALREADY_EXISTS: someone claimed this slot and epoch before, for
  // example the process that this one was forked from).
  static Result<std::unique_ptr<WorkerChannel>> Claim(const std::string& socket_path,
                                                      const ClaimRequest& claim,
                                                      MonotonicTime deadline);
  // Over a page that is mapped already (tests; it outlives the channel), without a keeper.
  static std::unique_ptr<WorkerChannel> Over(ControlPage* page, UniqueFd doorbell);
  ~WorkerChannel();

  const Membership& membership() const { return membership_; }
  uint32_t slot() const { return slot_; }

  // Maps the slot's snapshot memory, made anew when it has another size. Blocks until `deadline`.
  // RESOURCE_EXHAUSTED names the need.
  Result<SharedMapping> ReserveSnapshotMemory(uint64_t bytes, MonotonicTime deadline);

  // Still connected to the keeper; a false is final. One system call.
  bool KeeperAlive() const;

  ControlPage* page() { return page_; }
  StepGate gate() { return StepGate(&page_->gate); }

  // UNAVAILABLE while the agent is writing them.
  Result<Orders> ReadOrders() const;
  // Waits until orders differ from those numbered `seen_seq` or something else about the gate or
  // them was said, at most until `deadline`; returns what there is then. UNAVAILABLE: the keeper is
  // gone. DEADLINE_EXCEEDED: nothing new.
  Result<Orders> WaitOrders(uint32_t seen_seq, MonotonicTime deadline) const;

  // Says what the worker does now, and rings. `message` is cut at kMessageBytes.
  void Report(WorkerState state, uint64_t at_step, std::string_view message = {});
  // Fields of the next reports.
  void SetTotals(uint64_t total_steps, uint64_t persist_every);
  // Says that the snapshot of `step` is whole, without changing the state. Any thread.
  void ReportStaged(uint64_t step);
  void SetFenceWait(Duration total);

  // The epoch's key-value exchange. One at a time; blocks at most `timeout` and a little. Set:
  // ALREADY_EXISTS when the key was set before. Get: waits until it is set; DEADLINE_EXCEEDED.
  // UNAVAILABLE when no agent answers.
  Status KvSet(std::string_view key, std::string_view value, Duration timeout);
  Result<std::string> KvGet(std::string_view key, Duration timeout);

 private:
  WorkerChannel(ControlPage* page, UniqueFd doorbell);
  void Ring();
  Result<std::string> Kv(KvOp op, std::string_view key, std::string_view value, Duration timeout);
  // Waits until the page's response number is `seq`.
  Status AwaitKvResponse(uint32_t seq, MonotonicTime deadline) const;

  SharedMapping mapping_;
  ControlPage* page_;
  UniqueFd doorbell_;
  UniqueFd socket_;       // none without a keeper
  UniqueFd snapshot_fd_;  // as the claim's reply passed it
  uint64_t snapshot_bytes_ = 0;
  uint32_t slot_ = 0;
  Membership membership_;
  Mutex report_mutex_;
  Mutex kv_mutex_;
};

}  // namespace godwit
