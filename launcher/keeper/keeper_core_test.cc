#include "launcher/keeper/keeper_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "base/testing/matchers.h"

namespace godwit::keeper {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kUid = 1000;
const MonotonicTime kStart = MonotonicFromNanos(1'000'000'000'000);
constexpr Duration kWindow = std::chrono::seconds(60);
constexpr Duration kFirst = std::chrono::seconds(10);

class KeeperCoreTest : public ::testing::Test {
 protected:
  KeeperCore Make(uint32_t slots = 1, Duration window = kWindow) {
    return KeeperCore(
        {.slots = slots, .uid = kUid, .pid = 42, .adopt_window = window, .first_attach = kFirst},
        kStart);
  }
  static Actions Say(KeeperCore* core, ConnectionId from, const KeeperMessage& message) {
    return core->OnMessage(from, kUid, message, kStart);
  }
  static void Start(KeeperCore* core, ConnectionId agent, uint32_t slot, uint64_t epoch,
                    int32_t pid) {
    const Actions actions =
        Say(core, agent, StartWorkerRequest{.slot = slot, .epoch = epoch, .argv = {"x"}});
    ASSERT_EQ(actions.size(), 1u);
    ASSERT_TRUE(std::holds_alternative<Spawn>(actions[0]));
    (void)core->OnSpawned(slot, pid);
  }
};

// The message of the n-th action, which is a Send.
template <typename T>
T Sent(const Actions& actions, size_t n) {
  EXPECT_LT(n, actions.size());
  if (n >= actions.size()) return T();
  const auto* const send = std::get_if<Send>(&actions[n]);
  EXPECT_NE(send, nullptr);
  if (send == nullptr || !std::holds_alternative<T>(send->message)) {
    ADD_FAILURE() << "another kind of action or message";
    return T();
  }
  return std::get<T>(send->message);
}

TEST_F(KeeperCoreTest, EndsWithoutAnAgentAfterTheFirstWindow) {
  KeeperCore core = Make();
  EXPECT_EQ(core.deadline(), kStart + kFirst);
  EXPECT_TRUE(core.OnTick(kStart + kFirst - Duration(1)).empty());
  const Actions actions = core.OnTick(kStart + kFirst);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Exit>(actions[0]));
}

TEST_F(KeeperCoreTest, AnAgentIsAnsweredWhenItAsksForASignOfLife) {
  KeeperCore core = Make();
  (void)Say(&core, 1, AttachRequest{});
  EXPECT_EQ(Sent<PongReply>(Say(&core, 1, PingRequest{.number = 7}), 0).number, 7u);
  // Nobody else is.
  EXPECT_NE(Sent<ErrorReply>(Say(&core, 2, PingRequest{}), 0).code, 0);
}

TEST_F(KeeperCoreTest, IsAbandonedUnlessAnAgentEndsIt) {
  KeeperCore told = Make();
  (void)Say(&told, 1, AttachRequest{});
  (void)Say(&told, 1, ShutdownRequest{});
  EXPECT_FALSE(told.abandoned());
  KeeperCore alone = Make();
  EXPECT_FALSE(alone.abandoned());
  (void)alone.OnTick(kStart + kFirst);
  EXPECT_TRUE(alone.abandoned());
}

TEST_F(KeeperCoreTest, AnAgentThatComesBackInTimeKeepsItsWorkers) {
  KeeperCore core = Make();
  (void)Say(&core, 1, AttachRequest{});
  EXPECT_EQ(core.deadline(), std::nullopt);
  Start(&core, 1, 0, 3, 77);
  EXPECT_TRUE(core.OnClosed(1, kStart).empty());
  EXPECT_EQ(core.deadline(), kStart + kWindow);
  const Actions actions = Say(&core, 2, AttachRequest{});
  EXPECT_EQ(Sent<AttachReply>(actions, 0).keeper_pid, 42);
  EXPECT_EQ(Sent<SlotState>(actions, 1).pid, 77);
  EXPECT_EQ(Sent<SlotState>(actions, 1).epoch, 3u);
  EXPECT_EQ(core.deadline(), std::nullopt);
}

TEST_F(KeeperCoreTest, AnAgentThatStaysAwayLosesItsWorkers) {
  KeeperCore core = Make();
  (void)Say(&core, 1, AttachRequest{});
  Start(&core, 1, 0, 3, 77);
  (void)core.OnClosed(1, kStart);
  Actions actions = core.OnTick(kStart + kWindow);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<SignalWorker>(actions[0]).signal, SIGKILL);
  actions = core.OnWorkerExited(0, 0, SIGKILL);
  EXPECT_TRUE(std::holds_alternative<Sweep>(actions[0]));
  actions = core.OnSlotQuiet(0);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Exit>(actions[0]));
}

TEST_F(KeeperCoreTest, EndsInABoundedTimeThoughAProcessDoesNot) {
  KeeperCore core = Make();
  (void)Say(&core, 1, AttachRequest{});
  Start(&core, 1, 0, 3, 77);
  (void)Say(&core, 1, ShutdownRequest{});
  EXPECT_EQ(core.deadline(), kStart + KeeperCore::kEndLimit);
  const Actions actions = core.OnTick(kStart + KeeperCore::kEndLimit);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_THAT(std::get<Exit>(actions[0]).why, HasSubstr("have not ended"));
}

TEST_F(KeeperCoreTest, WithoutAnAdoptWindowEndsWithItsAgent) {
  KeeperCore core = Make(1, Duration(0));
  (void)Say(&core, 1, AttachRequest{});
  Start(&core, 1, 0, 3, 77);
  const Actions actions = core.OnClosed(1, kStart);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<SignalWorker>(actions[0]).signal, SIGKILL);
  EXPECT_TRUE(core.stopping());
}

TEST_F(KeeperCoreTest, ASecondAgentReplacesTheFirst) {
  KeeperCore core = Make();
  (void)Say(&core, 1, AttachRequest{});
  const Actions actions = Say(&core, 2, AttachRequest{});
  EXPECT_EQ(std::get<Close>(actions[0]).connection, 1u);
  // What is left of the first is a stranger's.
  EXPECT_TRUE(core.OnClosed(1, kStart).empty());
  EXPECT_EQ(core.deadline(), std::nullopt);
  const Actions refused = Say(&core, 1, ShutdownRequest{});
  EXPECT_EQ(Sent<ErrorReply>(refused, 0).code, static_cast<int>(StatusCode::kInvalidArgument));
  EXPECT_FALSE(core.stopping());
}

TEST_F(KeeperCoreTest, ASlotIsClaimedOncePerEpoch) {
  KeeperCore core = Make(2);
  (void)Say(&core, 1, AttachRequest{});
  const auto claim = [&](ConnectionId from, uint32_t slot, uint64_t epoch) {
    return Say(&core, from, ClaimRequest{.slot = slot, .epoch = epoch, .pid = 77});
  };
  EXPECT_THAT(Sent<ErrorReply>(claim(5, 0, 3), 0).message, HasSubstr("no worker runs"));
  Start(&core, 1, 0, 3, 77);
  EXPECT_THAT(Sent<ErrorReply>(claim(5, 2, 3), 0).message, HasSubstr("allowed: 0 to 1"));
  EXPECT_THAT(Sent<ErrorReply>(claim(6, 0, 2), 0).message, HasSubstr("epoch 2"));
  const Actions taken = claim(7, 0, 3);
  EXPECT_EQ(Sent<ClaimReply>(taken, 0).snapshot_bytes, 0u);
  EXPECT_EQ(std::get<Send>(taken[0]).passed, Passed::kSlot);
  EXPECT_EQ(Sent<ClaimedEvent>(taken, 1).claim.epoch, 3u);
  const Actions again = claim(8, 0, 3);
  EXPECT_EQ(Sent<ErrorReply>(again, 0).code, static_cast<int>(StatusCode::kAlreadyExists));
  EXPECT_EQ(std::get<Close>(again[1]).connection, 8u);
  // Still so when the claimant has closed its connection.
  (void)core.OnClosed(7, kStart);
  EXPECT_EQ(Sent<ErrorReply>(claim(9, 0, 3), 0).code, static_cast<int>(StatusCode::kAlreadyExists));
  // The next epoch's worker may.
  (void)core.OnWorkerExited(0, 1, 0);
  (void)core.OnSlotQuiet(0);
  Start(&core, 1, 0, 4, 78);
  EXPECT_EQ(Sent<ClaimReply>(claim(10, 0, 4), 0).snapshot_bytes, 0u);
}

TEST_F(KeeperCoreTest, AnotherUserIsRefused) {
  KeeperCore core = Make();
  const Actions actions = core.OnMessage(1, kUid + 1, AttachRequest{}, kStart);
  EXPECT_EQ(Sent<ErrorReply>(actions, 0).code, static_cast<int>(StatusCode::kPermissionDenied));
  EXPECT_EQ(std::get<Close>(actions[1]).connection, 1u);
  EXPECT_FALSE(core.identified(1));
}

TEST_F(KeeperCoreTest, AnotherProtocolVersionIsRefusedByNumber) {
  KeeperCore core = Make();
  EXPECT_THAT(Sent<ErrorReply>(Say(&core, 1, AttachRequest{.version = 9}), 0).message,
              HasSubstr("version 9, this keeper has 2"));
}

TEST_F(KeeperCoreTest, SnapshotMemoryOutlivesItsWorker) {
  KeeperCore core = Make();
  (void)Say(&core, 1, AttachRequest{});
  Start(&core, 1, 0, 1, 77);
  (void)Say(&core, 5, ClaimRequest{.slot = 0, .epoch = 1});
  Actions actions = Say(&core, 5, ReserveRequest{.bytes = 4096});
  EXPECT_EQ(std::get<Reserve>(actions[0]).bytes, 4096u);
  actions = core.OnReserved(0, uint64_t{4096});
  EXPECT_EQ(Sent<SnapshotReply>(actions, 0).bytes, 4096u);
  EXPECT_EQ(Sent<SlotState>(actions, 1).snapshot_bytes, 4096u);
  // The same size again is the same memory.
  actions = Say(&core, 5, ReserveRequest{.bytes = 4096});
  EXPECT_EQ(Sent<SnapshotReply>(actions, 0).bytes, 4096u);
  (void)core.OnWorkerExited(0, 0, SIGKILL);
  (void)core.OnSlotQuiet(0);
  Start(&core, 1, 0, 2, 78);
  EXPECT_EQ(Sent<ClaimReply>(Say(&core, 6, ClaimRequest{.slot = 0, .epoch = 2}), 0).snapshot_bytes,
            4096u);
}

TEST_F(KeeperCoreTest, AnEndThatNoAgentSawIsToldToTheNext) {
  KeeperCore core = Make();
  (void)Say(&core, 1, AttachRequest{});
  Start(&core, 1, 0, 1, 77);
  (void)core.OnClosed(1, kStart);
  (void)core.OnWorkerExited(0, 3, 0);
  (void)core.OnSlotQuiet(0);
  const Actions actions = Say(&core, 2, AttachRequest{});
  EXPECT_EQ(Sent<SlotState>(actions, 1).pid, 77);  // until its end is told, it is there
  EXPECT_EQ(Sent<ExitedEvent>(actions, 2).exit_code, 3);
  EXPECT_EQ(Sent<SlotState>(actions, 3).pid, 0);
}

TEST_F(KeeperCoreTest, NothingStartsInASlotThatIsNotQuiet) {
  KeeperCore core = Make();
  (void)Say(&core, 1, AttachRequest{});
  Start(&core, 1, 0, 1, 77);
  const StartWorkerRequest next{.slot = 0, .epoch = 2, .argv = {"x"}};
  EXPECT_THAT(Sent<ErrorReply>(Say(&core, 1, next), 0).message, HasSubstr("still runs"));
  (void)core.OnWorkerExited(0, 1, 0);
  EXPECT_THAT(Sent<ErrorReply>(Say(&core, 1, next), 0).message, HasSubstr("have not all ended"));
  (void)core.OnSlotQuiet(0);
  EXPECT_TRUE(std::holds_alternative<Spawn>(Say(&core, 1, next)[0]));
}

}  // namespace
}  // namespace godwit::keeper
