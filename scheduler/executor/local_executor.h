#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/process.h"
#include "scheduler/executor/executor.h"

namespace godwit {

// Runs attempts on this machine, on virtual nodes that share nothing but what jobs name themselves:
// each process has a session, run directory, TMPDIR and XDG_RUNTIME_DIR of its own. Masters and
// agents are no children in the sense of dying with the scheduler; each of their descendants
// carries kTagVariable in its environment, by which leftovers are found.
//
// What an exit means: a master is started again until the attempt is told to end; an agent that
// ended as it was told to (0, 1, 75, 76) is not, any other is. kMaxStarts starts in a row that live
// shorter than kSettled lose the attempt, and so does exit code 78 at once: what can't work now
// will not work later.
class LocalExecutor : public Executor {
 public:
  struct Options {
    std::string program;            // run as `<program> master ...`, `<program> agent ...`
    std::string scheduler_address;  // given to both
    std::string tag;                // of the store, so that attempts of two schedulers differ
    Duration kill_after = kKillAfter;
  };
  static constexpr char kTagVariable[] = "GODWIT_ATTEMPT_TAG";
  static constexpr uint32_t kMaxStarts = 6;
  static constexpr Duration kSettled = std::chrono::seconds(60);

  LocalExecutor(Options options, EventLoop& loop, Clock& clock, ExecutorListener& listener);
  ~LocalExecutor() override;

  void Start(const AttemptPlan& plan) override;
  void Adopt(const AttemptPlan& plan, const std::vector<ProcessRecord>& processes) override;
  void SetDeadline(const std::string& job_id, uint32_t attempt, MonotonicTime deadline) override;
  void Finish(const std::string& job_id, uint32_t attempt, Duration grace) override;

  // <tag>/<job>/<attempt>: the value of kTagVariable.
  std::string TagOf(const std::string& job_id, uint32_t attempt) const;

 private:
  struct Process {
    ProcessRecord record;
    AttemptPlan::Node node;      // of an agent
    std::optional<Child> child;  // started by this scheduler
    UniqueFd pidfd;              // adopted
    bool running = false;
    bool done = false;  // will not be started again
    MonotonicTime started{};
    uint32_t short_starts = 0;  // in a row
    EventLoop::TimerId restart = 0;
    int fd() const { return child ? child->pidfd() : pidfd.get(); }
  };
  enum class Stage { kRunning, kFinishing, kTerminating, kKilling };
  struct Attempt {
    AttemptPlan plan;
    std::vector<std::unique_ptr<Process>> processes;  // the master first
    Stage stage = Stage::kRunning;
    std::optional<MonotonicTime> deadline;
    EventLoop::TimerId timer = 0;
    EventLoop::TimerId sweep = 0;  // the next look for leftovers
    bool told_leftover = false;
  };
  using Key = std::pair<std::string, uint32_t>;

  Attempt* Find(const Key& key);
  Attempt& Make(const AttemptPlan& plan);
  void Launch(const Key& key, Process& process);
  Status Spawn(const Attempt& attempt, Process& process);
  std::string Dir(const Attempt& attempt, const Process& process) const;
  // " (<last line of its log>; all of it: <path>)"
  std::string LogNote(const Attempt& attempt, const Process& process) const;
  void Watch(const Key& key, Process& process);
  void OnExit(const Key& key, Process& process);
  void Lose(const Key& key, const std::string& reason, bool permanent);
  void Terminate(const Key& key, bool master_too);
  void Kill(const Key& key);
  void ArmDeadline(const Key& key, MonotonicTime deadline);
  void EnterStage(Attempt& attempt, Stage stage);
  // Looks whether anything of the attempt is left once its known processes have ended.
  void Sweep(const Key& key);
  void ScheduleSweep(const Key& key, Duration delay);
  void Forget(const Key& key);

  const Options options_;
  EventLoop& loop_;
  Clock& clock_;
  ExecutorListener& listener_;
  std::string boot_id_;
  std::map<Key, std::unique_ptr<Attempt>> attempts_;
};

}  // namespace godwit
