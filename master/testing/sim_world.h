#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "master/core/decide.h"

namespace godwit::master::testing {

// A job in one process: the decisions of the real master, and a model of everything around it
// (agents with keepers, workers that step together, storage), moved in an order that a seed picks.
//
// Fault model. Reports and orders of one node's stream keep their order; between nodes, and against
// workers and storage, anything may overtake anything. A stream may break at any moment: what was
// under way on it is lost, and the agent attaches again. A worker, a keeper or the master may die
// at any moment; the master also between making its state durable and doing the actions of a
// decision. Reports may be delivered twice in a row. Storage may fail a try. Time passes between
// any two moves.
struct SimOptions {
  uint32_t nodes = 2;
  uint32_t slots = 1;  // per node
  uint64_t total_steps = 12;
  uint64_t snapshot_every = 2;
  uint64_t persist_every = 4;
  uint32_t max_restarts = 3;
  std::string directory = "/ckpt";
  // One in n moves (0: never) ...
  uint32_t duplicate_one_in = 20;
  uint32_t break_stream_one_in = 0;
  uint32_t kill_worker_one_in = 0;
  uint32_t kill_keeper_one_in = 0;
  uint32_t kill_master_one_in = 0;
  uint32_t fail_storage_one_in = 0;    // of storage operations
  uint32_t max_faults = 3;             // of all kinds that kill together
  std::map<SaveId, uint64_t> storage;  // what the directory holds already, as world.storage() gives
  std::set<SaveId> damaged;            // of these no rank can restore
  std::optional<uint32_t> hung_rank;   // stops stepping once a notice is there
};

class SimWorld {
 public:
  SimWorld(const SimOptions& options, uint64_t seed);

  // One random move. False when the job has ended.
  bool Move();
  // Moves until the end, or until `stop` says so; a failure when that takes too many moves.
  void RunUntil(const std::function<bool()>& stop);
  void RunToEnd() {
    RunUntil([] { return false; });
  }

  void Notice(const std::string& id, Duration time_left, bool stop = false);
  void Rescind(const std::string& id);
  // Faults at a chosen moment.
  void KillWorker(uint32_t rank, int exit_code = 0, int signal = 9);
  void KillKeeper(uint32_t node);
  void RestartMaster();
  void BreakStream(uint32_t node);

  const State& state() const { return state_; }
  MonotonicTime now() const { return now_; }
  const std::optional<Outcome>& outcome() const { return outcome_; }
  const std::vector<NoticeRecord>& records() const { return records_; }
  const std::vector<ReplyNotice>& replies() const { return replies_; }
  const std::vector<ReplyRescind>& rescind_replies() const { return rescind_replies_; }
  const std::vector<std::string>& released() const { return released_; }  // "gpu <id>", "node <id>"
  const std::vector<std::string>& problems() const { return problems_; }  // broken promises
  const std::vector<std::string>& log() const { return log_; }
  uint64_t entered() const;  // largest of any rank, now or when it ended
  std::optional<SaveId> committed(const std::vector<SaveId>& distrusted = {}) const;
  const std::map<SaveId, uint64_t>& storage() const { return storage_; }
  // After the end: an agent is started once more.
  bool ReturningAgentIsToldToLeave(uint32_t n);
  uint64_t commits() const { return storage_.size(); }
  uint32_t faults() const { return faults_; }
  std::string Dump() const;  // workers, and what the master believes of them
  bool worker_alive(uint32_t rank) const;

 private:
  struct SimSnapshot {
    uint64_t epoch, step, content;
  };
  struct Worker {
    bool started = false, alive = false, claimed = false, resumed = false, finished = false;
    uint64_t epoch = 0;
    uint32_t rank = 0, world = 0;
    uint64_t entered = 0, done = 0, limit = 0, content = 0;
    bool closed = true, at_gate_told = false, boundary_seen = false, park = false, stop = false;
    std::optional<uint64_t> stage;
    std::optional<SimSnapshot> filling;
    std::vector<SimSnapshot> whole;    // of the slot's snapshot memory: outlives the worker
    std::optional<WorkerExited> exit;  // said again when the agent attaches again
  };
  struct Node {
    bool attached = false, left = false;
    uint64_t epoch = 0;
    std::optional<uint64_t> gone_due;
    std::vector<Worker> workers;
    std::deque<Order> orders;
    std::deque<Event> reports;
    std::vector<PersistOrder> persists;
    std::map<std::pair<SaveId, uint32_t>, PackWritten> written;
    MonotonicTime beat{};
  };

  void Deliver(const Event& event);
  void Do(const Action& action);
  void Obey(uint32_t n, const Order& order);
  void Report(uint32_t n, Event event);
  void Hello(uint32_t n);
  bool StepWorker(uint32_t n, Worker& w);
  void End(uint32_t n, Worker& w, int code, int signal, const std::string& message = "");
  void CheckInvariants();
  void Problem(std::string what);
  bool CollectiveReady(const Worker& w) const;

  const SimOptions options_;
  Random random_;
  MonotonicTime now_{std::chrono::seconds(100)};
  State state_;
  Durable journal_;
  std::vector<Node> nodes_;
  std::deque<Action> storage_queue_;
  std::map<SaveId, uint64_t> storage_;  // committed: content
  uint64_t terms_ = 0;
  std::optional<Outcome> outcome_;
  std::vector<NoticeRecord> records_;
  std::vector<ReplyNotice> replies_;
  std::vector<ReplyRescind> rescind_replies_;
  std::vector<std::string> released_;
  std::vector<std::string> problems_;
  std::vector<std::string> log_;
  uint32_t faults_ = 0;
  uint64_t moves_ = 0;
  bool notice_seen_ = false;
  Phase last_phase_ = Phase::kWaiting;
  uint64_t entered_ = 0;
};

}  // namespace godwit::master::testing
