#include <cstdio>
#include <map>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "launcher/agent.h"
#include "launcher/keeper/keeper.h"

namespace godwit::keeper {
namespace {

constexpr const char* kUsage =
    "godwit-keeper --socket PATH --slots N --adopt-window-ms MS [--run-dir DIR] "
    "[--remove-run-dir 0|1]";

Result<KeeperOptions> ParseArguments(int argc, char** argv) {
  std::map<std::string, std::string> values = {{"--socket", ""},
                                               {"--slots", "1"},
                                               {"--adopt-window-ms", "0"},
                                               {"--run-dir", ""},
                                               {"--remove-run-dir", "0"}};
  for (int i = 1; i < argc; i += 2) {
    const auto option = values.find(argv[i]);
    if (option == values.end()) {
      return InvalidArgumentError("got '" + std::string(argv[i]) + "', allowed: " + kUsage);
    }
    if (i + 1 >= argc) return InvalidArgumentError(option->first + ": got no value");
    option->second = argv[i + 1];
  }
  KeeperOptions options;
  options.socket = values["--socket"];
  options.run_dir = values["--run-dir"];
  const Result<uint64_t> slots = ParseUint64(values["--slots"]);
  if (!slots.ok() || *slots == 0 || *slots > kMaxNodeSlots) {
    return InvalidArgumentError("--slots: got '" + values["--slots"] + "', allowed: 1 to " +
                                std::to_string(kMaxNodeSlots));
  }
  options.slots = static_cast<uint32_t>(*slots);
  const Result<uint64_t> window = ParseUint64(values["--adopt-window-ms"]);
  constexpr uint64_t kMaxWindowMs = 24ull * 3600 * 1000;
  if (!window.ok() || *window > kMaxWindowMs) {
    return InvalidArgumentError("--adopt-window-ms: got '" + values["--adopt-window-ms"] +
                                "', allowed: 0 to " + std::to_string(kMaxWindowMs));
  }
  options.adopt_window = std::chrono::milliseconds(*window);
  const std::string& remove = values["--remove-run-dir"];
  if ((remove != "0" && remove != "1") || (remove == "1" && options.run_dir.empty())) {
    return InvalidArgumentError("--remove-run-dir: got '" + remove +
                                "', allowed: 0, or with --run-dir 1");
  }
  options.remove_run_dir = remove == "1";
  if (options.socket.empty() || options.socket[0] != '/') {
    return InvalidArgumentError("--socket: got '" + options.socket +
                                "', allowed: an absolute path");
  }
  return options;
}

int Main(int argc, char** argv) {
  SetLogComponent("keeper");
  const Result<KeeperOptions> options = ParseArguments(argc, argv);
  if (!options.ok()) {
    std::fprintf(stderr, "godwit-keeper: %s\n", options.status().message().c_str());
    return 2;
  }
  Result<std::unique_ptr<Keeper>> keeper = Keeper::Open(*options);
  if (!keeper.ok()) {
    std::fprintf(stderr, "godwit-keeper: %s\n", keeper.status().message().c_str());
    return 1;
  }
  const Status status = (*keeper)->Run();
  if (!status.ok()) {
    LogError("{}", status.message());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace godwit::keeper

int main(int argc, char** argv) { return godwit::keeper::Main(argc, argv); }
