#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "control/keeper_protocol.h"

namespace godwit::keeper {

// Never 0, never used again.
using ConnectionId = uint64_t;

// ---- what the core wants done, in order ----

enum class Passed {
  kNothing,
  kSlot,      // control page, doorbell, and the snapshot memory if there is some
  kSnapshot,  // the snapshot memory
};
struct Send {
  ConnectionId to = 0;
  KeeperMessage message;
  Passed passed = Passed::kNothing;
  uint32_t slot = 0;  // whose descriptors
};
struct Close {
  ConnectionId connection = 0;
};
// Answer: OnSpawned.
struct Spawn {
  StartWorkerRequest request;
};
// Answer: OnReserved.
struct Reserve {
  uint32_t slot = 0;
  uint64_t bytes = 0;
};
// To the process group of the slot's worker.
struct SignalWorker {
  uint32_t slot = 0;
  int signal = 0;
};
// The slot's worker has ended: end what it left behind. Answer: OnSlotQuiet once nothing is left.
struct Sweep {
  uint32_t slot = 0;
};
struct Exit {
  std::string why;
};
using Action = std::variant<Send, Close, Spawn, Reserve, SignalWorker, Sweep, Exit>;
using Actions = std::vector<Action>;

// The keeper's decisions: who may say what, what each message does, when everything ends. No I/O
// and no clock of its own. Nothing in a message is trusted but the uid that the kernel gives.
class KeeperCore {
 public:
  struct Options {
    uint32_t slots = 1;
    uint32_t uid = 0;  // clients must have it
    int32_t pid = 0;
    Duration adopt_window{0};  // how long workers may live without an agent
    Duration first_attach{0};  // how long to wait for the first agent
  };
  KeeperCore(const Options& options, MonotonicTime now);

  Actions OnMessage(ConnectionId from, uint32_t uid, const KeeperMessage& message,
                    MonotonicTime now);
  // A packet that could not be decoded: the sender is told, then closed.
  Actions OnBadPacket(ConnectionId from, const Status& why, MonotonicTime now);
  Actions OnClosed(ConnectionId connection, MonotonicTime now);
  bool is_agent(ConnectionId connection) const { return connection == agent_; }
  // Whether the connection has said who it is: one that hasn't may be closed to make room.
  bool identified(ConnectionId connection) const;

  Actions OnSpawned(uint32_t slot, const Result<int32_t>& pid);
  Actions OnReserved(uint32_t slot, const Result<uint64_t>& bytes);
  // `exit_code` >= 0, or `signal` > 0.
  Actions OnWorkerExited(uint32_t slot, int32_t exit_code, int32_t signal);
  Actions OnSlotQuiet(uint32_t slot);
  // Ends all workers, then Exit; also a signal to the keeper.
  Actions Stop(std::string why, MonotonicTime now);

  // When OnTick is due; nothing when no deadline runs.
  std::optional<MonotonicTime> deadline() const;
  Actions OnTick(MonotonicTime now);

  bool stopping() const { return stopping_; }
  // Not told to end by an agent, but left alone, or by a signal.
  bool abandoned() const { return stopping_ && !asked_to_stop_; }
  // True when no worker runs on the node: what lives then belongs to no slot any more.
  bool no_worker_runs() const;

  // What a killed process may take to vanish before the keeper stops waiting for it.
  static constexpr Duration kEndLimit = std::chrono::seconds(5);

 private:
  struct Slot {
    int32_t pid = 0;       // 0: no worker
    int32_t last_pid = 0;  // of the worker, or of the last one; so is the epoch
    uint64_t epoch = 0;
    bool spawning = false;
    bool quiet = true;  // nothing of the last worker is left
    bool claimed = false;
    ClaimRequest claim;
    ConnectionId claimant = 0;  // 0: none, or it has closed its connection
    bool reserving = false;
    uint64_t snapshot_bytes = 0;
    std::optional<ExitedEvent> unseen_exit;  // no agent was there to be told
  };

  Actions Refuse(ConnectionId from, uint32_t slot, Status why, bool close);
  Actions OnClaim(ConnectionId from, const ClaimRequest& claim);
  Actions OnAttach(ConnectionId from, const AttachRequest& request);
  Actions OnReserve(ConnectionId from, const ReserveRequest& request);
  Actions OnStartWorker(const StartWorkerRequest& request);
  Actions OnSignal(const SignalRequest& request);
  Send StateOf(uint32_t slot) const;
  void ExitIfDone(Actions* actions);

  const Options options_;
  std::vector<Slot> slots_;
  ConnectionId agent_ = 0;                    // 0: none
  std::map<ConnectionId, uint32_t> workers_;  // claimants: their slots
  std::optional<MonotonicTime> alone_until_;  // no agent: end then
  bool stopping_ = false;
  bool asked_to_stop_ = false;
  bool exited_ = false;
  std::string stop_reason_;
  MonotonicTime stop_limit_{};  // while stopping
};

}  // namespace godwit::keeper
