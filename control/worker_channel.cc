#include "control/worker_channel.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/futex.h"
#include "base/unix_socket.h"
#include "control/shared_bytes.h"

namespace godwit {
namespace {

// How long a futex is slept on before the keeper's socket is looked at.
constexpr Duration kKeeperCheck = std::chrono::milliseconds(250);
// An agent answers a get by its timeout; this much more is for being scheduled late.
constexpr Duration kKvSlack = std::chrono::seconds(5);

Status AsStatus(const ErrorReply& error) {
  // The code comes from another process: an OK or unknown one is still an error.
  const bool known = error.code >= 1 && error.code <= 16;
  return Status(known ? static_cast<StatusCode>(error.code) : StatusCode::kUnknown, error.message);
}

// Sends `request` and receives its reply of type Reply, with `fds`.
template <typename Reply>
Result<Reply> Call(int socket, const KeeperMessage& request, std::vector<UniqueFd>* fds,
                   MonotonicTime deadline) {
  GODWIT_RETURN_IF_ERROR(
      SendMessage(socket, AsBytes(EncodeKeeperMessage(request)), {}, deadline).Annotate("keeper"));
  auto received = RecvMessage(socket, kMaxKeeperMessageBytes, 3, deadline);
  if (!received.ok()) return received.status().Annotate("keeper");
  GODWIT_ASSIGN_OR_RETURN(KeeperMessage message, DecodeKeeperMessage(AsBytes(received->bytes)));
  if (const auto* error = std::get_if<ErrorReply>(&message)) {
    return AsStatus(*error).Annotate("keeper");
  }
  auto* reply = std::get_if<Reply>(&message);
  if (reply == nullptr) {
    return InternalError("keeper: unexpected reply of type " + std::to_string(message.index()));
  }
  *fds = std::move(received->fds);
  return std::move(*reply);
}

}  // namespace

WorkerChannel::WorkerChannel(ControlPage* page, UniqueFd doorbell)
    : page_(page), doorbell_(std::move(doorbell)) {
  slot_ = LoadShared(page_->slot);
  membership_.epoch = LoadShared(page_->epoch);
  membership_.rank = LoadShared(page_->rank);
  membership_.world_size = LoadShared(page_->world_size);
  membership_.local_rank = LoadShared(page_->local_rank);
  membership_.local_world_size = LoadShared(page_->local_world_size);
  membership_.restart_count = LoadShared(page_->restart_count);
  page_->worker_pid.store(static_cast<uint32_t>(getpid()), std::memory_order_relaxed);
}

WorkerChannel::~WorkerChannel() = default;

std::unique_ptr<WorkerChannel> WorkerChannel::Over(ControlPage* page, UniqueFd doorbell) {
  return std::unique_ptr<WorkerChannel>(new WorkerChannel(page, std::move(doorbell)));
}

Result<std::unique_ptr<WorkerChannel>> WorkerChannel::Claim(const std::string& socket_path,
                                                            const ClaimRequest& claim,
                                                            MonotonicTime deadline) {
  auto socket = ConnectUnix(socket_path, deadline);
  if (!socket.ok()) return socket.status().Annotate("keeper's socket " + socket_path);
  std::vector<UniqueFd> fds;
  GODWIT_ASSIGN_OR_RETURN(const ClaimReply reply,
                          Call<ClaimReply>(socket->get(), claim, &fds, deadline));
  const size_t expected = reply.snapshot_bytes > 0 ? 3 : 2;
  if (fds.size() != expected) {
    return InternalError("keeper: claim's reply came with " + std::to_string(fds.size()) +
                         " descriptors, expected " + std::to_string(expected));
  }
  GODWIT_ASSIGN_OR_RETURN(SharedMapping mapping,
                          SharedMapping::Map(fds[0].get(), sizeof(ControlPage)));
  auto* page = reinterpret_cast<ControlPage*>(mapping.data());
  if (LoadShared(page->magic) != kControlMagic ||
      LoadShared(page->layout_version) != kControlLayoutVersion) {
    return FailedPreconditionError(
        "control page: its layout is not the one that this program was built with (version " +
        std::to_string(kControlLayoutVersion) + "); launcher and program must be of one version");
  }
  std::unique_ptr<WorkerChannel> channel(new WorkerChannel(page, std::move(fds[1])));
  channel->mapping_ = std::move(mapping);
  channel->socket_ = std::move(*socket);
  channel->snapshot_bytes_ = reply.snapshot_bytes;
  if (reply.snapshot_bytes > 0) channel->snapshot_fd_ = std::move(fds[2]);
  const Membership& m = channel->membership_;
  if (m.epoch != claim.epoch || m.world_size == 0 || m.rank >= m.world_size) {
    return FailedPreconditionError("control page: epoch " + std::to_string(m.epoch) + ", rank " +
                                   std::to_string(m.rank) + " of " + std::to_string(m.world_size) +
                                   "; the slot was claimed for epoch " +
                                   std::to_string(claim.epoch));
  }
  return channel;
}

Result<SharedMapping> WorkerChannel::ReserveSnapshotMemory(uint64_t bytes, MonotonicTime deadline) {
  if (!snapshot_fd_.valid() || snapshot_bytes_ != bytes) {
    std::vector<UniqueFd> fds;
    GODWIT_ASSIGN_OR_RETURN(
        const SnapshotReply reply,
        Call<SnapshotReply>(socket_.get(), ReserveRequest{.bytes = bytes}, &fds, deadline));
    if (fds.size() != 1 || reply.bytes != bytes) {
      return InternalError("keeper: asked for " + std::to_string(bytes) +
                           " bytes of snapshot memory, got " + std::to_string(reply.bytes) +
                           " and " + std::to_string(fds.size()) + " descriptors");
    }
    snapshot_fd_ = std::move(fds[0]);
    snapshot_bytes_ = bytes;
  }
  return SharedMapping::Map(snapshot_fd_.get(), snapshot_bytes_);
}

bool WorkerChannel::KeeperAlive() const {
  if (!socket_.valid()) return true;
  pollfd fd{socket_.get(), POLLRDHUP, 0};
  return poll(&fd, 1, 0) <= 0 || (fd.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) == 0;
}

Result<Orders> WorkerChannel::ReadOrders() const {
  constexpr auto kAcquire = std::memory_order_acquire;
  Orders orders;
  uint32_t bits = 0;
  uint32_t kind = 0;
  const bool whole = ReadShared(page_->orders_seq, &orders.seq, [&] {
    bits = page_->orders.load(kAcquire);
    kind = page_->resume_kind.load(kAcquire);
    orders.stage_step = page_->stage_step.load(kAcquire);
    orders.resume.term = page_->resume_term.load(kAcquire);
    orders.resume.step = page_->resume_step.load(kAcquire);
    orders.resume.attempt = page_->resume_attempt.load(kAcquire);
    orders.resume.writer_term = page_->term.load(kAcquire);
    orders.resume.message = LoadSharedText(page_->orders_message, kMessageBytes);
  });
  if (!whole) return UnavailableError("orders: the agent is writing them");
  if (kind > static_cast<uint32_t>(ResumeKind::kRefused)) {
    return DataLossError("orders: resume_kind " + std::to_string(kind) + ", allowed: 0 to 4");
  }
  orders.stage = (bits & kOrderStage) != 0;
  orders.park = (bits & kOrderPark) != 0;
  orders.resume.kind = static_cast<ResumeKind>(kind);
  return orders;
}

Result<Orders> WorkerChannel::WaitOrders(uint32_t seen_seq, MonotonicTime deadline) const {
  for (;;) {
    const uint32_t seq = page_->orders_seq.load(std::memory_order_acquire);
    if (seq != seen_seq && (seq & 1) == 0) {
      auto orders = ReadOrders();
      if (orders.ok() || orders.status().code() != StatusCode::kUnavailable) return orders;
    }
    if (!KeeperAlive()) return UnavailableError("the keeper of this worker's slot is gone");
    const MonotonicTime now = MonotonicClock::now();
    if (now >= deadline) return DeadlineExceededError("no orders came");
    FutexWait(page_->orders_seq, seq, std::min<Duration>(deadline - now, kKeeperCheck),
              FutexScope::kShared);
  }
}

void WorkerChannel::Ring() {
  const uint64_t one = 1;
  // EAGAIN means that the counter is full: then it rings already.
  (void)!write(doorbell_.get(), &one, sizeof(one));
}

void WorkerChannel::Report(WorkerState state, uint64_t at_step, std::string_view message) {
  {
    MutexLock lock(report_mutex_);
    BeginSharedWrite(page_->state_seq);
    page_->at_step.store(at_step, std::memory_order_relaxed);
    page_->state.store(static_cast<uint32_t>(state), std::memory_order_relaxed);
    page_->worker_pid.store(static_cast<uint32_t>(getpid()), std::memory_order_relaxed);
    StoreSharedText(page_->worker_message, kMessageBytes, message);
    EndSharedWrite(page_->state_seq);
  }
  Ring();
}

void WorkerChannel::SetTotals(uint64_t total_steps, uint64_t persist_every) {
  MutexLock lock(report_mutex_);
  BeginSharedWrite(page_->state_seq);
  page_->total_steps.store(total_steps, std::memory_order_relaxed);
  page_->persist_every.store(persist_every, std::memory_order_relaxed);
  EndSharedWrite(page_->state_seq);
}

void WorkerChannel::ReportStaged(uint64_t step) {
  {
    MutexLock lock(report_mutex_);
    BeginSharedWrite(page_->state_seq);
    page_->staged_step.store(step + 1, std::memory_order_relaxed);
    EndSharedWrite(page_->state_seq);
  }
  Ring();
}

void WorkerChannel::SetFenceWait(Duration total) {
  page_->fence_wait_ns.store(static_cast<uint64_t>(total.count()), std::memory_order_relaxed);
}

Status WorkerChannel::KvSet(std::string_view key, std::string_view value, Duration timeout) {
  return Kv(kKvSet, key, value, timeout).status();
}

Result<std::string> WorkerChannel::KvGet(std::string_view key, Duration timeout) {
  return Kv(kKvGet, key, {}, timeout);
}

Status WorkerChannel::AwaitKvResponse(uint32_t seq, MonotonicTime deadline) const {
  for (;;) {
    const uint32_t got = page_->kv_response_seq.load(std::memory_order_acquire);
    if (got == seq) return OkStatus();
    if (!KeeperAlive()) return UnavailableError("the keeper of this worker's slot is gone");
    const MonotonicTime now = MonotonicClock::now();
    if (now >= deadline) return UnavailableError("no agent answers");
    FutexWait(page_->kv_response_seq, got, std::min<Duration>(deadline - now, kKeeperCheck),
              FutexScope::kShared);
  }
}

Result<std::string> WorkerChannel::Kv(KvOp op, std::string_view key, std::string_view value,
                                      Duration timeout) {
  const std::string name = "key '" + std::string(key) + "'";
  if (key.empty() || key.size() > kKvMaxKeyBytes) {
    return InvalidArgumentError(name + ": " + std::to_string(key.size()) +
                                " bytes, allowed: 1 to " + std::to_string(kKvMaxKeyBytes));
  }
  if (value.size() > kKvMaxValueBytes) {
    return InvalidArgumentError(name + ": value of " + std::to_string(value.size()) +
                                " bytes, allowed: at most " + std::to_string(kKvMaxValueBytes));
  }
  const auto timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  const MonotonicTime deadline = SaturatingAdd(MonotonicClock::now(), timeout + kKvSlack);
  MutexLock lock(kv_mutex_);
  // A request that was given up here may still be answered: the fields are not ours before that.
  const uint32_t last = page_->kv_request_seq.load(std::memory_order_relaxed);
  GODWIT_RETURN_IF_ERROR(AwaitKvResponse(last, deadline).Annotate(name));
  StoreShared(page_->kv_op, static_cast<uint32_t>(op));
  StoreShared(page_->kv_key_bytes, static_cast<uint32_t>(key.size()));
  StoreShared(page_->kv_value_bytes, static_cast<uint32_t>(value.size()));
  StoreShared(page_->kv_timeout_ms,
              static_cast<uint32_t>(std::clamp<int64_t>(timeout_ms, 0, UINT32_MAX)));
  StoreSharedBytes(page_->kv_key, key);
  StoreSharedBytes(page_->kv_value, value);
  page_->kv_request_seq.store(last + 1, std::memory_order_release);
  Ring();
  GODWIT_RETURN_IF_ERROR(AwaitKvResponse(last + 1, deadline).Annotate(name));
  const int32_t code = LoadShared(page_->kv_status);
  if (code != 0) {
    const bool known = code >= 1 && code <= 16;
    return Status(
        known ? static_cast<StatusCode>(code) : StatusCode::kUnknown,
        name + (op == kKvSet ? ": not set"
                             : ": not set by anyone within " + std::to_string(timeout_ms) + " ms"));
  }
  if (op == kKvSet) return std::string();
  const uint32_t bytes = LoadShared(page_->kv_value_bytes);
  if (bytes > kKvMaxValueBytes) {
    return DataLossError(name + ": answer of " + std::to_string(bytes) +
                         " bytes, allowed: at most " + std::to_string(kKvMaxValueBytes));
  }
  return LoadSharedBytes(page_->kv_value, bytes);
}

}  // namespace godwit
