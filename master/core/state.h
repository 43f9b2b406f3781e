#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "master/core/event.h"
#include "master/core/order.h"
#include "master/core/planner.h"
#include "master/core/record.h"
#include "master/core/transitions.h"

namespace godwit::master {

// Bounds of all waits. A test may shorten them; the inequalities between them are in
// docs/protocols/preemption.md.
struct Timeouts {
  Duration attach{std::chrono::seconds(120)};       // until all agents are there
  Duration agent_lost{std::chrono::seconds(60)};    // without an agent's stream
  Duration agent_silent{std::chrono::seconds(60)};  // with one, but without a heartbeat
  Duration start{std::chrono::seconds(60)};         // StartEpoch -> WorkerStarted
  Duration claim{std::chrono::minutes(10)};         // first claim -> last claim
  Duration restore{std::chrono::minutes(60)};       // Resume -> all at the gate
  Duration stop{std::chrono::seconds(30)};          // StopWorkers, ParkWorkers -> WorkersGone
  Duration save{std::chrono::minutes(30)};          // Persist -> committed, without a deadline
  Duration finish{std::chrono::minutes(60)};        // all finished -> final save committed
  Duration leave{std::chrono::seconds(5)};          // Leave -> agents detached
  Duration storage_retry{std::chrono::milliseconds(500)};
  Duration storage_limit{std::chrono::minutes(5)};  // BeginTerm fails for that long
  Duration missing_exit{std::chrono::seconds(2)};   // a worker is gone and nobody says how
  Duration kill_grace{std::chrono::seconds(1)};     // StopWorkers after a failure
  Duration give_up_lead{
      std::chrono::milliseconds(300)};  // before a notice's deadline: leave anyway
  Duration default_stop_grace{std::chrono::seconds(30)};  // a stop without a grace
};

// Constant for one master process.
struct Config {
  std::string job_id;
  uint32_t nodes = 1;
  uint32_t workers = 1;       // world size
  uint32_t max_restarts = 0;  // in place
  bool standalone = false;
  uint32_t keep = 3;                      // commits that retention leaves
  std::optional<uint64_t> expected_step;  // newest committed step that the scheduler knows of
  Duration expected_step_wait{0};
  std::vector<std::string> argv;  // handed through to StartEpoch
  std::vector<std::string> env;
  Timeouts timeouts;
};

struct ResumeDecision {
  ResumeKind kind = ResumeKind::kPending;
  SaveId save;                  // kStorage; kMemory: only the step counts
  uint64_t snapshot_epoch = 0;  // kMemory
  std::string reason;
  friend bool operator==(const ResumeDecision&, const ResumeDecision&) = default;
};

// One notice of those that are being obeyed.
struct NoticePart {
  std::string id;
  std::string reason;
  std::string preemptor;
  Duration time_left{0};
  MonotonicTime received{};
  MonotonicTime deadline{};
  Duration predicted{0};
  Duration predicted_gpu{0};
  bool stop = false;
  friend bool operator==(const NoticePart&, const NoticePart&) = default;
};

// All notices that are active are obeyed as one: the earliest deadline counts.
struct Notice {
  std::vector<NoticePart> parts;   // not empty while the notice is active
  std::optional<uint64_t> agreed;  // S, once all ranks stood at it
  bool parking = false;            // ParkWorkers was decided: no way back but a restart
  bool abandoned = false;          // S was given up
  std::string message;             // what was not possible
  // Times of what happened; unset: not yet.
  std::optional<MonotonicTime> parked_at;
  std::optional<MonotonicTime> released_gpu_at;
  std::optional<MonotonicTime> committed_at;
  friend bool operator==(const Notice&, const Notice&) = default;

  MonotonicTime deadline() const;
  bool stop() const;
};

// What survives the master: the journal holds the newest of these. It is safe on disk before any
// action of the decision that changed it is done. Monotonic times in it mean something only within
// one boot.
struct Durable {
  uint64_t term = 0;
  uint64_t epoch = 0;                    // 0: no worker was ever started
  bool gates_opened = false;             // in this epoch
  bool restarting = false;               // the epoch's workers are being stopped for the next one
  std::optional<ResumeDecision> resume;  // of this epoch
  uint32_t restarts_used = 0;
  uint32_t save_attempt = 0;
  bool has_directory = false;  // known
  std::string directory;       // empty: keeps no checkpoints
  uint64_t total_steps = 0;
  uint64_t persist_every = 0;
  std::optional<SaveId> committed;  // newest of the lineage
  std::vector<SaveId>
      distrusted;  // commits whose chunks a worker found damaged, at most kMaxRecords
  uint64_t last_persist_step = 0;
  bool failure_pending = false;     // a failure whose repair is not decided yet
  uint64_t entered_at_failure = 0;  // of that failure
  std::optional<Notice> notice;
  std::vector<std::string> notice_ids;  // seen, newest last, at most kMaxRecords
  std::vector<NoticeRecord> notices;    // at most kMaxRecords, newest last
  std::vector<FailureRecord> failures;  // at most kMaxRecords, newest last
  uint64_t failure_sequence = 0;
  uint64_t acknowledged_directive = 0;
  std::vector<uint32_t> exited_ok;  // ranks of this epoch that ended with 0 without a claim
  bool resumed_known = false;       // an epoch's source was decided
  uint64_t resumed_step = 0;
  std::string resumed_from;  // "fresh", "memory" or "storage", and why
  std::optional<Outcome> outcome;
  friend bool operator==(const Durable&, const Durable&) = default;
};
inline constexpr size_t kMaxRecords = 64;

struct WholeSnapshot {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t bytes = 0;
  bool restorable = true;  // false: its keeper died; only its agent can still write it to storage
};
inline constexpr size_t kMaxSnapshotsPerRank = 8;
// Whole snapshots that fit into a rank's snapshot memory (ckpt/engine/arena.h kArenaSlots).
inline constexpr size_t kSnapshotSlots = 2;

struct RankInfo {
  uint32_t node = 0;
  uint32_t slot = 0;
  // Of the current epoch:
  bool started = false;
  bool exited = false;
  bool exited_ok = false;
  std::optional<Claim> claim;
  std::optional<uint64_t> at_gate;  // boundary it last said it waits at, since gates closed
  std::optional<GateState> gate;    // answer to the newest CloseGates
  uint32_t replies_due = 0;         // CloseGates sent and not answered on this stream
  std::optional<uint64_t> finished;
  uint64_t entered = 0;
  std::optional<MonotonicTime> missing_since;  // no process, and nobody said how it ended
  // Over epochs:
  std::vector<WholeSnapshot> snapshots;  // at most kMaxSnapshotsPerRank
  Duration longest_step{0};
};

struct NodeInfo {
  bool attached = false;
  bool known = false;  // has attached to this master at least once
  bool lost = false;   // given up: counts as without workers
  std::string node_id;
  uint32_t slots = 0;
  MonotonicTime last_heard{};
  bool gone = false;                // no worker of the current epoch is left
  uint64_t reported_epoch = 0;      // newest membership of a slot, as its agent said
  bool epoch_sent = false;          // StartEpoch of the current epoch went to this stream
  std::vector<SlotReport> reports;  // of its Hello, until ranks are dealt
};

// A save in flight.
struct SaveInFlight {
  SaveId save;
  uint64_t snapshot_epoch = 0;
  bool urgent = false;
  std::vector<std::optional<std::string>> tails;  // by rank
  bool committing = false;
  uint32_t commit_failures = 0;
  MonotonicTime limit{};  // given up then
};

enum class TermStatus : uint8_t { kNone, kProbing, kBeginning, kHeld };

// Timers of the state. A Tick is due at the earliest of them.
enum class TimerId : uint8_t {
  kPhase = 0,  // the phase's own bound
  kClaim,      // some ranks have claimed, others not
  kAgents,     // an agent is detached or silent
  kMissing,    // a worker is gone without a report
  kStorage,    // probe or BeginTerm again
  kSave,       // a save takes too long
  kSaveRetry,  // a save or commit that failed is tried again
  kFallback,   // S or the newest whole snapshot
  kGiveUp,     // leave before the notice's deadline
  kCount,
};

// The whole of a master's mind.
struct State {
  Config config;
  Durable durable;

  Phase phase = Phase::kWaiting;
  std::array<std::optional<MonotonicTime>, static_cast<size_t>(TimerId::kCount)> timers;

  std::vector<NodeInfo> nodes;
  std::vector<RankInfo> ranks;      // empty until all nodes have attached once
  std::vector<SaveInFlight> saves;  // at most kMaxSaves, oldest first
  std::vector<Event> early;         // reports that came before ranks were dealt, at most kMaxEarly
  uint64_t term = 0;                // held by this process; 0 until TermStatus::kHeld
  TermStatus term_status = TermStatus::kNone;
  std::optional<MonotonicTime> storage_since;  // first failed try
  bool adopted = false;                        // workers of an earlier master run on
  uint64_t agreed_step = 0;                    // S while it is being agreed on
  MonotonicTime stage_ordered_at{};
  std::optional<MonotonicTime> exit_ordered_at;
  uint32_t save_failures = 0;    // in this phase
  bool save_given_up = false;    // in this phase
  bool restart_wanted = false;   // rescinded after the point of no return
  uint32_t memory_failures = 0;  // restores from memory that failed in a row
  bool exit_ordered = false;     // kFinishing: ParkWorkers was sent
  uint64_t freed_below = 0;      // FreeSnapshots said so far in this epoch
  uint64_t freed_epoch = 0;
  std::vector<SnapshotName> dropped;  // said so far, newest last, at most kMaxRecords
  std::string fail_reason;            // kFailing
  bool fail_retryable = false;
  int fail_exit_code = 1;
  std::string rejected_commits;  // what BeginTerm met and did not choose
  Measured measured;
  uint64_t max_entered = 0;  // of this epoch
};
inline constexpr size_t kMaxSaves = 2;
inline constexpr size_t kMaxEarly = 4096;

// A master that starts: with the journal's newest record, or with none.
State InitialState(const Config& config, const Durable& durable, MonotonicTime now);

// The earliest timer.
std::optional<MonotonicTime> NextTimer(const State& state);

// Preparing, Running, Restarting, Stopping, Succeeded, Failed, Preempted, Stopped: for people.
std::string StatusWord(const State& state);

// The newest snapshot that is whole on all ranks: epoch and step. With `restorable`, only one that
// the ranks themselves can restore from.
struct GlobalSnapshot {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t bytes = 0;  // largest of any rank
};
std::optional<GlobalSnapshot> NewestWhole(const State& state, bool restorable);
bool WholeOnAll(const State& state, uint64_t epoch, uint64_t step);

}  // namespace godwit::master
