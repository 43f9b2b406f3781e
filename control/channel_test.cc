#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "base/unix_socket.h"
#include "control/agent_channel.h"
#include "control/shared_bytes.h"
#include "control/worker_channel.h"

namespace godwit {
namespace {

using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

using std::chrono::milliseconds;
using std::chrono::seconds;

MonotonicTime In(Duration d) { return MonotonicClock::now() + d; }

bool Readable(int fd, Duration wait) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, static_cast<int>(wait / milliseconds(1))) == 1;
}

// Both ends over one page in this process.
class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    page_->magic = kControlMagic;
    page_->layout_version = kControlLayoutVersion;
    page_->slot = 5;
    doorbell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    auto agent = AgentChannel::Over(page_.get(), UniqueFd(dup(doorbell_)));
    ASSERT_THAT(agent, IsOk());
    agent_ = std::move(*agent);
    agent_->Prepare({.epoch = 9, .rank = 2, .world_size = 3, .local_world_size = 3});
    worker_ = WorkerChannel::Over(page_.get(), UniqueFd(dup(doorbell_)));
  }
  void TearDown() override { close(doorbell_); }

  // As in the keeper: zeroed memory.
  std::unique_ptr<ControlPage> page_ = std::make_unique<ControlPage>();
  int doorbell_ = -1;
  std::unique_ptr<AgentChannel> agent_;
  std::unique_ptr<WorkerChannel> worker_;
};

TEST_F(ChannelTest, WorkerSeesItsMembership) {
  EXPECT_EQ(worker_->slot(), 5u);
  EXPECT_EQ(worker_->membership().epoch, 9u);
  EXPECT_EQ(worker_->membership().rank, 2u);
  EXPECT_EQ(worker_->membership().world_size, 3u);
}

TEST_F(ChannelTest, APreparedSlotIsClosed) { EXPECT_FALSE(worker_->gate().TryEnter()); }

TEST_F(ChannelTest, PrepareForgetsThePredecessor) {
  worker_->gate().Reset(50);
  worker_->SetTotals(100, 10);
  worker_->ReportStaged(50);
  worker_->Report(WorkerState::kFailed, 50, "out of luck");
  agent_->Decide({.kind = ResumeKind::kMemory, .step = 50});
  agent_->OrderPark();
  agent_->Prepare({.epoch = 10, .rank = 0, .world_size = 1});
  auto report = agent_->Report();
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->state, WorkerState::kNone);
  EXPECT_EQ(report->staged_step, std::nullopt);
  EXPECT_EQ(report->message, "");
  EXPECT_EQ(agent_->gate().entered, 0u);
  EXPECT_TRUE(agent_->gate().closed);
  auto orders = worker_->ReadOrders();
  ASSERT_THAT(orders, IsOk());
  EXPECT_FALSE(orders->park);
  EXPECT_EQ(orders->resume.kind, ResumeKind::kPending);
}

TEST_F(ChannelTest, ReportRingsAndCarriesEverything) {
  EXPECT_FALSE(Readable(agent_->doorbell(), Duration(0)));
  worker_->SetTotals(100, 10);
  worker_->ReportStaged(0);
  worker_->Report(WorkerState::kAtGate, 42, "tensor\n\x01x");
  ASSERT_TRUE(Readable(agent_->doorbell(), seconds(10)));
  agent_->DrainDoorbell();
  EXPECT_FALSE(Readable(agent_->doorbell(), Duration(0)));
  auto report = agent_->Report();
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->state, WorkerState::kAtGate);
  EXPECT_EQ(report->at_step, 42u);
  EXPECT_EQ(report->total_steps, 100u);
  EXPECT_EQ(report->persist_every, 10u);
  EXPECT_EQ(report->staged_step, 0u);
  EXPECT_EQ(report->worker_pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(report->message, "tensor??x");
}

TEST_F(ChannelTest, ALongMessageIsCut) {
  worker_->Report(WorkerState::kFailed, 0, std::string(10'000, 'x'));
  auto report = agent_->Report();
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->message, std::string(kMessageBytes - 1, 'x'));
}

TEST_F(ChannelTest, NonsenseInTheReportIsNamed) {
  worker_->Report(WorkerState::kAtGate, 1);
  page_->state = 4711;
  EXPECT_THAT(agent_->Report(), StatusIs(StatusCode::kDataLoss));
  page_->state = 1;
  page_->at_step = 1ull << 60;
  auto report = agent_->Report();
  EXPECT_THAT(report, StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(report.status().message(), ::testing::HasSubstr("at_step"));
}

TEST_F(ChannelTest, AMessageWithoutAnEndStaysInItsField) {
  memset(page_->worker_message, 'x', kMessageBytes);
  auto report = agent_->Report();
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->message.size(), kMessageBytes);
}

TEST_F(ChannelTest, AReportHalfWrittenIsNotRead) {
  BeginSharedWrite(page_->state_seq);
  EXPECT_THAT(agent_->Report(), StatusIs(StatusCode::kUnavailable));
  // Its writer died there; the next one goes on.
  worker_->Report(WorkerState::kInit, 0);
  EXPECT_THAT(agent_->Report(), IsOk());
}

TEST_F(ChannelTest, ReportsAreNeverTorn) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 0; !stop; i = (i + 1) % 1000) {
      worker_->Report(i % 2 == 0 ? WorkerState::kAtGate : WorkerState::kStaged, i,
                      std::to_string(i));
    }
  });
  int whole = 0;
  while (whole < 2000) {
    auto report = agent_->Report();
    if (!report.ok() || report->state == WorkerState::kNone) {
      std::this_thread::yield();
      continue;
    }
    ++whole;
    EXPECT_EQ(report->message, std::to_string(report->at_step));
    EXPECT_EQ(report->state,
              report->at_step % 2 == 0 ? WorkerState::kAtGate : WorkerState::kStaged);
  }
  stop = true;
  writer.join();
}

TEST_F(ChannelTest, OrdersWakeTheWorker) {
  auto seen = worker_->ReadOrders();
  ASSERT_THAT(seen, IsOk());
  Result<Orders> got = UnknownError("none");
  std::thread waiter([&] { got = worker_->WaitOrders(seen->seq, In(seconds(30))); });
  agent_->OrderStage(7);
  waiter.join();
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(got->stage);
  EXPECT_EQ(got->stage_step, 7u);
  EXPECT_FALSE(got->park);
}

TEST_F(ChannelTest, OpeningTheGateWakesTheWorker) {
  auto seen = worker_->ReadOrders();
  ASSERT_THAT(seen, IsOk());
  Result<Orders> got = UnknownError("none");
  std::thread waiter([&] { got = worker_->WaitOrders(seen->seq, In(seconds(30))); });
  agent_->OpenGate();
  waiter.join();
  EXPECT_THAT(got, IsOk());
  EXPECT_TRUE(worker_->gate().TryEnter());
}

TEST_F(ChannelTest, WaitingForOrdersEnds) {
  auto seen = worker_->ReadOrders();
  ASSERT_THAT(seen, IsOk());
  EXPECT_THAT(worker_->WaitOrders(seen->seq, In(milliseconds(1))),
              StatusIs(StatusCode::kDeadlineExceeded));
}

TEST_F(ChannelTest, ARescindedNoticeTakesItsOrdersBack) {
  agent_->OrderStage(7);
  agent_->OrderPark();
  agent_->ClearOrders();
  auto orders = worker_->ReadOrders();
  ASSERT_THAT(orders, IsOk());
  EXPECT_FALSE(orders->stage);
  EXPECT_FALSE(orders->park);
}

TEST_F(ChannelTest, TheResumeDecisionComesWhole) {
  agent_->Decide({.kind = ResumeKind::kStorage,
                  .term = 3,
                  .step = 120,
                  .attempt = 2,
                  .writer_term = 4,
                  .message = "newest of term 3"});
  auto orders = worker_->ReadOrders();
  ASSERT_THAT(orders, IsOk());
  EXPECT_EQ(orders->resume.kind, ResumeKind::kStorage);
  EXPECT_EQ(orders->resume.term, 3u);
  EXPECT_EQ(orders->resume.step, 120u);
  EXPECT_EQ(orders->resume.attempt, 2u);
  EXPECT_EQ(orders->resume.writer_term, 4u);
  EXPECT_EQ(orders->resume.message, "newest of term 3");
}

TEST_F(ChannelTest, GateCallsReachTheWorker) {
  worker_->gate().Reset(10);
  EXPECT_EQ(agent_->CloseGate().entered, 10u);
  ASSERT_THAT(agent_->LimitGate(11), IsOk());
  EXPECT_TRUE(worker_->gate().TryEnter());
  EXPECT_FALSE(worker_->gate().TryEnter());
  EXPECT_THAT(agent_->LimitGate(10), StatusIs(StatusCode::kOutOfRange));
  EXPECT_THAT(agent_->LimitGate(1ull << 40), StatusIs(StatusCode::kOutOfRange));
  EXPECT_EQ(agent_->Progress().gate.entered, 11u);
}

// Answers requests from a map, as the agent with the master's help does.
class KvServer {
 public:
  explicit KvServer(AgentChannel* agent) : thread_([this, agent] { Serve(agent); }) {}
  ~KvServer() {
    stop_ = true;
    thread_.join();
  }

 private:
  void Serve(AgentChannel* agent) {
    while (!stop_) {
      Readable(agent->doorbell(), milliseconds(20));
      agent->DrainDoorbell();
      auto request = agent->TakeKvRequest();
      if (!request.ok() || !request->has_value()) continue;
      const KvRequest& r = **request;
      if (r.op == kKvSet) {
        const bool added = values_.emplace(r.key, r.value).second;
        agent->AnswerKv(r.seq, added ? OkStatus() : AlreadyExistsError("set"), "");
      } else if (auto it = values_.find(r.key); it != values_.end()) {
        agent->AnswerKv(r.seq, OkStatus(), it->second);
      } else {
        agent->AnswerKv(r.seq, DeadlineExceededError("no"), "");
      }
    }
  }
  std::atomic<bool> stop_{false};
  std::map<std::string, std::string> values_;
  std::thread thread_;
};

TEST_F(ChannelTest, KeysAreSetOnceAndGot) {
  KvServer server(agent_.get());
  const std::string value = std::string("\0\xff", 2) + std::string(kKvMaxValueBytes - 2, 'v');
  EXPECT_THAT(worker_->KvSet("gloo/0", value, seconds(30)), IsOk());
  EXPECT_THAT(worker_->KvSet("gloo/0", "b", seconds(30)), StatusIs(StatusCode::kAlreadyExists));
  EXPECT_THAT(worker_->KvGet("gloo/0", seconds(30)), IsOkAndHolds(value));
  const auto missing = worker_->KvGet("gloo/1", milliseconds(5));
  EXPECT_THAT(missing, StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(missing.status().message(), ::testing::HasSubstr("gloo/1"));
}

TEST_F(ChannelTest, KeysAndValuesOutOfBoundsAreRefused) {
  EXPECT_THAT(worker_->KvSet("", "v", seconds(1)), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(worker_->KvSet(std::string(kKvMaxKeyBytes + 1, 'k'), "v", seconds(1)),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(worker_->KvSet("k", std::string(kKvMaxValueBytes + 1, 'v'), seconds(1)),
              StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(ChannelTest, AMalformedKeyRequestIsAnsweredAndNamed) {
  page_->kv_op = kKvGet;
  page_->kv_key_bytes = 1u << 30;
  page_->kv_request_seq = 1;
  EXPECT_THAT(agent_->TakeKvRequest(), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_EQ(page_->kv_response_seq, 1u);
  EXPECT_EQ(page_->kv_status, static_cast<int32_t>(StatusCode::kInvalidArgument));
}

TEST_F(ChannelTest, ARequestIsHandedOutOnceAndAgainToANewAgent) {
  page_->kv_op = kKvGet;
  page_->kv_key_bytes = 1;
  page_->kv_key[0] = 'k';
  page_->kv_request_seq = 1;
  auto request = agent_->TakeKvRequest();
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->has_value());
  request = agent_->TakeKvRequest();
  ASSERT_THAT(request, IsOk());
  EXPECT_FALSE(request->has_value());
  auto next = AgentChannel::Over(page_.get(), UniqueFd());
  ASSERT_THAT(next, IsOk());
  request = (*next)->TakeKvRequest();
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->has_value());
}

TEST_F(ChannelTest, AnAnswerToAnOldRequestIsIgnored) {
  page_->kv_request_seq = 2;
  agent_->AnswerKv(1, OkStatus(), "late");
  EXPECT_EQ(page_->kv_response_seq, 0u);
  EXPECT_EQ(page_->kv_value[0], '\0');
}

TEST_F(ChannelTest, SomethingElseIsNotTakenForAPage) {
  page_->layout_version = 7;
  const auto other = AgentChannel::Over(page_.get(), UniqueFd());
  EXPECT_THAT(other, StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(other.status().message(), ::testing::HasSubstr("7"));
  page_->magic = 0;
  EXPECT_THAT(AgentChannel::Over(page_.get(), UniqueFd()), StatusIs(StatusCode::kDataLoss));
}

// ---- The claim, against a keeper made of a socket ----

class ClaimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto dir = TempDir::Create("claim");
    ASSERT_THAT(dir, IsOk());
    dir_ = std::make_unique<TempDir>(std::move(*dir));
    auto listener = ListenUnix(dir_->File("keeper"));
    ASSERT_THAT(listener, IsOk());
    listener_ = std::move(*listener);
    auto page = CreateSharedMemory("page", sizeof(ControlPage));
    ASSERT_THAT(page, IsOk());
    page_fd_ = std::move(*page);
    auto mapping = SharedMapping::Map(page_fd_.get(), sizeof(ControlPage));
    ASSERT_THAT(mapping, IsOk());
    mapping_ = std::move(*mapping);
    auto* p = reinterpret_cast<ControlPage*>(mapping_.data());
    p->magic = kControlMagic;
    p->layout_version = kControlLayoutVersion;
    p->slot = 0;
    auto agent = AgentChannel::Over(p, UniqueFd());
    ASSERT_THAT(agent, IsOk());
    (*agent)->Prepare({.epoch = 4, .rank = 1, .world_size = 2});
    doorbell_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }

  // Answers `replies` one by one, each with its descriptors; then hangs up.
  std::thread Keeper(std::vector<std::pair<KeeperMessage, std::vector<int>>> replies) {
    return std::thread([this, replies = std::move(replies)] {
      auto connection = AcceptUnix(listener_.get(), In(seconds(30)));
      ASSERT_THAT(connection, IsOk());
      for (const auto& [reply, fds] : replies) {
        auto request = RecvMessage(connection->get(), kMaxKeeperMessageBytes, 0, In(seconds(30)));
        ASSERT_THAT(request, IsOk());
        auto decoded = DecodeKeeperMessage(AsBytes(request->bytes));
        ASSERT_THAT(decoded, IsOk());
        requests_.push_back(*decoded);
        ASSERT_THAT(SendMessage(connection->get(), AsBytes(EncodeKeeperMessage(reply)), fds),
                    IsOk());
      }
    });
  }

  std::unique_ptr<TempDir> dir_;
  UniqueFd listener_;
  UniqueFd page_fd_;
  SharedMapping mapping_;
  UniqueFd doorbell_;
  std::vector<KeeperMessage> requests_;
};

TEST_F(ClaimTest, GivesThePageAndSnapshotMemory) {
  auto memory = CreateSharedMemory("snapshot", 8192);
  ASSERT_THAT(memory, IsOk());
  std::thread keeper = Keeper({{ClaimReply{}, {page_fd_.get(), doorbell_.get()}},
                               {SnapshotReply{.bytes = 8192}, {memory->get()}}});
  auto channel = WorkerChannel::Claim(dir_->File("keeper"), {.slot = 0, .epoch = 4, .pid = 1},
                                      In(seconds(30)));
  ASSERT_THAT(channel, IsOk());
  EXPECT_EQ((*channel)->membership().rank, 1u);
  auto snapshot = (*channel)->ReserveSnapshotMemory(8192, In(seconds(30)));
  ASSERT_THAT(snapshot, IsOk());
  EXPECT_EQ(snapshot->size(), 8192u);
  keeper.join();
  EXPECT_EQ(std::get<ReserveRequest>(requests_.at(1)).bytes, 8192u);
  EXPECT_FALSE((*channel)->KeeperAlive());
  EXPECT_THAT((*channel)->WaitOrders((*channel)->ReadOrders()->seq, In(seconds(30))),
              StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT((*channel)->KvGet("k", seconds(30)), StatusIs(StatusCode::kUnavailable));
}

TEST_F(ClaimTest, MemoryOfTheRightSizeThatTheSlotHadIsTakenAsItIs) {
  auto memory = CreateSharedMemory("snapshot", 8192);
  ASSERT_THAT(memory, IsOk());
  std::thread keeper = Keeper(
      {{ClaimReply{.snapshot_bytes = 8192}, {page_fd_.get(), doorbell_.get(), memory->get()}}});
  auto channel = WorkerChannel::Claim(dir_->File("keeper"), {.epoch = 4}, In(seconds(30)));
  keeper.join();
  ASSERT_THAT(channel, IsOk());
  EXPECT_THAT((*channel)->ReserveSnapshotMemory(8192, In(seconds(30))), IsOk());
}

TEST_F(ClaimTest, ARefusalComesAsItWasGiven) {
  std::thread keeper = Keeper({{ErrorReply{.code = 6, .message = "slot 0 was claimed"}, {}}});
  auto channel = WorkerChannel::Claim(dir_->File("keeper"), {.epoch = 4}, In(seconds(30)));
  keeper.join();
  EXPECT_THAT(channel, StatusIs(StatusCode::kAlreadyExists));
  EXPECT_THAT(channel.status().message(), ::testing::HasSubstr("slot 0 was claimed"));
}

TEST_F(ClaimTest, AnotherEpochsPageIsRefused) {
  std::thread keeper = Keeper({{ClaimReply{}, {page_fd_.get(), doorbell_.get()}}});
  auto channel = WorkerChannel::Claim(dir_->File("keeper"), {.epoch = 5}, In(seconds(30)));
  keeper.join();
  EXPECT_THAT(channel, StatusIs(StatusCode::kFailedPrecondition));
}

TEST_F(ClaimTest, NoKeeperIsAnErrorNamingTheSocket) {
  auto channel = WorkerChannel::Claim(dir_->File("nobody"), {.epoch = 4}, In(milliseconds(1)));
  EXPECT_THAT(channel, StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(channel.status().message(), ::testing::HasSubstr("nobody"));
}

}  // namespace
}  // namespace godwit
