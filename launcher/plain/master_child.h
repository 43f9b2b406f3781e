#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"

namespace godwit {

// The master of a plain run: a child of the agent's process, which starts it again when it dies and
// ends with it. One thread, the main one (it dies with the thread that starts it).
class MasterChild {
 public:
  struct Options {
    std::vector<std::string> argv;
    std::string log_path;
    // A master that was stopped (SIGSTOP) for so long is killed, and so started again: nobody else
    // is there to miss it.
    Duration stopped_limit = std::chrono::seconds(10);
  };
  // A master that can't stay alive: after this many deaths within this time it's given up.
  static constexpr size_t kMaxDeaths = 5;
  static constexpr Duration kDeathsWithin = std::chrono::seconds(30);

  // `ended`: the master ended by itself with that exit code. `failed`: it died too often.
  MasterChild(Options options, EventLoop* loop, std::function<void(int exit_code)> ended,
              std::function<void(const std::string& why)> failed);
  // Kills it.
  ~MasterChild();

  Status Start();
  // For every child that has ended; reaps it if it is the master.
  void OnChildEnded(pid_t pid);
  pid_t pid() const { return child_ ? child_->pid() : 0; }
  // Gives a master that is about to end the time to; kills it at the deadline. No start after it.
  void Finish(MonotonicTime deadline);

 private:
  void ArmLook();
  void Look();

  const Options options_;
  EventLoop* const loop_;
  const std::function<void(int)> ended_;
  const std::function<void(const std::string&)> failed_;
  std::optional<Child> child_;
  std::vector<MonotonicTime> deaths_;
  EventLoop::TimerId timer_ = 0;  // of the next start
  EventLoop::TimerId look_ = 0;
  uint32_t seen_stopped_ = 0;  // looks in a row
  bool finished_ = false;
};

}  // namespace godwit
