#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "launcher/agent.h"
#include "launcher/agent/keeper_link.h"
#include "launcher/agent/master_link.h"
#include "launcher/agent/node_agent.h"
#include "launcher/agent/persister.h"

namespace godwit {

// The process around a NodeAgent: one loop, the links to keeper and master, the persister, signals
// and children. Of a scheduled job and of a plain run, which adds to it what `Extras` says.
class AgentProcess : public NodeEffects {
 public:
  struct Extras {
    std::vector<std::string> worker_environment;  // NAME=value
    bool choose_master_port = false;
    bool inherit_stdin = false;
    bool remove_run_dir = false;                    // when this process is killed
    std::string log_dir;                            // empty: <run_dir>/workers
    std::function<void(int signal)> on_signal;      // SIGTERM, SIGINT; empty: End(76)
    std::function<void(pid_t pid)> on_child_ended;  // an ended child that isn't the keeper: reap it
    std::function<void(const std::string&)> tell;
  };

  // Makes the run directory and takes its lock; waits up to 5 s for an agent that is just ending.
  // Blocks signals: the process has one thread.
  static Result<std::unique_ptr<AgentProcess>> Open(const AgentOptions& options, Extras extras);
  ~AgentProcess() override;

  // Runs until the end; returns the exit code.
  int Run();

  EventLoop& loop() { return *loop_; }
  const std::string& log_dir() const { return log_dir_; }
  const std::string& end_reason() const { return end_reason_; }

  bool SendToMaster(proto::AgentReport report) override;
  void SendToKeeper(const KeeperMessage& message) override;
  void WatchDoorbell(uint32_t slot, int fd) override;
  void UnwatchDoorbell(int fd) override;
  Status StartPersist(PersistJob job) override;
  void StartKeeper() override;
  void End(int exit_code, const std::string& reason) override;
  void Tell(const std::string& line) override;

 private:
  AgentProcess(const AgentOptions& options, Extras extras);
  Status Init();
  void OnSignal();
  void OnKeeperLost(const std::string& why);
  // Kills what the lost keeper's workers have left, then goes on with `then`.
  void EndOrphans(MonotonicTime limit, std::function<void()> then);
  void FinishEnd();
  void ArmTimer();

  const AgentOptions options_;
  Extras extras_;
  std::string socket_;
  std::string log_dir_;
  UniqueFd lock_;
  UniqueFd signals_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<KeeperLink> keeper_;
  std::unique_ptr<MasterLink> master_;
  std::unique_ptr<Persister> persister_;
  std::unique_ptr<NodeAgent> node_;
  EventLoop::TimerId timer_ = 0;
  MonotonicTime timer_at_{};
  std::vector<MonotonicTime> keeper_starts_;  // recent ones
  bool orphans_ = false;                      // those of a lost keeper are being ended
  bool ending_ = false;
  int exit_code_ = 0;
  std::string end_reason_;
};

// Keeps gRPC and malloc small; called before the first thread.
void LimitMemory();

}  // namespace godwit
