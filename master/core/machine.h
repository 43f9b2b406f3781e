#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "master/core/decide.h"

namespace godwit::master {

// One decision being made; lives for one call of Decide. Events are noted in the state (On...),
// then Settle looks at the state and moves the phase on for as long as its condition holds.
// Conditions are looked at, never remembered, so that the order in which nodes' reports come in
// does not matter and a report that comes twice does no harm.
class Machine {
 public:
  Machine(State& state, MonotonicTime now, uint64_t wall_unix_ms, Decision& decision);

  void On(const AgentAttached& e);
  void On(const AgentDetached& e);
  void On(const Heartbeat& e);
  void On(const WorkerStarted& e);
  void On(const WorkerClaimed& e);
  void On(const WorkerExited& e);
  void On(const GateReplied& e);
  void On(const WorkerAtGate& e);
  void On(const SnapshotWhole& e);
  void On(const PackWritten& e);
  void On(const PackFailed& e);
  void On(const WorkerFinished& e);
  void On(const KeeperLost& e);
  void On(const WorkersGone& e);
  void On(const OrderFailed& e);
  void On(const Probed& e);
  void On(const TermBegun& e);
  void On(const CommitDone& e);
  void On(const NoticeReceived& e);
  void On(const RescindReceived& e);
  void On(const Tick& e);

  // Moves on until no condition holds any more, then arms what depends on the whole state.
  void Settle();

 private:
  // ---- machine.cc: phases ----
  void Enter(Phase to, std::string why);
  void StepPhase();
  void StepWaiting();
  void StepStarting();
  void StepRestoring();
  void StepRunning();
  void StepRestarting();
  void StepClosing();
  void StepLimiting();
  void StepStaging();
  void StepParking();
  void StepCommitting();
  void StepAbandoning();
  void StepFinishing();
  void StepFailing();
  void StepLeaving();
  void PhaseTimeout();

  // ---- machine.cc: small things ----
  void Say(std::string why);
  void Send(uint32_t node, Order order);
  void SendAll(const Order& order);
  void Tell(std::string kind, std::string message, std::string data_json = "");
  void Arm(TimerId id, MonotonicTime at);
  void Disarm(TimerId id);
  bool Armed(TimerId id) const;
  void SendPhaseOrders(uint32_t node);
  std::string NodeName(uint32_t node) const;
  std::string RankName(uint32_t rank) const;
  bool InNoticePhase() const;
  bool ExitExpected() const;
  // The rank, if it is the node's and the epoch is the current one.
  RankInfo* Mine(uint32_t node, uint64_t epoch, uint32_t rank);
  void Entered(RankInfo& rank, uint64_t entered);
  bool AllGone() const;
  bool AllAttached() const;
  bool AllFinished() const;
  const Timeouts& timeouts() const { return s_.config.timeouts; }

  // ---- machine_epoch.cc ----
  bool DealRanks();
  // Keeps a report for when ranks are dealt; true if it was kept.
  bool KeepEarly(const Event& event);
  void ApplyReports(uint32_t node, const std::vector<SlotReport>& reports);
  void Adopt();
  void BeginNextEpoch(std::string why);
  bool CheckClaims();
  bool EnsureTerm();
  uint64_t ExpectedStep() const;
  void StorageFailed(const Status& status, std::string_view what);
  void DecideResume();
  ResumeOrder MakeResume() const;
  // `damaged_save`: it is because a rank read damage in what it restores.
  void Failure(FailureRecord record, bool distrust_memory, bool damaged_save = false);
  bool DistrustResumed();
  void Fail(std::string reason, bool retryable, int exit_code);
  void Conclude(OutcomeState state, std::string reason, bool retryable, int exit_code);
  // When the node counts as lost if nothing is heard from it.
  MonotonicTime LostAt(const NodeInfo& node) const;
  void LoseNode(uint32_t node, std::string why);

  // ---- machine_save.cc ----
  // True when nothing is left to be done to have `snapshot` on storage: it, or something newer, is
  // committed, or that was given up. Starts the save when none is under way.
  bool EnsureSave(const GlobalSnapshot& snapshot, bool urgent);
  void StartSave(const GlobalSnapshot& snapshot, bool urgent);
  void SendPersist(uint32_t node, const SaveInFlight& save);
  void SaveFailed(size_t index, std::string why, bool retry_helps);
  void CommitIfWhole(SaveInFlight& save);
  void MaybePersist();
  void SnapshotsChanged();
  bool SaveReads(const SaveInFlight& save) const;
  bool IsHopeless(const SnapshotName& name) const;
  uint64_t CommittedStep() const { return s_.durable.committed ? s_.durable.committed->step : 0; }
  // The same for the snapshot of S.
  bool SaveStepSettled(uint64_t step);

  // ---- machine_notice.cc ----
  void ArmNotice();
  Plan PlanNow() const;
  void BeginClosing();
  void Abandon(std::string why);
  void LeaveOnNotice(std::string note);
  void RecordNotices(std::string note);
  void NoteReleasedGpu();
  Duration TimeLeft() const;

  State& s_;
  const MonotonicTime now_;
  const uint64_t wall_unix_ms_;
  Decision& decision_;
};

// A JSON string with its quotes.
std::string JsonString(std::string_view text);

}  // namespace godwit::master
