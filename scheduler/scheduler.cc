#include "scheduler/scheduler.h"

#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/event_loop.h"
#include "base/log.h"
#include "base/process.h"
#include "base/real_file_system.h"
#include "scheduler/api/service.h"
#include "scheduler/config/cluster_config.h"
#include "scheduler/controller.h"
#include "scheduler/executor/local_executor.h"
#include "scheduler/store/store.h"

namespace godwit {
namespace {

constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr char kUnix[] = "unix:";
constexpr char kAddressSetting[] = "address";

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<std::string> StateDirectory(const SchedulerOptions& options) {
  if (!options.state_dir.empty()) {
    if (options.state_dir[0] == '/') return options.state_dir;
    char cwd[PATH_MAX];
    if (getcwd(cwd, sizeof(cwd)) == nullptr) return ErrnoError(errno, "getcwd");
    return JoinPath(cwd, options.state_dir);
  }
  if (const std::string state = Variable("XDG_STATE_HOME"); !state.empty() && state[0] == '/') {
    return JoinPath(state, "godwit/scheduler");
  }
  if (const std::string home = Variable("HOME"); !home.empty() && home[0] == '/') {
    return JoinPath(home, ".local/state/godwit/scheduler");
  }
  return InvalidArgumentError(
      "state directory: got none, and neither XDG_STATE_HOME nor HOME is set, allowed: "
      "--state-dir DIR");
}

Result<std::string> Program(const SchedulerOptions& options) {
  if (!options.program.empty()) return options.program;
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  if (n < 0) return ErrnoError(errno, "readlink(/proc/self/exe)");
  return std::string(path, static_cast<size_t>(n));
}

Result<ClusterConfig> ReadConfig(const std::string& path, uint32_t capacity) {
  if (path.empty()) return DefaultClusterConfig(capacity);
  GODWIT_ASSIGN_OR_RETURN(const std::string text, RealFileSystem().ReadFile(path, kMaxConfigBytes));
  return ParseClusterConfig(text, path, capacity);
}

// The socket's folder exists and is ours alone, and no live scheduler listens there. A dead socket
// is removed.
Status PrepareSocket(const std::string& path) {
  const std::string folder = DirName(path);
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) {
    GODWIT_RETURN_IF_ERROR(RealFileSystem().CreateDirs(folder));
    if (chmod(folder.c_str(), 0700) != 0) return ErrnoError(errno, "chmod(" + folder + ")");
    if (stat(folder.c_str(), &info) != 0) return ErrnoError(errno, "stat(" + folder + ")");
  }
  const bool sticky = (info.st_mode & S_ISVTX) != 0;
  if (info.st_uid != getuid() && !(info.st_uid == 0 && sticky)) {
    return PermissionDeniedError(
        fmt::format("socket folder {}: it belongs to uid {}, allowed: one of uid {}", folder,
                    info.st_uid, getuid()));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError("socket path " + path + " is too long");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return ErrnoError(errno, "socket");
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return FailedPreconditionError(fmt::format(
        "another scheduler listens at {}, allowed: --listen with another address", path));
  }
  if (errno == ECONNREFUSED && unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError(errno, "unlink(" + path + ")");
  }
  return OkStatus();
}

// The address to bind. Running jobs know the one of the last time, so a free port is that one
// again.
Result<std::string> ListenAddress(const SchedulerOptions& options, Store& store) {
  std::string address = options.listen.empty() ? DefaultSchedulerAddress() : options.listen;
  GODWIT_RETURN_IF_ERROR(CheckSchedulerAddress(address));
  if (address.rfind(kUnix, 0) == 0) {
    GODWIT_RETURN_IF_ERROR(PrepareSocket(address.substr(sizeof(kUnix) - 1)));
    return address;
  }
  const size_t colon = address.rfind(':');
  if (address.substr(colon + 1) == "0") {
    GODWIT_ASSIGN_OR_RETURN(const std::string last, store.Setting(kAddressSetting));
    GODWIT_ASSIGN_OR_RETURN(const Store::Contents contents, store.Load());
    bool placed = false;
    for (const AttemptRecord& attempt : contents.attempts) placed |= !attempt.ended;
    if (placed && last.rfind(address.substr(0, colon + 1), 0) == 0) address = last;
  }
  LogWarning(
      "{}: every process on this machine that can connect can command this scheduler; a unix "
      "socket is for its user only",
      address);
  return address;
}

Status Run(const SchedulerOptions& options) {
  GODWIT_ASSIGN_OR_RETURN(std::vector<policy::Node> nodes, ParseNodes(options.nodes));
  uint32_t capacity = 0;
  for (const policy::Node& node : nodes) capacity += node.slots;
  GODWIT_ASSIGN_OR_RETURN(ClusterConfig config, ReadConfig(options.config_path, capacity));
  GODWIT_ASSIGN_OR_RETURN(const std::string state_dir, StateDirectory(options));
  GODWIT_ASSIGN_OR_RETURN(const std::string program, Program(options));

  UniqueFd signals;
  if (options.handle_signals) {
    GODWIT_ASSIGN_OR_RETURN(signals, BlockSignalsToFd({SIGTERM, SIGINT}));
  }
  // Sockets and files are for this user only.
  umask(0077);
  Clock& clock = RealClock();
  GODWIT_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Open(state_dir));
  GODWIT_ASSIGN_OR_RETURN(const std::unique_ptr<EventLoop> loop, EventLoop::Open());
  Controller controller(std::move(config), std::move(nodes), JoinPath(state_dir, "run"), *store,
                        *loop, clock);
  GODWIT_ASSIGN_OR_RETURN(const std::string listen, ListenAddress(options, *store));
  GODWIT_ASSIGN_OR_RETURN(std::unique_ptr<SchedulerServer> server,
                          SchedulerServer::Open(listen, controller, *loop, clock));
  Store::Batch setting;
  setting.settings.emplace_back(kAddressSetting, server->address());
  GODWIT_RETURN_IF_ERROR(store->Commit(setting));

  LocalExecutor executor({program, server->address(), store->id()}, *loop, clock, controller);
  GODWIT_RETURN_IF_ERROR(controller.Begin(executor));

  const auto stop = [&](const std::string& why) {
    LogInfo("{}: stopping; jobs go on", why);
    loop->Stop();
  };
  if (signals.valid()) {
    GODWIT_RETURN_IF_ERROR(loop->AddFd(signals.get(), EPOLLIN, [&](uint32_t) {
      const auto signal = ReadSignalFd(signals.get());
      if (signal.ok() && signal->has_value()) stop(SignalName(**signal));
    }));
  }
  if (options.stop_fd >= 0) {
    GODWIT_RETURN_IF_ERROR(
        loop->AddFd(options.stop_fd, EPOLLIN, [&](uint32_t) { stop("told to"); }));
  }
  std::printf("godwit scheduler: listening at %s\n", server->address().c_str());
  std::fflush(stdout);
  if (options.on_listening) options.on_listening(server->address());
  const Status status = loop->Run();
  if (options.stop_fd >= 0) loop->RemoveFd(options.stop_fd);
  if (signals.valid()) loop->RemoveFd(signals.get());
  server.reset();
  return status;
}

}  // namespace

int RunScheduler(const SchedulerOptions& options) {
  SetLogComponent("scheduler");
  if (const Status status = Run(options); !status.ok()) {
    std::fprintf(stderr, "godwit: scheduler: %s\n", status.message().c_str());
    return 1;
  }
  return 0;
}

}  // namespace godwit
