#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "base/unix_socket.h"
#include "launcher/keeper/keeper_core.h"

namespace godwit::keeper {

struct KeeperOptions {
  std::string socket;  // absolute; must not exist
  uint32_t slots = 1;
  Duration adopt_window{0};  // how long workers may live without an agent
  std::string run_dir;       // where it leaves keeper.pid; empty: nowhere
  // Removes run_dir as its last act when the agent is gone that owned it (run_dir.h).
  bool remove_run_dir = false;
};

// Parent of a node's workers and owner of their shared memory, for as long as it lives. One thread:
// workers are tied to it by the parent-death signal, which a thread's end would set off. It makes
// no decisions about the job; those of its own are KeeperCore's.
class Keeper {
 public:
  // Makes this process a subreaper, blocks its signals, allocates the control pages and listens.
  // ALREADY_EXISTS when the socket's path is taken. The process has one thread, and ends after Run.
  static Result<std::unique_ptr<Keeper>> Open(const KeeperOptions& options);
  ~Keeper();

  // Serves until there is nothing left to keep. OK: told to, or left alone for the adopt window.
  Status Run();

 private:
  struct Connection {
    UniqueFd fd;
    uint32_t uid = 0;
    struct Packet {
      std::string bytes;
      std::vector<UniqueFd> fds;  // copies: the slot may get others meanwhile
    };
    std::deque<Packet> unsent;
  };
  struct SlotResources {
    UniqueFd page;
    UniqueFd doorbell;
    UniqueFd snapshot;
    std::optional<Child> worker;
    bool sweeping = false;
    MonotonicTime sweep_limit{};
  };

  Keeper(const KeeperOptions& options, KeeperCore core);
  Status MakeSlots();
  void Do(Actions actions);
  void OnAccept();
  void OnReadable(ConnectionId id, uint32_t events);
  Result<KeeperMessage> Decode(ConnectionId id, ReceivedMessage packet);
  void OnSignal();
  void ReapAll();
  void SweepSlots();
  void SendTo(const Send& send);
  void Flush(ConnectionId id);
  void CloseConnection(ConnectionId id);
  Result<int32_t> SpawnWorker(const StartWorkerRequest& request);
  Result<uint64_t> ReserveMemory(uint32_t slot, uint64_t bytes);
  void ArmTimer();

  const KeeperOptions options_;
  KeeperCore core_;
  std::unique_ptr<EventLoop> loop_;
  UniqueFd listener_;
  UniqueFd signals_;
  std::vector<SlotResources> slots_;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId next_connection_ = 1;
  EventLoop::TimerId timer_ = 0;
  EventLoop::TimerId sweep_timer_ = 0;
  bool exiting_ = false;
};

}  // namespace godwit::keeper
