#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event_loop.h"
#include "master/core/decide.h"
#include "master/core/kv_exchange.h"
#include "master/process/journal.h"
#include "master/process/scheduler_link.h"
#include "master/process/storage.h"
#include "master/process/worker_thread.h"
#include "proto/master.pb.h"

namespace godwit::master {

// One agent's stream, as the engine sees it. Thread-safe; no call blocks.
class AgentStream {
 public:
  virtual ~AgentStream() = default;
  virtual void Send(proto::MasterOrder order) = 0;
  // Ends the stream after what was sent.
  virtual void Close() = 0;
};

// The master's shell: one thread, on which the state lives and decisions are made. Each event goes
// through Decide; what the decision changed in the durable state is journaled; then its actions are
// done. Everything that blocks for long (storage, the scheduler) runs on threads of its own.
class Engine {
 public:
  struct Options {
    EventLoop* loop = nullptr;  // all required
    Clock* clock = nullptr;
    Journal* journal = nullptr;
    Storage* storage = nullptr;
    SchedulerLink* scheduler = nullptr;  // null: none
  };
  explicit Engine(const Options& options);
  ~Engine();

  // ---- the loop's thread ----

  // Starts deciding. What was posted before is seen after. REQUIRES: not started.
  void Start(Config config);
  bool started() const { return state_.has_value(); }
  const State& state() const { return *state_; }
  void Handle(const Event& event);
  // The scheduler has the outcome, or never will.
  void OnOutcomeDelivered();
  // Set once the loop is to end.
  std::optional<int> exit_code() const { return exit_code_; }
  // Ends the loop with this code; the job stays as it is, for the next master.
  void Quit(int exit_code);

  // ---- any thread ----

  // A report that came in on a stream; the first must be Hello. False when the stream is to end.
  bool PostReport(std::shared_ptr<AgentStream> stream, proto::AgentReport report);
  void PostDetached(std::shared_ptr<AgentStream> stream);
  using NotifyDone = std::function<void(const proto::NoticeReply&)>;
  bool PostNotice(proto::NoticeRequest request, uint64_t directive, NotifyDone done);
  bool PostStop(std::string id, std::string reason, Duration grace, uint64_t directive);
  using RescindDone = std::function<void(const proto::RescindReply&)>;
  bool PostRescind(std::string id, uint64_t directive, RescindDone done);
  // `done` runs on the loop's thread; an empty status before Start.
  bool PostStatus(std::function<void(proto::MasterStatus)> done);

 private:
  void OnReport(const std::shared_ptr<AgentStream>& stream, const proto::AgentReport& report);
  void OnHello(const std::shared_ptr<AgentStream>& stream, const proto::AgentReport& report);
  void OnDetached(const std::shared_ptr<AgentStream>& stream);
  void OnKv(uint32_t node, const proto::KvRequest& request);
  void AnswerKv(const std::vector<KvExchange::Answer>& answers);
  void Do(const Action& action);
  void ArmTimers();
  void Store(std::function<void()> call);

  const Options options_;
  std::optional<State> state_;
  std::map<uint32_t, std::shared_ptr<AgentStream>> streams_;  // by node, the current ones
  KvExchange kv_;
  std::map<std::string, std::vector<NotifyDone>> notify_waiting_;
  std::map<std::string, std::vector<RescindDone>> rescind_waiting_;
  std::optional<std::string> refused_;  // by the decision about the Hello that is being handled
  EventLoop::TimerId timer_ = 0;
  std::optional<MonotonicTime> timer_at_;
  bool journal_alarm_ = false;
  uint64_t notices_made_ = 0;
  std::optional<int> exit_code_;
  // Last, so that they end first.
  WorkerThread storage_thread_{"gw-storage"};
  WorkerThread retain_thread_{"gw-retain"};
};

}  // namespace godwit::master
