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
    Duration adopt_window{0};    // 0: the keeper also ends by its parent's death
    bool inherit_stdin = false;  // else the workers read from /dev/null
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
  void Send(const KeeperMessage& message);
  // The process that this link has started; none for an adopted keeper.
  const std::optional<Child>& child() const { return child_; }
  // To be called on SIGCHLD for child()'s process: reaps it.
  void OnChildEnded();
  // SIGKILL to a keeper that this link has started and that still runs.
  void Kill();

 private:
  Status SpawnKeeper();
  Status TryConnect();
  void OnReadable();
  void Lost(const std::string& why);

  const Options options_;
  EventLoop* const loop_;
  const Callbacks callbacks_;
  UniqueFd fd_;
  std::optional<Child> child_;
};

// The keeper's binary: beside this program, else in ../libexec. NOT_FOUND names both places.
Result<std::string> FindKeeperProgram();

}  // namespace godwit
