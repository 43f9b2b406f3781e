#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace godwit {

// The control page: one worker slot's shared memory with its node's agent. Created (zeroed, sealed
// against resizing) by the keeper, mapped by the worker that claims the slot and by the agent. It
// lives as long as the keeper, over deaths of worker and agent. Neither side trusts the other:
// everything is copied once, then checked.
//
// Who writes what is said per section. Words named *_seq are futex words (shared, 32 bits).
// orders_seq and state_seq are sequence locks: the writer makes the word odd, fills the section's
// other fields, makes it even, then wakes; a reader that saw it odd, or changed, has nothing. The
// first half of an update that its writer did not live to finish leaves it odd; the next writer
// goes on from there. WorkerChannel and AgentChannel do all that.
inline constexpr uint64_t kControlMagic = 0x3147415054574447ull;  // "GDWTPAG1"
inline constexpr uint32_t kControlLayoutVersion = 1;
inline constexpr size_t kKvMaxKeyBytes = 256;
inline constexpr size_t kKvMaxValueBytes = 48 * 1024;
inline constexpr size_t kMessageBytes = 512;
inline constexpr size_t kPathBytes = 4096;

// What the agent wants of the worker, apart from the gate. Bits of `orders`.
enum OrderBit : uint32_t {
  kOrderStage = 1u << 0,  // waiting at boundary stage_step: stage that boundary now, whole
  kOrderPark = 1u << 1,   // leave the step loop and exit; the result is someone else's to record
};

enum class ResumeKind : uint32_t {
  kPending = 0,  // not decided yet: wait
  kFresh = 1,
  kMemory = 2,   // the snapshot of resume_step in this slot's snapshot memory
  kStorage = 3,  // the committed checkpoint (resume_term, resume_step, resume_attempt)
  kRefused = 4,  // the run can't go on; orders_message says why
};

// What the worker is doing. Written by the worker for every change off the hot path.
enum class WorkerState : uint32_t {
  kNone = 0,
  kInit = 1,      // claimed, setting up or restoring
  kAtGate = 2,    // waits at boundary `at_step`
  kRunning = 3,   // inside the step loop
  kStaging = 4,   // stages boundary `at_step` on the agent's order
  kStaged = 5,    // ... done: the snapshot of `at_step` is whole; still at the gate
  kParked = 6,    // left the loop, about to exit
  kFinished = 7,  // all steps of the run are done at `at_step`, final snapshot staged
  kFailed = 8,    // gave up; worker_message says why
};

enum class Phase : uint32_t { kInit = 0, kStep = 1, kEval = 2, kCheckpoint = 3, kShutdown = 4 };

struct ControlPage {
  // Identity. Keeper, before the slot is offered; constant after.
  uint64_t magic;
  uint32_t layout_version;
  uint32_t slot;

  // Membership of the worker that is to claim the slot. Agent, before it starts the worker.
  alignas(64) uint64_t epoch;
  uint32_t rank;
  uint32_t world_size;
  uint32_t local_rank;
  uint32_t local_world_size;
  uint32_t restart_count;
  uint32_t reserved0;

  // Orders. Agent writes, worker reads.
  alignas(64) std::atomic<uint32_t> orders_seq;
  std::atomic<uint32_t> orders;       // OrderBit
  std::atomic<uint32_t> resume_kind;  // ResumeKind
  std::atomic<uint32_t> resume_attempt;
  std::atomic<uint64_t> resume_term;
  std::atomic<uint64_t> resume_step;
  std::atomic<uint64_t> term;  // the writer's term while this worker lives
  std::atomic<uint64_t> stage_step;
  std::atomic<uint64_t> committed_step;  // newest step that is committed, +1; 0: none
  char orders_message[kMessageBytes];    // NUL-terminated

  // The step gate (step_gate.h). Worker enters, agent closes.
  alignas(64) std::atomic<uint64_t> gate;

  // Progress. Worker writes; relaxed stores on the step path, nothing else there.
  alignas(64) std::atomic<uint64_t> step_started_ns;  // CLOCK_MONOTONIC at the last entry
  std::atomic<uint64_t> step_longest_ns;
  std::atomic<uint64_t> step_last_ns;
  std::atomic<uint64_t> collectives;  // entered so far
  std::atomic<uint32_t> phase;        // Phase

  // State. Worker writes, then bumps state_seq and rings the slot's doorbell (an eventfd).
  alignas(64) std::atomic<uint32_t> state_seq;
  std::atomic<uint32_t> state;  // WorkerState
  std::atomic<uint64_t> at_step;
  std::atomic<uint64_t> total_steps;    // of the run, from its options
  std::atomic<uint64_t> staged_step;    // newest snapshot that is whole in snapshot memory, +1
  std::atomic<uint64_t> persist_every;  // steps between storage saves the worker asks for; 0: off
  std::atomic<uint64_t> fence_wait_ns;  // sum of the time that Update waited
  std::atomic<uint32_t> worker_pid;
  char worker_message[kMessageBytes];  // NUL-terminated

  // One key-value request at a time, to exchange addresses when an epoch forms. The worker fills
  // op, key and value, bumps request_seq and rings; the agent answers in value and kv_status and
  // sets response_seq to the request's number.
  alignas(64) std::atomic<uint32_t> kv_request_seq;
  std::atomic<uint32_t> kv_response_seq;
  uint32_t kv_op;     // KvOp
  int32_t kv_status;  // StatusCode of the answer
  uint32_t kv_key_bytes;
  uint32_t kv_value_bytes;
  uint32_t kv_timeout_ms;  // of a get
  uint32_t reserved1;
  char kv_key[kKvMaxKeyBytes];
  char kv_value[kKvMaxValueBytes];
};

// Keys belong to one epoch. Set: once per key (ALREADY_EXISTS after that). Get: waits until the key
// is set, or DEADLINE_EXCEEDED.
enum KvOp : uint32_t { kKvSet = 1, kKvGet = 2 };

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace godwit
