#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "ckpt/engine/arena.h"
#include "control/agent_channel.h"
#include "control/keeper_protocol.h"
#include "launcher/agent/persister.h"
#include "proto/master.pb.h"

namespace godwit {

// What the node's state machine wants of its surroundings. All calls return at once.
class NodeEffects {
 public:
  virtual ~NodeEffects() = default;
  // False: there is no stream, or it broke.
  virtual bool SendToMaster(proto::AgentReport report) = 0;
  virtual void SendToKeeper(const KeeperMessage& message) = 0;
  // Calls OnDoorbell(slot) whenever the descriptor is readable. Unwatch comes before its close.
  virtual void WatchDoorbell(uint32_t slot, int fd) = 0;
  virtual void UnwatchDoorbell(int fd) = 0;
  // Answer: OnPersisted, unless it fails here.
  virtual Status StartPersist(PersistJob job) = 0;
  // Answer: OnKeeperMessage(AttachReply) and so on, or OnKeeperLost.
  virtual void StartKeeper() = 0;
  // Ends workers, keeper and agent. Nothing is expected after it.
  virtual void End(int exit_code, const std::string& reason) = 0;
  // A worker that could not be started, or has failed: for the person at the terminal.
  virtual void Tell(const std::string& line) = 0;
};

// The agent's decisions: what a node does on the master's orders and on what its keeper and its
// workers say. One thread; no wait, no file but the tail of a log. Orders are idempotent: one that
// comes again is answered again.
class NodeAgent {
 public:
  struct Options {
    std::string job_id;
    std::string node_id;
    uint32_t node_index = 0;
    uint32_t slots = 1;
    std::string run_dir;
    std::string keeper_socket;
    std::string cwd;                              // of the workers
    std::vector<std::string> environment;         // of the agent itself: NAME=value
    std::vector<std::string> worker_environment;  // stronger than that and the job's
    std::string log_dir;                          // of the workers' output
    Duration master_lost_limit = std::chrono::seconds(120);
    bool choose_master_port = false;  // MASTER_ADDR and MASTER_PORT for a job of one node
  };
  static constexpr Duration kHeartbeat = std::chrono::milliseconds(500);

  NodeAgent(Options options, NodeEffects* effects, MonotonicTime now);
  ~NodeAgent();

  // ---- the keeper ----
  void OnKeeperMessage(const KeeperMessage& message, std::vector<UniqueFd> fds, MonotonicTime now);
  // The node's workers are dead when this is called.
  void OnKeeperLost(const std::string& why, MonotonicTime now);

  // ---- the master ----
  void OnMasterConnected(MonotonicTime now);
  void OnMasterLost(const Status& why, MonotonicTime now);
  void OnOrder(const proto::MasterOrder& order, MonotonicTime now);

  // ---- workers ----
  void OnDoorbell(uint32_t slot, MonotonicTime now);
  void OnPersisted(PersistResult result, MonotonicTime now);
  // A signal for the workers (SIGUSR1, SIGUSR2).
  void ForwardSignal(int signal);

  // When OnTick is due.
  MonotonicTime deadline() const;
  void OnTick(MonotonicTime now);

  bool keeper_ready() const { return keeper_ready_; }

 private:
  using SnapshotName = std::pair<uint64_t, uint64_t>;  // epoch, step

  // Snapshot memory of a slot, as the agent sees it; kept until the slot gets other memory, also
  // when the keeper, and with it the memory's use for a restart, is gone.
  struct Memory {
    std::shared_ptr<const SharedMapping> mapping;
    std::optional<ckpt::Arena> arena;            // nothing whole was ever seen in it: none
    std::shared_ptr<ckpt::PackHistory> history;  // of `arena`
    bool restorable = true;                      // a new worker of this slot gets the same memory
  };
  struct Slot {
    std::unique_ptr<AgentChannel> channel;
    bool running = false;   // started (or being started), its end not yet told
    bool starting = false;  // asked for, not yet answered
    bool gone = true;       // nothing of a worker is left
    int32_t pid = 0;
    Membership membership;
    uint64_t started_epoch = 0;  // in which the keeper started the last worker
    bool claimed = false;
    ClaimRequest claim;
    Memory memory;
    std::set<SnapshotName> told;                // whole snapshots that the master knows of
    std::multiset<SnapshotName> in_use;         // packs of them are being written
    uint32_t told_report = 0;                   // number of the last report that was passed on
    std::optional<uint64_t> seen_staged;        // in that report
    std::optional<KvRequest> kv;                // waits for the master's answer
    std::optional<proto::WorkerExited> exited;  // how the last worker of membership.epoch ended
  };
  // The answer to a Persist order, kept for when the order comes again.
  struct Persisted {
    ckpt::SaveId save;
    uint32_t rank = 0;
    std::optional<proto::AgentReport> answer;  // none: being written
  };
  // WorkersGone, once the workers up to this epoch have ended.
  struct Wish {
    uint64_t epoch = 0;
    MonotonicTime kill_at{};
  };

  void Report(proto::AgentReport report);
  void Fail(uint64_t epoch, const char* order, uint32_t rank, const Status& why);
  void SayHello();

  void OnSlotState(const SlotState& state, std::vector<UniqueFd> fds);
  void OnClaimed(const ClaimedEvent& event);
  void OnExited(const ExitedEvent& event);
  void OnStarted(const StartWorkerReply& reply);
  void OnKeeperError(const ErrorReply& error);

  void Do(const proto::Welcome& order);
  void Do(const proto::StartEpoch& order);
  void Do(const proto::Resume& order);
  void Do(const proto::CloseGates& order);
  void Do(const proto::SetLimit& order);
  void Do(const proto::OpenGates& order);
  void Do(const proto::StageAt& order);
  void Do(const proto::Persist& order, MonotonicTime now);
  void Do(const proto::Committed& order);
  void Do(const proto::FreeSnapshots& order);
  void Do(const proto::ParkWorkers& order, MonotonicTime now);
  void Do(const proto::StopWorkers& order, MonotonicTime now);
  void Do(const proto::KvReply& order);

  void StartWorker(const proto::StartEpoch& order, uint32_t index, uint32_t local_rank,
                   const std::string& master_port);
  void EndWorkers(uint64_t epoch, MonotonicTime kill_at);
  bool FreeIn(Slot* slot, const proto::FreeSnapshots& order);
  std::vector<std::string> WorkerEnvironment(const proto::StartEpoch& order,
                                             const Membership& membership, uint32_t slot,
                                             const std::string& master_port) const;
  void SignalWorkers(int signal);
  void PassOn(uint32_t slot, bool again);
  void PassKv(uint32_t slot);
  void TellSnapshots(uint32_t slot);
  // Whole snapshots in the slot's memory.
  std::vector<ckpt::SlotInfo> WholeSnapshots(Slot* slot);
  proto::SnapshotWhole SnapshotOf(const Slot& slot, const ckpt::SlotInfo& info) const;
  void TellIfGone();
  // Some worker here has steps to do yet.
  bool Trains() const;
  void SendHeartbeat(MonotonicTime now);
  static proto::GateReply GateReplyOf(const Slot& slot, const GateView& gate);
  static proto::WorkerClaimed ClaimOf(const Slot& slot, uint32_t index);
  std::string LogPath(uint64_t epoch, uint32_t rank, const char* suffix) const;

  const Options options_;
  NodeEffects* const effects_;
  std::vector<Slot> slots_;
  uint64_t epoch_ = 0;  // the newest that workers were started in
  bool keeper_ready_ = false;
  uint32_t states_due_ = 0;  // SlotStates still to come after an attach
  int32_t keeper_pid_ = 0;
  bool attached_ = false;  // Hello was sent on the stream there is
  bool connected_ = false;
  std::optional<MonotonicTime> lost_at_;    // no master since then
  std::deque<proto::AgentReport> unsent_;   // reports that a new Hello does not contain
  std::optional<proto::StartEpoch> start_;  // waits for the keeper
  std::optional<Wish> wish_;
  std::vector<proto::FreeSnapshots> frees_;  // wait for packs being written
  std::deque<Persisted> persisted_;
  MonotonicTime next_heartbeat_;
  bool ended_ = false;
};

}  // namespace godwit
