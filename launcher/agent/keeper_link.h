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
#include "control/keeper_protocol.h"

namespace godwit {

// The agent's connection to its node's keeper: the one that is there already, else a new one. One
// thread, that of the loop; spawn it from the main thread, since a keeper without an adopt window
// ends when that thread does.
class KeeperLink {
 public:
  struct Options {
    std::string program;  // the keeper's binary
    std::string socket;   // absolute
    std::string run_dir;
    uint32_t slots = 1;
    Duration adopt_window{0};     // 0: the keeper also ends by its parent's death
    bool inherit_stdin = false;   // else the workers read from /dev/null
    bool remove_run_dir = false;  // when we are killed (keeper.h)
    // A keeper that has answered nothing for so long, and used no processor time, is dead: it is
    // killed.
    Duration silence_limit = std::chrono::seconds(10);
  };
  struct Callbacks {
    std::function<void(const KeeperMessage&, std::vector<UniqueFd>)> message;
    // The connection is gone, once for each successful Connect. The keeper may still be ending.
    std::function<void(const std::string& why)> lost;
  };
  KeeperLink(Options options, EventLoop* loop, Callbacks callbacks);
  ~KeeperLink();

  // Connects and attaches; starts a keeper when none answers, again (twice) when it is killed as it
  // starts. Blocks until the keeper listens, some milliseconds, at most 10 s for each.
  Status Connect();
  bool connected() const { return fd_.valid(); }
  // What can't be sent, since it is too large, is answered with an ErrorReply.
  void Send(const KeeperMessage& message);
  // The process that this link has started; none for an adopted keeper.
  const std::optional<Child>& child() const { return child_; }
  // To be called on SIGCHLD for child()'s process: reaps it.
  void OnChildEnded();
  // Kills the keeper, started or adopted, if it still runs, waits for its end (at most a second),
  // and removes its socket.
  void Kill();

 private:
  Status SpawnKeeper();
  Status TryConnect();
  void OnReadable();
  Status SendLarge(const StartWorkerRequest& request, const std::string& bytes);
  // Asks the keeper for a sign of life.
  void Probe();
  void ArmProbe();
  void Lost(const std::string& why);

  const Options options_;
  EventLoop* const loop_;
  const Callbacks callbacks_;
  UniqueFd fd_;
  std::optional<Child> child_;
  pid_t pid_ = 0;     // of the keeper at the other end; 0: not known
  UniqueFd process_;  // its pidfd
  EventLoop::TimerId probe_ = 0;
  uint32_t unanswered_ = 0;  // probes since its last message
  uint64_t cpu_ticks_ = 0;   // that it had used at the first of them
  bool hung_ = false;        // and was killed for it
};

// The keeper's binary: beside this program, else in ../libexec. NOT_FOUND names both places.
Result<std::string> FindKeeperProgram();

}  // namespace godwit
