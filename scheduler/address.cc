#include <fmt/core.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file_system.h"
#include "base/strings.h"
#include "scheduler/scheduler.h"

namespace godwit {
namespace {

constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string DefaultSchedulerAddress() {
  const std::string runtime = Variable("XDG_RUNTIME_DIR");
  if (!runtime.empty() && runtime[0] == '/') {
    const std::string path = JoinPath(runtime, "godwit/scheduler.sock");
    if (path.size() <= kMaxSocketPath) return "unix:" + path;
  }
  std::string tmp = Variable("TMPDIR");
  if (tmp.empty() || tmp[0] != '/') tmp = "/tmp";
  const std::string name = fmt::format("godwit-{}/scheduler.sock", getuid());
  std::string path = JoinPath(tmp, name);
  if (path.size() > kMaxSocketPath) path = JoinPath("/tmp", name);
  return "unix:" + path;
}

Status CheckSchedulerAddress(const std::string& address) {
  const auto wrong = [&](const std::string& allowed) {
    return InvalidArgumentError(
        fmt::format("scheduler address: got '{}', allowed: {}", address, allowed));
  };
  constexpr char kUnix[] = "unix:";
  if (address.rfind(kUnix, 0) == 0) {
    const std::string path = address.substr(sizeof(kUnix) - 1);
    if (path.empty() || path[0] != '/') return wrong("unix:<absolute path>, <host>:<port>");
    if (path.size() > kMaxSocketPath) {
      return wrong(
          fmt::format("a path of at most {} bytes (this one has {})", kMaxSocketPath, path.size()));
    }
    return OkStatus();
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong("unix:<absolute path>, <host>:<port>");
  const Result<uint64_t> port = ParseUint64(address.substr(colon + 1));
  if (!port.ok() || *port > 65535) return wrong("a port from 0 to 65535");
  return OkStatus();
}

}  // namespace godwit
