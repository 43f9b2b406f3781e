#include "control/keeper_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/bytes.h"
#include "base/random.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using testing::IsOk;
using testing::StatusIs;

ClaimRequest SomeClaim() {
  return {.slot = 3,
          .epoch = 1ull << 40,
          .pid = 4242,
          .directory = "/data/ckpt",
          .total_steps = 1000,
          .persist_every = 50,
          .legal_world_sizes = {1, 2, 3, 8}};
}

// One of each kind, every field set.
std::vector<KeeperMessage> AllMessages() {
  return {
      SomeClaim(),
      ClaimReply{.snapshot_bytes = 77},
      ReserveRequest{.bytes = 1ull << 35},
      SnapshotReply{.bytes = 5},
      AttachRequest{},
      AttachReply{.slots = 8, .keeper_pid = 11},
      SlotState{.slot = 1,
                .pid = 12,
                .epoch = 13,
                .claimed = 1,
                .snapshot_bytes = 14,
                .claim = SomeClaim()},
      StartWorkerRequest{.slot = 1,
                         .epoch = 2,
                         .argv = {"prog", "", "a b"},
                         .env = {"A=1", std::string("B=\0x", 4)},
                         .cwd = "/",
                         .stdout_path = "/o",
                         .stderr_path = "/e"},
      StartWorkerReply{.slot = 1, .pid = 99},
      SignalRequest{.slot = 1, .signal = 15},
      ShutdownRequest{},
      ClaimedEvent{.claim = SomeClaim()},
      ExitedEvent{.slot = 1, .pid = 5, .epoch = 6, .exit_code = -1, .signal = 9},
      ErrorReply{.slot = 1, .code = 8, .message = "no memory"},
      LargeRequest{.bytes = 1 << 20},
      PingRequest{.number = 17},
      PongReply{.number = 17},
  };
}

TEST(KeeperProtocolTest, EveryMessageComesBackAsItWasSent) {
  const auto messages = AllMessages();
  ASSERT_EQ(messages.size(), std::variant_size_v<KeeperMessage>);
  for (size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].index(), i);
    const std::string bytes = EncodeKeeperMessage(messages[i]);
    auto decoded = DecodeKeeperMessage(AsBytes(bytes));
    ASSERT_THAT(decoded, IsOk()) << i;
    EXPECT_EQ(decoded->index(), i);
    EXPECT_EQ(EncodeKeeperMessage(*decoded), bytes) << i;
  }
  auto decoded = DecodeKeeperMessage(AsBytes(EncodeKeeperMessage(SomeClaim())));
  ASSERT_THAT(decoded, IsOk());
  const auto& claim = std::get<ClaimRequest>(*decoded);
  EXPECT_EQ(claim.directory, "/data/ckpt");
  EXPECT_EQ(claim.epoch, 1ull << 40);
  EXPECT_THAT(claim.legal_world_sizes, ::testing::ElementsAre(1, 2, 3, 8));
}

TEST(KeeperProtocolTest, EveryCutMessageIsRefused) {
  for (const KeeperMessage& message : AllMessages()) {
    const std::string bytes = EncodeKeeperMessage(message);
    for (size_t n = 0; n < bytes.size(); ++n) {
      EXPECT_THAT(DecodeKeeperMessage(AsBytes(bytes.substr(0, n))),
                  StatusIs(StatusCode::kInvalidArgument))
          << "type " << message.index() << " cut to " << n;
    }
  }
}

TEST(KeeperProtocolTest, BytesLeftOverAreRefused) {
  for (const KeeperMessage& message : AllMessages()) {
    EXPECT_THAT(DecodeKeeperMessage(AsBytes(EncodeKeeperMessage(message) + "x")),
                StatusIs(StatusCode::kInvalidArgument));
  }
}

TEST(KeeperProtocolTest, UnknownTypeIsRefusedNamingIt) {
  const auto result = DecodeKeeperMessage(AsBytes("\xee"));
  EXPECT_THAT(result, StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(result.status().message(), ::testing::HasSubstr("238"));
}

TEST(KeeperProtocolTest, HostileCountIsRefusedBeforeAllocating) {
  ByteWriter w;
  w.U8(7);  // StartWorkerRequest
  w.U32(0);
  w.U64(0);
  w.U32(0xffffffff);  // arguments
  EXPECT_THAT(DecodeKeeperMessage(w.bytes()), StatusIs(StatusCode::kInvalidArgument));
}

TEST(KeeperProtocolTest, HostileStringLengthIsRefused) {
  ByteWriter w;
  w.U8(13);  // ErrorReply
  w.U32(0);
  w.U32(0);
  w.U32(0xfffffff0);
  w.Bytes("abc");
  EXPECT_THAT(DecodeKeeperMessage(w.bytes()), StatusIs(StatusCode::kInvalidArgument));
}

TEST(KeeperProtocolTest, PacketAboveTheLimitIsRefused) {
  const std::string bytes(kMaxKeeperMessageBytes + 1, '\0');
  EXPECT_THAT(DecodeKeeperMessage(AsBytes(bytes)), StatusIs(StatusCode::kInvalidArgument));
}

TEST(KeeperProtocolTest, RandomDamageNeverCrashes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const auto messages = AllMessages();
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = EncodeKeeperMessage(messages[random.Below(messages.size())]);
    for (uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Next());
    }
    const auto decoded = DecodeKeeperMessage(AsBytes(bytes));
    if (decoded.ok()) {
      EXPECT_EQ(EncodeKeeperMessage(*decoded), bytes);
    }
  }
}

}  // namespace
}  // namespace godwit
