#include "launcher/agent/keeper_link.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/process.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "base/unix_socket.h"
#include "launcher/process_tree.h"
#include "launcher/testing/processes.h"

namespace godwit {
namespace {

using ::godwit::testing::Soon;

constexpr Duration kSilence = std::chrono::milliseconds(200);

// A keeper that is busy with something else for `busy` before it answers its agent.
[[noreturn]] void BusyKeeper(const std::string& socket, const std::string& ready, Duration busy) {
  const Result<UniqueFd> listener = ListenUnix(socket);
  const UniqueFd file(open(ready.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  const Result<UniqueFd> agent =
      listener.ok() ? AcceptUnix(listener->get(), Soon()) : listener.status();
  if (!agent.ok()) _exit(1);
  const MonotonicTime until = SaturatingAdd(MonotonicClock::now(), busy);
  while (MonotonicClock::now() < until) {
  }
  const AttachReply reply{.slots = 1, .keeper_pid = getpid()};
  const Status sent = SendMessage(agent->get(), AsBytes(EncodeKeeperMessage(reply)), {}, Soon());
  // Until it is ended.
  while (RecvMessage(agent->get(), kMaxKeeperMessageBytes, 0, Soon()).ok()) {
  }
  _exit(sent.ok() ? 0 : 1);
}

TEST(KeeperLinkTest, AKeeperThatIsBusyIsWaitedFor) {
  ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create("keeper-link"));
  const std::string socket = dir.File("keeper.sock");
  const pid_t keeper = fork();
  ASSERT_GE(keeper, 0);
  if (keeper == 0) BusyKeeper(socket, dir.File("ready"), kSilence * 5);
  // Else the link would start one of its own.
  ASSERT_TRUE(testing::WaitUntil([&] { return access(dir.File("ready").c_str(), F_OK) == 0; }));

  ASSERT_OK_AND_ASSIGN(const auto loop, EventLoop::Open());
  std::optional<KeeperMessage> answer;
  std::string lost;
  KeeperLink link(
      {.program = "/nowhere", .socket = socket, .run_dir = dir.path(), .silence_limit = kSilence},
      loop.get(),
      {.message =
           [&](const KeeperMessage& message, std::vector<UniqueFd>) {
             answer = message;
             loop->Stop();
           },
       .lost =
           [&](const std::string& why) {
             lost = why;
             loop->Stop();
           }});
  ASSERT_OK(link.Connect());
  ASSERT_OK(loop->Run());
  EXPECT_EQ(lost, "");
  ASSERT_TRUE(answer && std::holds_alternative<AttachReply>(*answer));
  EXPECT_EQ(std::get<AttachReply>(*answer).keeper_pid, keeper);
  link.Kill();
  ReapUnknownChild(keeper);
}

}  // namespace
}  // namespace godwit
