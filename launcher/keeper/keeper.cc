#include "launcher/keeper/keeper.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <new>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/real_file_system.h"
#include "base/shared_memory.h"
#include "base/strings.h"
#include "base/unix_socket.h"
#include "control/page.h"
#include "launcher/process_tree.h"
#include "launcher/run_dir.h"

namespace godwit::keeper {

namespace {

// Packets that wait for one client. A client that does not read is closed when they are more.
constexpr size_t kMaxUnsent = 256;
constexpr size_t kSpareConnections = 16;
constexpr Duration kFirstAttach = std::chrono::seconds(10);
// Ends of adopted processes come by SIGCHLD; this is only for what that can't tell (a process whose
// parent hands it over late).
constexpr Duration kSweepAgain = std::chrono::milliseconds(50);
constexpr mode_t kLogMode = 0644;
constexpr Duration kRemoveLook = std::chrono::milliseconds(10);
constexpr Duration kRemoveLimit = std::chrono::milliseconds(500);

std::string SlotName(uint32_t slot) { return "slot " + std::to_string(slot); }

Result<UniqueFd> CopyOf(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy) return ErrnoError(errno, "fcntl(F_DUPFD_CLOEXEC)");
  return copy;
}

Result<UniqueFd> OpenLog(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kLogMode));
  if (!fd) return ErrnoError(errno, "open(" + path + ")");
  return fd;
}

std::string PidFile(const std::string& run_dir) { return JoinPath(run_dir, "keeper.pid"); }

// "<pid> <start time in ticks> <boot id>": names this process for who must end it later.
Status LeavePidFile(const std::string& run_dir) {
  GODWIT_ASSIGN_OR_RETURN(const uint64_t started, ProcessStartTime(getpid()));
  GODWIT_ASSIGN_OR_RETURN(const std::string boot, BootId());
  const std::string path = PidFile(run_dir);
  FileSystem& fs = RealFileSystem();
  if (const Status s = fs.Unlink(path); !s.ok() && s.code() != StatusCode::kNotFound) return s;
  const std::string line =
      std::to_string(getpid()) + " " + std::to_string(started) + " " + boot + "\n";
  return WriteFileExclusive(fs, path, AsBytes(line), Durability::kNone);
}

}  // namespace

Keeper::Keeper(const KeeperOptions& options, KeeperCore core)
    : options_(options), core_(std::move(core)) {}

Keeper::~Keeper() {
  if (listener_.valid()) unlink(options_.socket.c_str());
  if (!options_.run_dir.empty()) unlink(PidFile(options_.run_dir).c_str());
}

Result<std::unique_ptr<Keeper>> Keeper::Open(const KeeperOptions& options) {
  GODWIT_RETURN_IF_ERROR(SetChildSubreaper());
  KeeperCore core({.slots = options.slots,
                   .uid = getuid(),
                   .pid = getpid(),
                   .adopt_window = options.adopt_window,
                   .first_attach = std::max(options.adopt_window, kFirstAttach)},
                  MonotonicClock::now());
  std::unique_ptr<Keeper> keeper(new Keeper(options, std::move(core)));
  // SIGHUP and SIGPIPE have no meaning here, and must not end workers.
  GODWIT_ASSIGN_OR_RETURN(keeper->signals_, BlockSignalsToFd({SIGCHLD, SIGTERM, SIGINT, SIGHUP,
                                                              SIGPIPE, SIGUSR1, SIGUSR2}));
  GODWIT_ASSIGN_OR_RETURN(keeper->loop_, EventLoop::Open());
  GODWIT_RETURN_IF_ERROR(keeper->MakeSlots());
  GODWIT_ASSIGN_OR_RETURN(keeper->listener_, ListenUnix(options.socket));
  if (!options.run_dir.empty()) GODWIT_RETURN_IF_ERROR(LeavePidFile(options.run_dir));
  Keeper* const self = keeper.get();
  GODWIT_RETURN_IF_ERROR(
      self->loop_->AddFd(self->signals_.get(), EPOLLIN, [self](uint32_t) { self->OnSignal(); }));
  GODWIT_RETURN_IF_ERROR(
      self->loop_->AddFd(self->listener_.get(), EPOLLIN, [self](uint32_t) { self->OnAccept(); }));
  self->ArmTimer();
  return keeper;
}

Status Keeper::MakeSlots() {
  slots_.resize(options_.slots);
  for (uint32_t i = 0; i < options_.slots; ++i) {
    const std::string name = "godwit-page-" + std::to_string(i);
    GODWIT_ASSIGN_OR_RETURN(slots_[i].page, CreateSharedMemory(name, sizeof(ControlPage)));
    GODWIT_ASSIGN_OR_RETURN(const SharedMapping mapping,
                            SharedMapping::Map(slots_[i].page.get(), sizeof(ControlPage)));
    // The memory is zero, which is a valid value of every field.
    auto* const page = new (mapping.data()) ControlPage;
    page->magic = kControlMagic;
    page->layout_version = kControlLayoutVersion;
    page->slot = i;
    slots_[i].doorbell = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!slots_[i].doorbell) return ErrnoError(errno, "eventfd");
  }
  return OkStatus();
}

Status Keeper::Run() {
  const Status status = loop_->Run();
  if (options_.remove_run_dir && core_.abandoned()) {
    // The dead agent's lock may live for a moment in a child that it was just starting.
    const MonotonicTime limit = SaturatingAdd(MonotonicClock::now(), kRemoveLimit);
    while (true) {
      const Result<bool> removed = RemoveIfAbandoned(options_.run_dir);
      if (removed.ok() && *removed) break;
      if (MonotonicClock::now() >= limit) {
        if (!removed.ok()) LogWarning("{}", removed.status().message());
        break;
      }
      const timespec pause = {.tv_sec = 0, .tv_nsec = kRemoveLook.count()};
      nanosleep(&pause, nullptr);
    }
  }
  return status;
}

void Keeper::Do(Actions actions) {
  for (Action& action : actions) {
    if (const auto* send = std::get_if<Send>(&action)) {
      SendTo(*send);
    } else if (const auto* close = std::get_if<Close>(&action)) {
      CloseConnection(close->connection);
    } else if (const auto* spawn = std::get_if<Spawn>(&action)) {
      const uint32_t slot = spawn->request.slot;
      Do(core_.OnSpawned(slot, SpawnWorker(spawn->request)));
    } else if (const auto* reserve = std::get_if<Reserve>(&action)) {
      Do(core_.OnReserved(reserve->slot, ReserveMemory(reserve->slot, reserve->bytes)));
    } else if (const auto* signal = std::get_if<SignalWorker>(&action)) {
      // The worker is not reaped yet, so that its number, and its group's, can't be another's.
      const pid_t pid = slots_[signal->slot].worker->pid();
      if (kill(-pid, signal->signal) != 0 && errno != ESRCH) {
        LogWarning("cannot send {} to the group of process {}: {}", SignalName(signal->signal), pid,
                   std::strerror(errno));
      }
    } else if (const auto* sweep = std::get_if<Sweep>(&action)) {
      slots_[sweep->slot].sweeping = true;
      slots_[sweep->slot].sweep_limit = SaturatingAdd(MonotonicClock::now(), KeeperCore::kEndLimit);
    } else {
      LogInfo("ends: {}", std::get<Exit>(action).why);
      exiting_ = true;
      loop_->Stop();
    }
  }
  ArmTimer();
}

void Keeper::ArmTimer() {
  if (timer_ != 0) loop_->CancelTimer(timer_);
  timer_ = 0;
  if (exiting_) return;
  if (const std::optional<MonotonicTime> deadline = core_.deadline()) {
    timer_ = loop_->AddTimer(*deadline, [this] {
      timer_ = 0;
      Do(core_.OnTick(MonotonicClock::now()));
    });
  }
}

void Keeper::OnAccept() {
  while (true) {
    Result<UniqueFd> fd = AcceptUnix(listener_.get());
    if (!fd.ok()) {
      if (fd.status().code() != StatusCode::kUnavailable) LogWarning("{}", fd.status().message());
      return;
    }
    const Result<PeerCred> peer = PeerCredentials(fd->get());
    if (!peer.ok()) {
      LogWarning("{}", peer.status().message());
      continue;
    }
    if (connections_.size() >= 4 * slots_.size() + kSpareConnections) {
      // Who has said nothing yet makes room, the oldest first.
      const auto silent = std::find_if(connections_.begin(), connections_.end(),
                                       [&](const auto& c) { return !core_.identified(c.first); });
      if (silent == connections_.end()) continue;
      CloseConnection(silent->first);
    }
    const ConnectionId id = next_connection_++;
    const Status watched =
        loop_->AddFd(fd->get(), EPOLLIN, [this, id](uint32_t events) { OnReadable(id, events); });
    if (!watched.ok()) {
      LogWarning("{}", watched.message());
      continue;
    }
    Connection& connection = connections_[id];
    connection.fd = std::move(*fd);
    connection.uid = peer->uid;
  }
}

void Keeper::OnReadable(ConnectionId id, uint32_t events) {
  if ((events & EPOLLOUT) != 0) Flush(id);
  // One packet a round, so that a client that never stops sending starves nobody.
  const auto found = connections_.find(id);
  if (found == connections_.end() || (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  Result<ReceivedMessage> packet =
      RecvMessage(found->second.fd.get(), kMaxKeeperMessageBytes, /*max_fds=*/1);
  const MonotonicTime now = MonotonicClock::now();
  if (!packet.ok()) {
    switch (packet.status().code()) {
      case StatusCode::kUnavailable:
        return;
      case StatusCode::kOutOfRange:
        Do(core_.OnBadPacket(id, packet.status(), now));
        return;
      default:
        CloseConnection(id);
        Do(core_.OnClosed(id, now));
        return;
    }
  }
  const Result<KeeperMessage> message = Decode(id, std::move(*packet));
  if (!message.ok()) {
    Do(core_.OnBadPacket(id, message.status(), now));
    return;
  }
  Do(core_.OnMessage(id, found->second.uid, *message, now));
}

Result<KeeperMessage> Keeper::Decode(ConnectionId id, ReceivedMessage packet) {
  GODWIT_ASSIGN_OR_RETURN(KeeperMessage message, DecodeKeeperMessage(AsBytes(packet.bytes)));
  const auto* const large = std::get_if<LargeRequest>(&message);
  if (packet.fds.size() != (large != nullptr ? 1 : 0)) {
    return InvalidArgumentError("keeper: got " + std::to_string(packet.fds.size()) +
                                " descriptors with a message of type " +
                                std::to_string(message.index()));
  }
  if (large == nullptr) return message;
  if (!core_.is_agent(id) || large->bytes == 0 || large->bytes > kMaxLargeMessageBytes) {
    return InvalidArgumentError("keeper: got a message of " + std::to_string(large->bytes) +
                                " bytes in memory, allowed: 1 to " +
                                std::to_string(kMaxLargeMessageBytes) + ", from the agent");
  }
  // Sealed memory: reading it neither blocks nor meets an end that has moved.
  GODWIT_ASSIGN_OR_RETURN(
      const SharedMapping memory,
      SharedMapping::Map(packet.fds[0].get(), large->bytes, {.protection = Protection::kRead}));
  const std::string bytes(reinterpret_cast<const char*>(memory.data()), memory.size());
  GODWIT_ASSIGN_OR_RETURN(message, DecodeKeeperMessage(AsBytes(bytes), kMaxLargeMessageBytes));
  if (!std::holds_alternative<StartWorkerRequest>(message)) {
    return InvalidArgumentError("keeper: got a message of type " + std::to_string(message.index()) +
                                " in memory, allowed: a start of a worker");
  }
  return message;
}

void Keeper::OnSignal() {
  bool ended_children = false;
  while (true) {
    const Result<std::optional<int>> signal = ReadSignalFd(signals_.get());
    if (!signal.ok()) LogError("{}", signal.status().message());
    if (!signal.ok() || !*signal) break;
    if (**signal == SIGCHLD) ended_children = true;
    if (**signal == SIGTERM || **signal == SIGINT) {
      Do(core_.Stop("got " + SignalName(**signal), MonotonicClock::now()));
    }
  }
  if (ended_children) ReapAll();
}

void Keeper::ReapAll() {
  while (true) {
    // Looked at first, reaped after: the number of a worker, and of its group, stays taken until
    // the rest of the group was killed.
    const Result<pid_t> ended = PeekEndedChild();
    if (!ended.ok()) LogError("{}", ended.status().message());
    if (!ended.ok() || *ended == 0) break;
    const pid_t pid = *ended;
    const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const SlotResources& s) {
      return s.worker && s.worker->pid() == pid;
    });
    if (slot == slots_.end()) {
      ReapUnknownChild(pid);
      continue;
    }
    kill(-pid, SIGKILL);  // ESRCH: it was alone
    const Result<std::optional<ExitStatus>> status = slot->worker->TryWait();
    GODWIT_CHECK(status.ok() && status->has_value());
    slot->worker.reset();
    Do(core_.OnWorkerExited(static_cast<uint32_t>(slot - slots_.begin()), (*status)->code,
                            (*status)->signal));
  }
  SweepSlots();
}

void Keeper::SweepSlots() {
  const auto any_sweeps = [&] {
    return std::any_of(slots_.begin(), slots_.end(), [](const auto& s) { return s.sweeping; });
  };
  if (!any_sweeps()) return;
  const Result<std::vector<pid_t>> children = ChildPids();
  if (!children.ok()) LogError("{}", children.status().message());
  const bool alone = core_.no_worker_runs();
  std::vector<bool> left(slots_.size(), false);
  for (const pid_t pid : children.ok() ? *children : std::vector<pid_t>()) {
    if (std::any_of(slots_.begin(), slots_.end(),
                    [&](const auto& s) { return s.worker && s.worker->pid() == pid; })) {
      continue;
    }
    // An orphan. Its environment says whose; one that has hidden it waits for the last worker.
    std::optional<size_t> owner;
    if (const std::optional<std::string> text = EnvironmentOf(pid, kEnvSlot)) {
      const Result<uint64_t> slot = ParseUint64(*text);
      if (slot.ok() && *slot < slots_.size()) owner = *slot;
    }
    if (owner ? slots_[*owner].worker.has_value() : !alone) continue;
    // A zombie's death is counted when it is reaped, with the next SIGCHLD.
    kill(pid, SIGKILL);
    if (owner && !alone) {
      left[*owner] = true;
    } else {
      left.assign(left.size(), true);
    }
  }
  const MonotonicTime now = MonotonicClock::now();
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].sweeping) continue;
    if (left[i] && now < slots_[i].sweep_limit) continue;
    if (left[i]) {
      LogWarning("{}: processes that the worker left have not ended within {} of SIGKILL",
                 SlotName(i), HumanDuration(KeeperCore::kEndLimit));
    }
    slots_[i].sweeping = false;
    Do(core_.OnSlotQuiet(i));
  }
  if (any_sweeps() && sweep_timer_ == 0 && !exiting_) {
    sweep_timer_ = loop_->AddTimer(SaturatingAdd(now, kSweepAgain), [this] {
      sweep_timer_ = 0;
      ReapAll();
    });
  }
}

void Keeper::SendTo(const Send& send) {
  const auto found = connections_.find(send.to);
  if (found == connections_.end()) return;  // closed meanwhile; the core hears of it by itself
  const std::string bytes = EncodeKeeperMessage(send.message);
  std::vector<int> fds;
  if (send.passed == Passed::kSlot) {
    fds.push_back(slots_[send.slot].page.get());
    fds.push_back(slots_[send.slot].doorbell.get());
  }
  if (send.passed != Passed::kNothing && slots_[send.slot].snapshot.valid()) {
    fds.push_back(slots_[send.slot].snapshot.get());
  }
  Connection& connection = found->second;
  Status status = UnavailableError("queued");
  if (connection.unsent.empty()) status = SendMessage(connection.fd.get(), AsBytes(bytes), fds);
  if (status.ok()) return;
  if (status.code() != StatusCode::kUnavailable) {
    // Its end is seen, and told to the core, when it is read.
    LogDebug("connection {}: {}", send.to, status.message());
    return;
  }
  Connection::Packet packet{.bytes = bytes, .fds = {}};
  for (const int fd : fds) {
    Result<UniqueFd> copy = CopyOf(fd);
    if (copy.ok()) packet.fds.push_back(std::move(*copy));
  }
  if (packet.fds.size() != fds.size() || connection.unsent.size() >= kMaxUnsent) {
    LogWarning("connection {} is closed: it does not read its messages", send.to);
    // The hang-up reaches OnReadable, and from there the core.
    shutdown(connection.fd.get(), SHUT_RDWR);
    return;
  }
  connection.unsent.push_back(std::move(packet));
  if (const Status s = loop_->ModifyFd(connection.fd.get(), EPOLLIN | EPOLLOUT); !s.ok()) {
    LogError("{}", s.message());
  }
}

void Keeper::Flush(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  while (!connection.unsent.empty()) {
    const Connection::Packet& packet = connection.unsent.front();
    std::vector<int> fds;
    for (const UniqueFd& fd : packet.fds) fds.push_back(fd.get());
    const Status status = SendMessage(connection.fd.get(), AsBytes(packet.bytes), fds);
    if (status.code() == StatusCode::kUnavailable) return;
    if (!status.ok()) LogDebug("connection {}: {}", id, status.message());
    connection.unsent.pop_front();
  }
  if (const Status s = loop_->ModifyFd(connection.fd.get(), EPOLLIN); !s.ok()) {
    LogError("{}", s.message());
  }
}

void Keeper::CloseConnection(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  loop_->RemoveFd(found->second.fd.get());
  connections_.erase(found);
}

Result<int32_t> Keeper::SpawnWorker(const StartWorkerRequest& request) {
  GODWIT_ASSIGN_OR_RETURN(const UniqueFd out, OpenLog(request.stdout_path));
  GODWIT_ASSIGN_OR_RETURN(const UniqueFd err, OpenLog(request.stderr_path));
  SpawnOptions options;
  options.argv = request.argv;
  options.env = request.env;
  options.cwd = request.cwd;
  options.stdout_fd = out.get();
  options.stderr_fd = err.get();
  options.new_process_group = true;
  options.parent_death_signal = SIGKILL;
  GODWIT_ASSIGN_OR_RETURN(Child child, godwit::Spawn(options));
  SlotResources& slot = slots_[request.slot];
  slot.worker = std::move(child);
  slot.sweeping = false;
  return slot.worker->pid();
}

Result<uint64_t> Keeper::ReserveMemory(uint32_t slot, uint64_t bytes) {
  slots_[slot].snapshot.Reset();
  GODWIT_ASSIGN_OR_RETURN(slots_[slot].snapshot,
                          CreateSharedMemory("godwit-snapshot-" + std::to_string(slot), bytes));
  return bytes;
}

}  // namespace godwit::keeper
