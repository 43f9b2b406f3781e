// The keeper's binary, with real workers.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/random.h"
#include "base/shared_memory.h"
#include "base/strings.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "base/unix_socket.h"
#include "control/agent_channel.h"
#include "control/keeper_protocol.h"
#include "launcher/run_dir.h"
#include "launcher/testing/processes.h"

namespace godwit::keeper {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::Soon;
using ::godwit::testing::StatusIs;
using ::godwit::testing::WaitGone;
using ::godwit::testing::WaitUntil;
using ::testing::HasSubstr;

// An agent that only says what the test wants.
class Client {
 public:
  Status Connect(const std::string& socket) {
    GODWIT_ASSIGN_OR_RETURN(fd_, ConnectUnix(socket, Soon()));
    return OkStatus();
  }
  Status SendBytes(std::string_view bytes) {
    return SendMessage(fd_.get(), AsBytes(bytes), {}, Soon());
  }
  Status Say(const KeeperMessage& message) { return SendBytes(EncodeKeeperMessage(message)); }
  // The next message of this kind; those before it are thrown away.
  template <typename T>
  Result<T> Await(std::vector<UniqueFd>* fds = nullptr) {
    while (true) {
      GODWIT_ASSIGN_OR_RETURN(ReceivedMessage packet,
                              RecvMessage(fd_.get(), kMaxKeeperMessageBytes, 3, Soon()));
      GODWIT_ASSIGN_OR_RETURN(const KeeperMessage message,
                              DecodeKeeperMessage(AsBytes(packet.bytes)));
      if (!std::holds_alternative<T>(message)) continue;
      if (fds != nullptr) *fds = std::move(packet.fds);
      return std::get<T>(message);
    }
  }
  void Close() { fd_.Reset(); }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

class KeeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(TempDir dir, TempDir::Create("keeper-test"));
    dir_ = std::make_unique<TempDir>(std::move(dir));
  }
  void TearDown() override {
    if (!keeper_) return;
    (void)!keeper_->Signal(SIGTERM).ok();
    EXPECT_OK(keeper_->Wait(Soon()));
  }

  void StartKeeper(uint32_t slots = 1, int window_ms = 60000) {
    SpawnOptions options;
    options.argv = {GODWIT_KEEPER_PROGRAM,
                    "--socket",
                    socket(),
                    "--slots",
                    std::to_string(slots),
                    "--adopt-window-ms",
                    std::to_string(window_ms),
                    "--run-dir",
                    dir_->path()};
    options.stdin_fd = SpawnOptions::kDevNull;
    ASSERT_OK_AND_ASSIGN(Child child, Spawn(options));
    keeper_ = std::make_unique<Child>(std::move(child));
  }
  void Attach(Client* agent) {
    ASSERT_OK(agent->Connect(socket()));
    ASSERT_OK(agent->Say(AttachRequest{}));
    ASSERT_OK_AND_ASSIGN(const AttachReply reply, agent->Await<AttachReply>());
    EXPECT_EQ(reply.keeper_pid, keeper_->pid());
  }
  StartWorkerRequest Worker(std::vector<std::string> arguments, uint64_t epoch = 1,
                            uint32_t slot = 0) {
    StartWorkerRequest request;
    request.slot = slot;
    request.epoch = epoch;
    request.argv = {GODWIT_FAKE_WORKER};
    request.argv.insert(request.argv.end(), arguments.begin(), arguments.end());
    request.env = {std::string(kEnvKeeperSocket) + "=" + socket(),
                   std::string(kEnvSlot) + "=" + std::to_string(slot),
                   std::string(kEnvEpoch) + "=" + std::to_string(epoch)};
    request.stdout_path = dir_->File("out" + std::to_string(slot));
    request.stderr_path = dir_->File("err" + std::to_string(slot));
    return request;
  }
  pid_t StartWorker(Client* agent, const StartWorkerRequest& request) {
    EXPECT_OK(agent->Say(request));
    const Result<StartWorkerReply> reply = agent->Await<StartWorkerReply>();
    EXPECT_THAT(reply, IsOk());
    return reply.ok() ? reply->pid : 0;
  }
  std::string socket() const { return dir_->File("keeper.sock"); }

  std::unique_ptr<TempDir> dir_;
  std::unique_ptr<Child> keeper_;
};

TEST_F(KeeperTest, TheEndOfAKilledWorkerIsToldAtOnce) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  const pid_t pid = StartWorker(&agent, Worker({"sleep"}));
  const MonotonicTime killed = MonotonicClock::now();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_OK_AND_ASSIGN(const ExitedEvent exited, agent.Await<ExitedEvent>());
  const Duration took = MonotonicClock::now() - killed;
  RecordProperty("exit_told_us", std::to_string(took.count() / 1000));
  EXPECT_EQ(exited.pid, pid);
  EXPECT_EQ(exited.signal, SIGKILL);
  EXPECT_EQ(exited.epoch, 1u);
  EXPECT_LT(took, std::chrono::seconds(1)) << "milliseconds on an idle machine";
}

TEST_F(KeeperTest, AnExitCodeAndTheOutputOfAWorkerAreKept) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  StartWorker(&agent, Worker({"exit", "3", "hello\n"}));
  ASSERT_OK_AND_ASSIGN(const ExitedEvent exited, agent.Await<ExitedEvent>());
  EXPECT_EQ(exited.exit_code, 3);
  EXPECT_EQ(exited.signal, 0);
  EXPECT_EQ(testing::ReadText(dir_->File("out0")), "hello\n");
  EXPECT_EQ(testing::ReadText(dir_->File("err0")), "hello\n");
}

TEST_F(KeeperTest, KillingTheKeeperEndsItsWorkers) {
  StartKeeper(2);
  Client agent;
  Attach(&agent);
  const pid_t first = StartWorker(&agent, Worker({"sleep"}, 1, 0));
  const pid_t second = StartWorker(&agent, Worker({"sleep"}, 1, 1));
  ASSERT_OK(keeper_->Signal(SIGKILL));
  ASSERT_OK(keeper_->Wait(Soon()));
  keeper_.reset();
  EXPECT_TRUE(WaitGone(first));
  EXPECT_TRUE(WaitGone(second));
}

TEST_F(KeeperTest, WithoutAnAdoptWindowEverythingEndsWithTheAgent) {
  StartKeeper(1, 0);
  Client agent;
  Attach(&agent);
  const pid_t pid = StartWorker(&agent, Worker({"sleep"}));
  agent.Close();
  EXPECT_TRUE(WaitGone(pid));
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, keeper_->Wait(Soon()));
  EXPECT_TRUE(status.success()) << status.ToString();
  keeper_.reset();
  EXPECT_NE(access(socket().c_str(), F_OK), 0) << "its socket is gone too";
}

TEST_F(KeeperTest, AMessageInMemoryComesFromTheAgentAlone) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  StartWorkerRequest request = Worker({"exit", "4"});
  request.env.push_back("LONG=" + std::string(100'000, 'x'));
  request.env.push_back("LONGER=" + std::string(100'000, 'y'));
  const std::string bytes = EncodeKeeperMessage(request);
  ASSERT_GT(bytes.size(), kMaxKeeperMessageBytes);
  ASSERT_OK_AND_ASSIGN(const UniqueFd memory, CreateSharedMemory("test", bytes.size()));
  {
    ASSERT_OK_AND_ASSIGN(const SharedMapping mapping,
                         SharedMapping::Map(memory.get(), bytes.size()));
    std::memcpy(mapping.data(), bytes.data(), bytes.size());
  }
  const auto say = [&](const Client& client, const LargeRequest& large, int fd) {
    return SendMessage(client.fd(), AsBytes(EncodeKeeperMessage(large)), {&fd, 1}, Soon());
  };
  ASSERT_OK(say(agent, {bytes.size()}, memory.get()));
  ASSERT_OK(agent.Await<StartWorkerReply>());
  ASSERT_OK_AND_ASSIGN(const ExitedEvent exited, agent.Await<ExitedEvent>());
  EXPECT_EQ(exited.exit_code, 4);

  Client stranger;
  ASSERT_OK(stranger.Connect(socket()));
  ASSERT_OK(say(stranger, {bytes.size()}, memory.get()));
  ASSERT_OK_AND_ASSIGN(const ErrorReply refused, stranger.Await<ErrorReply>());
  EXPECT_THAT(refused.message, HasSubstr("from the agent"));
  // Neither another size, nor memory that could shrink, nor a file makes it read what isn't there.
  ASSERT_OK_AND_ASSIGN(const UniqueFd open_memory,
                       CreateSharedMemory("test", bytes.size(), {.seal = false}));
  const UniqueFd file(open("/dev/zero", O_RDWR | O_CLOEXEC));
  for (const auto& [large, fd] : {std::pair(LargeRequest{bytes.size() + 1}, memory.get()),
                                  std::pair(LargeRequest{bytes.size()}, open_memory.get()),
                                  std::pair(LargeRequest{4096}, file.get())}) {
    Client next;
    Attach(&next);
    ASSERT_OK(say(next, large, fd));
    EXPECT_OK(next.Await<ErrorReply>());
  }
}

TEST_F(KeeperTest, ADeadOwnersDirectoryIsRemovedAndALivingOnesIsNot) {
  for (const bool alive : {true, false}) {
    SCOPED_TRACE(alive);
    const std::string dir = dir_->File(alive ? "alive" : "dead");
    ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
    ASSERT_OK_AND_ASSIGN(UniqueFd lock, LockRunDir(dir));
    SpawnOptions options;
    options.argv = {GODWIT_KEEPER_PROGRAM, "--socket", dir + "/keeper.sock", "--slots", "1",
                    "--run-dir",           dir,        "--remove-run-dir",   "1"};
    options.stdin_fd = SpawnOptions::kDevNull;
    ASSERT_OK_AND_ASSIGN(Child keeper, Spawn(options));
    Client agent;
    ASSERT_OK(agent.Connect(dir + "/keeper.sock"));
    ASSERT_OK(agent.Say(AttachRequest{}));
    ASSERT_OK(agent.Await<AttachReply>());
    if (!alive) lock.Reset();
    agent.Close();
    ASSERT_OK(keeper.Wait(Soon()));
    EXPECT_EQ(access(dir.c_str(), F_OK) == 0, alive);
  }
}

TEST_F(KeeperTest, WorkersAndSnapshotMemoryOutliveTheAgentWithinItsWindow) {
  StartKeeper();
  Client first;
  Attach(&first);
  std::vector<UniqueFd> fds;
  ASSERT_OK(first.Await<SlotState>(&fds));
  ASSERT_EQ(fds.size(), 2u);
  ASSERT_OK_AND_ASSIGN(const auto page, AgentChannel::Map(fds[0].get(), std::move(fds[1])));
  page->Prepare({.epoch = 1});
  const pid_t pid = StartWorker(&first, Worker({"reserve", "1048576"}));
  ASSERT_OK(first.Await<ClaimedEvent>());
  ASSERT_OK(first.Await<SlotState>(&fds));
  ASSERT_EQ(fds.size(), 3u) << testing::ReadText(dir_->File("err0"));
  ASSERT_TRUE(WaitUntil([&] {
    const Result<WorkerReport> said = page->Report();
    return said.ok() && said->message == "filled";
  }));
  first.Close();

  Client second;
  Attach(&second);
  ASSERT_OK_AND_ASSIGN(const SlotState state, second.Await<SlotState>(&fds));
  EXPECT_EQ(state.pid, pid);
  EXPECT_EQ(state.claimed, 1);
  EXPECT_EQ(state.snapshot_bytes, 1048576u);
  // The worker's death doesn't take its memory along either.
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_OK(second.Await<ExitedEvent>());
  ASSERT_EQ(fds.size(), 3u);
  ASSERT_OK_AND_ASSIGN(const SharedMapping memory, SharedMapping::Map(fds[2].get(), 1048576));
  EXPECT_EQ(memory.data()[0], std::byte{0x5a});
  EXPECT_EQ(memory.data()[1048575], std::byte{0x5a});
}

TEST_F(KeeperTest, AnEndWithoutAnAgentIsToldToTheNext) {
  StartKeeper();
  Client first;
  Attach(&first);
  const pid_t pid = StartWorker(&first, Worker({"sleep"}));
  first.Close();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_TRUE(WaitGone(pid));
  Client second;
  Attach(&second);
  ASSERT_OK_AND_ASSIGN(const ExitedEvent exited, second.Await<ExitedEvent>());
  EXPECT_EQ(exited.pid, pid);
  EXPECT_EQ(exited.signal, SIGKILL);
}

TEST_F(KeeperTest, ADaemonThatAWorkerLeavesEndsWithIt) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  ASSERT_OK(agent.Await<SlotState>());
  const std::string file = dir_->File("daemon");
  const pid_t pid = StartWorker(&agent, Worker({"daemon", file}));
  ASSERT_TRUE(WaitUntil([&] { return !testing::ReadText(file).empty(); }));
  ASSERT_OK_AND_ASSIGN(const uint64_t daemon, ParseUint64(Trim(testing::ReadText(file))));
  EXPECT_EQ(kill(static_cast<pid_t>(daemon), 0), 0) << "lives as long as its worker";
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_OK(agent.Await<ExitedEvent>());
  // The slot is free only when nothing of the worker is left.
  ASSERT_OK_AND_ASSIGN(const SlotState state, agent.Await<SlotState>());
  EXPECT_EQ(state.pid, 0);
  EXPECT_NE(kill(static_cast<pid_t>(daemon), 0), 0) << "and is gone by now";
}

TEST_F(KeeperTest, ADaemonOfOneSlotEndsThoughAnotherSlotRunsOn) {
  StartKeeper(2);
  Client agent;
  Attach(&agent);
  ASSERT_OK(agent.Await<SlotState>());
  ASSERT_OK(agent.Await<SlotState>());
  const pid_t other = StartWorker(&agent, Worker({"sleep"}, 1, 1));
  const std::string file = dir_->File("daemon");
  const pid_t pid = StartWorker(&agent, Worker({"daemon", file}, 1, 0));
  ASSERT_TRUE(WaitUntil([&] { return !testing::ReadText(file).empty(); }));
  ASSERT_OK_AND_ASSIGN(const uint64_t daemon, ParseUint64(Trim(testing::ReadText(file))));
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_OK_AND_ASSIGN(const SlotState state, agent.Await<SlotState>());
  EXPECT_EQ(state.slot, 0u);
  EXPECT_EQ(state.pid, 0);
  EXPECT_NE(kill(static_cast<pid_t>(daemon), 0), 0);
  EXPECT_EQ(kill(other, 0), 0);
}

TEST_F(KeeperTest, AMissingProgramIsNamed) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  StartWorkerRequest request = Worker({});
  request.argv = {"/nowhere/train"};
  ASSERT_OK(agent.Say(request));
  ASSERT_OK_AND_ASSIGN(const ErrorReply error, agent.Await<ErrorReply>());
  EXPECT_EQ(error.code, static_cast<int>(StatusCode::kNotFound));
  EXPECT_THAT(error.message, HasSubstr("cannot execute '/nowhere/train'"));
  // The slot is as free as before.
  EXPECT_GT(StartWorker(&agent, Worker({"sleep"}, 2)), 0);
}

TEST_F(KeeperTest, AnOutputFileThatCannotBeOpenedIsNamed) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  StartWorkerRequest request = Worker({"sleep"});
  request.stdout_path = dir_->File("missing/out");
  ASSERT_OK(agent.Say(request));
  ASSERT_OK_AND_ASSIGN(const ErrorReply error, agent.Await<ErrorReply>());
  EXPECT_THAT(error.message, HasSubstr("missing/out"));
}

TEST_F(KeeperTest, MalformedPacketsCloseTheirSenderAndNobodyElse) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  const pid_t pid = StartWorker(&agent, Worker({"sleep"}));
  constexpr uint64_t kSeed = 20261201;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const std::string good = EncodeKeeperMessage(ClaimRequest{.directory = "/somewhere"});
  for (int i = 0; i < 300; ++i) {
    Client hostile;
    ASSERT_OK(hostile.Connect(socket()));
    std::string bytes;
    if (i % 2 == 0) {
      bytes.resize(1 + random.Below(64));
      for (char& c : bytes) c = static_cast<char>(random.Below(256));
    } else {
      bytes = good;
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    }
    ASSERT_OK(hostile.SendBytes(bytes));
    // Whatever it was, it is answered, and then the connection closed. (No byte that was changed
    // makes a claim that is right: no worker of epoch 0 runs.)
    while (hostile.Await<ErrorReply>().ok()) {
    }
  }
  Client huge;
  ASSERT_OK(huge.Connect(socket()));
  (void)huge.SendBytes(std::string(kMaxKeeperMessageBytes + 1, 'x'));
  EXPECT_OK(huge.Await<ErrorReply>());
  EXPECT_THAT(huge.Await<ErrorReply>(), StatusIs(StatusCode::kAborted));
  // Agent and worker have not noticed.
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_OK(agent.Await<ExitedEvent>());
}

TEST_F(KeeperTest, SilentClientsDoNotKeepAnAgentOut) {
  StartKeeper();
  std::vector<Client> silent(100);
  for (Client& client : silent) ASSERT_OK(client.Connect(socket()));
  Client agent;
  Attach(&agent);
  EXPECT_GT(StartWorker(&agent, Worker({"sleep"})), 0);
}

TEST_F(KeeperTest, ASecondClaimIsRefused) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  StartWorker(&agent, Worker({"sleep"}));
  Client first;
  ASSERT_OK(first.Connect(socket()));
  ASSERT_OK(first.Say(ClaimRequest{.slot = 0, .epoch = 1, .pid = getpid()}));
  ASSERT_OK(first.Await<ClaimReply>());
  Client second;
  ASSERT_OK(second.Connect(socket()));
  ASSERT_OK(second.Say(ClaimRequest{.slot = 0, .epoch = 1, .pid = getpid()}));
  ASSERT_OK_AND_ASSIGN(const ErrorReply error, second.Await<ErrorReply>());
  EXPECT_EQ(error.code, static_cast<int>(StatusCode::kAlreadyExists));
}

TEST_F(KeeperTest, MoreSnapshotMemoryThanThereIsIsRefusedNotOverdrawn) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  StartWorker(&agent, Worker({"sleep"}));
  Client worker;
  ASSERT_OK(worker.Connect(socket()));
  ASSERT_OK(worker.Say(ClaimRequest{.slot = 0, .epoch = 1, .pid = getpid()}));
  ASSERT_OK(worker.Await<ClaimReply>());
  ASSERT_OK(worker.Say(ReserveRequest{.bytes = 1ull << 50}));
  ASSERT_OK_AND_ASSIGN(const ErrorReply error, worker.Await<ErrorReply>());
  EXPECT_EQ(error.code, static_cast<int>(StatusCode::kResourceExhausted)) << error.message;
  // It goes on serving, this client too.
  ASSERT_OK(worker.Say(ReserveRequest{.bytes = 4096}));
  std::vector<UniqueFd> fds;
  ASSERT_OK_AND_ASSIGN(const SnapshotReply reply, worker.Await<SnapshotReply>(&fds));
  EXPECT_EQ(reply.bytes, 4096u);
  EXPECT_EQ(fds.size(), 1u);
}

TEST_F(KeeperTest, ShutdownEndsTheWorkersThenTheKeeper) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  const pid_t pid = StartWorker(&agent, Worker({"sleep"}));
  ASSERT_OK(agent.Say(ShutdownRequest{}));
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, keeper_->Wait(Soon()));
  EXPECT_TRUE(status.success()) << status.ToString();
  keeper_.reset();
  EXPECT_TRUE(WaitGone(pid));
}

TEST_F(KeeperTest, ATakenSocketIsRefusedInOneLine) {
  StartKeeper();
  Client agent;
  Attach(&agent);
  SpawnOptions options;
  options.argv = {GODWIT_KEEPER_PROGRAM, "--socket", socket(), "--slots", "1"};
  options.stdin_fd = SpawnOptions::kDevNull;
  const UniqueFd log(open(dir_->File("second.log").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  options.stderr_fd = log.get();
  ASSERT_OK_AND_ASSIGN(Child second, Spawn(options));
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, second.Wait(Soon()));
  EXPECT_EQ(status.code, 1);
  EXPECT_THAT(testing::ReadText(dir_->File("second.log")), HasSubstr(socket()));
  EXPECT_EQ(access(socket().c_str(), F_OK), 0) << "the first one's socket stays";
}

TEST_F(KeeperTest, WrongOptionsAreNamed) {
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--slots", "0"}, {"--slot", "1"}, {"--adopt-window-ms", "-1"}}) {
    SpawnOptions options;
    options.argv = {GODWIT_KEEPER_PROGRAM, "--socket", socket()};
    options.argv.insert(options.argv.end(), wrong.begin(), wrong.end());
    const std::string path = dir_->File("log" + wrong[0] + wrong[1]);
    const UniqueFd log(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    options.stderr_fd = log.get();
    ASSERT_OK_AND_ASSIGN(Child child, Spawn(options));
    ASSERT_OK_AND_ASSIGN(const ExitStatus status, child.Wait(Soon()));
    EXPECT_EQ(status.code, 2);
    EXPECT_THAT(testing::ReadText(path), HasSubstr(wrong[0]));
  }
}

}  // namespace
}  // namespace godwit::keeper
