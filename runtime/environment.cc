#include "runtime/environment.h"

#include <unistd.h>

#include "base/strings.h"
#include "control/keeper_protocol.h"

namespace godwit {
namespace {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

}  // namespace

Result<LaunchEnvironment> ReadLaunchEnvironment(
    const std::function<const char*(const char* name)>& get) {
  const auto text = [&](const char* name) {
    const char* value = get(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto number = [&](const char* name, uint64_t most) -> Result<uint64_t> {
    auto value = ParseUint64(text(name));
    if (!value.ok()) return value.status().Annotate(name);
    if (*value > most) {
      return InvalidArgumentError(std::string(name) + ": got " + text(name) +
                                  ", allowed: at most " + std::to_string(most));
    }
    return value;
  };

  LaunchEnvironment env;
  env.dir = text(kEnvDir);
  env.job = text(kEnvJob);
  env.keeper_socket = text(kEnvKeeperSocket);
  if (env.keeper_socket.empty()) {
    if (!text("WORLD_SIZE").empty()) {
      GODWIT_ASSIGN_OR_RETURN(const uint64_t world_size, number("WORLD_SIZE", UINT32_MAX));
      if (world_size > 1) {
        return FailedPreconditionError(
            "WORLD_SIZE is " + std::to_string(world_size) +
            ", but no godwit keeper started this process: its ranks would write to one checkpoint "
            "directory without knowing of each other; start it with `godwit run -- COMMAND`");
      }
    }
    return env;
  }
  env.launched = true;
  GODWIT_ASSIGN_OR_RETURN(const uint64_t slot, number(kEnvSlot, UINT32_MAX));
  env.slot = static_cast<uint32_t>(slot);
  GODWIT_ASSIGN_OR_RETURN(env.epoch, number(kEnvEpoch, UINT64_MAX));
  // Peers on this host alone are told apart from others by the rendezvous address.
  const std::string master = text("MASTER_ADDR");
  const bool loopback = master.empty() || master == "localhost" || master.starts_with("127.");
  env.host = loopback ? "127.0.0.1" : HostName();
  return env;
}

}  // namespace godwit
