// Run: its steps, from the first gate to the exit code, and what a step does.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "runtime/run_impl.h"

namespace godwit {
namespace {

constexpr Duration kStageBudget = std::chrono::seconds(30);
constexpr Duration kDrainBudget = std::chrono::minutes(10);
// After a broken collective: the launcher ends this process as soon as it has found the culprit.
constexpr Duration kCollectiveGrace = std::chrono::seconds(60);
// Waits for orders look at the gate and at the keeper at least this often.
constexpr Duration kGateSlice = std::chrono::seconds(1);

}  // namespace

Step* Run::Next() {
  Step* step = impl_->Next();
  if (step != nullptr) step->run_ = this;
  return step;
}

Step* Run::Impl::Next() {
  if (in_step) {
    if (!updated) {
      Die(kExitFailed, fmt::format("step {} ended without Update", boundary));
    }
    ++boundary;
    in_step = false;
  }
  if (ended) return nullptr;
  if (!tracks_frozen || !collective) {
    Die(kExitBadConfiguration, "the step loop began without a Restore that succeeded");
  }
  const uint64_t k = boundary;
  if (k >= options.steps) {
    FinishSteps(k);
    ended = true;
    return nullptr;
  }
  if (SnapshotDue(k)) BeginSnapshot(k);
  int64_t now = ToNanos(MonotonicClock::now());
  if (entered_ns != 0) {
    const int64_t last = now - entered_ns;
    longest_ns = std::max(longest_ns, last);
    page->step_last_ns.store(static_cast<uint64_t>(last), std::memory_order_relaxed);
    page->step_longest_ns.store(static_cast<uint64_t>(longest_ns), std::memory_order_relaxed);
  }
  if (!gate.TryEnter()) {
    if (!WaitAtGate(k)) {
      ended = leaving = true;
      return nullptr;
    }
    now = ToNanos(MonotonicClock::now());
  }
  entered_ns = now;
  page->step_started_ns.store(static_cast<uint64_t>(now), std::memory_order_relaxed);
  page->phase.store(static_cast<uint32_t>(godwit::Phase::kStep), std::memory_order_relaxed);
  in_step = true;
  updated = false;
  dealt.clear();
  step.index_ = k;
  return &step;
}

bool Run::Impl::SnapshotDue(uint64_t k) const {
  if (k == start || !snapshotter) return false;
  if (options.persist_every > 0 && k % options.persist_every == 0) return true;
  // Alone, nobody would take a snapshot from memory that outlives the process.
  return in_job() && options.snapshot_every > 0 && k % options.snapshot_every == 0;
}

void Run::Impl::BeginSnapshot(uint64_t k) {
  const Status status = snapshotter->Begin(k);
  if (status.ok()) return;
  if (status.code() == StatusCode::kUnavailable) {
    LogDebug("{}", status.message());
    return;
  }
  LogError("{}", status.message());
  NoteSnapshotError(status);
}

bool Run::Impl::WaitAtGate(uint64_t k) {
  std::optional<uint32_t> staged_for;  // the orders that the last staging was for
  channel->Report(WorkerState::kAtGate, k);
  for (;;) {
    const uint32_t seen = page->orders_seq.load(std::memory_order_acquire);
    const Result<Orders> orders = channel->ReadOrders();
    if (orders.ok()) {
      if (orders->park) {
        channel->Report(WorkerState::kParked, k);
        return false;
      }
      if (orders->stage && orders->stage_step == k && staged_for != orders->seq) {
        staged_for = orders->seq;
        channel->Report(WorkerState::kStaging, k);
        const Status status = snapshotter->StageNow(k, kStageBudget);
        if (status.ok()) {
          channel->Report(WorkerState::kStaged, k);
        } else {
          LogError("{}", status.message());
          channel->Report(WorkerState::kAtGate, k, status.ToString());
        }
        continue;
      }
    }
    // The agent opens first and numbers its orders after that: an opening that this look misses has
    // a number that is not `seen`.
    if (gate.TryEnter()) {
      channel->Report(WorkerState::kRunning, k);
      return true;
    }
    const auto next = channel->WaitOrders(seen, MonotonicClock::now() + kGateSlice);
    if (!next.ok() && next.status().code() == StatusCode::kUnavailable) {
      Die(kExitWorkLost, fmt::format("step {}: {}", k, next.status().message()));
    }
  }
}

void Run::Impl::FinishSteps(uint64_t k) {
  done = true;
  page->phase.store(static_cast<uint32_t>(godwit::Phase::kCheckpoint), std::memory_order_relaxed);
  final_step.store(k);
  if (!in_job()) {
    if (!snapshotter || k == start) return;
    // The periodic snapshot of this very boundary may have been whole before it was known to be
    // the last; offering twice does no harm.
    const Status status = snapshotter->StageNow(k, kStageBudget);
    status.ok() ? saver->Offer(k, member().epoch) : NoteSnapshotError(status);
    return;
  }
  const Status status = snapshotter->StageNow(k, kStageBudget);
  gate.Finish();
  if (!status.ok()) {
    NoteSnapshotError(status);
    channel->Report(WorkerState::kFailed, k, status.ToString());
    return;
  }
  channel->Report(WorkerState::kFinished, k);
  for (;;) {
    const uint32_t seen = page->orders_seq.load(std::memory_order_acquire);
    const Result<Orders> orders = channel->ReadOrders();
    if (orders.ok() && orders->park) {
      channel->Report(WorkerState::kParked, k);
      return;
    }
    const auto next = channel->WaitOrders(seen, MonotonicClock::now() + kGateSlice);
    if (!next.ok() && next.status().code() == StatusCode::kUnavailable) {
      Die(kExitWorkLost, fmt::format("after the last step: {}", next.status().message()));
    }
  }
}

void Run::Impl::NoteSnapshotError(const Status& why) {
  MutexLock lock(error_mutex);
  if (!snapshot_error) snapshot_error = why;
}

std::optional<Status> Run::Impl::SnapshotError() {
  MutexLock lock(error_mutex);
  return snapshot_error;
}

void Run::Impl::Die(int code, const std::string& message) {
  LogError("{}", message);
  channel->Report(WorkerState::kFailed, boundary, message);
  fflush(nullptr);
  _exit(code);
}

void Run::Phase(std::string_view name,
                const std::function<void(const std::function<bool()>&)>& body) {
  Impl& m = *impl_;
  const auto go_on = [&m] { return !m.gate.Load().closed; };
  if (!go_on()) {
    LogDebug("phase '{}' left out: the gate is closed", name);
    return;
  }
  m.page->phase.store(static_cast<uint32_t>(godwit::Phase::kEval), std::memory_order_relaxed);
  body(go_on);
  m.page->phase.store(static_cast<uint32_t>(godwit::Phase::kStep), std::memory_order_relaxed);
}

bool Run::done() const { return impl_->done; }
bool Run::leaving() const { return impl_->leaving; }

int Run::ExitCode() {
  Impl& m = *impl_;
  m.page->phase.store(static_cast<uint32_t>(godwit::Phase::kShutdown), std::memory_order_relaxed);
  int code = m.done ? 0 : m.leaving ? kExitParked : kExitFailed;
  if (m.saver) {
    if (const Status status = m.saver->Drain(kDrainBudget); !status.ok()) {
      LogError("the last save failed: {}", status.ToString());
      code = kExitFailed;
    }
  }
  if (const auto error = m.SnapshotError()) {
    LogError("a snapshot failed: {}", error->message());
    code = kExitFailed;
  }
  return code;
}

// ---- A step ----

std::span<const Step::MicroBatch> Step::Micro(Sampler& sampler) {
  Run::Impl& m = *run_->impl_;
  if (!sampler.status().ok()) m.Die(kExitBadConfiguration, sampler.status().message());
  if (std::find(m.dealt.begin(), m.dealt.end(), &sampler) == m.dealt.end()) {
    m.dealt.push_back(&sampler);
  }
  return sampler.Deal(m.member().rank, m.member().world_size);
}

void Step::AllReduceSum(float* values, size_t count) {
  Run::Impl& m = *run_->impl_;
  m.page->collectives.fetch_add(1, std::memory_order_relaxed);
  const Status status = m.collective->AllReduceSum({values, count});
  if (status.ok()) return;
  // A peer has died or hangs, and its own agent knows better why. This process is ended or, when
  // nobody does, ends itself; its snapshots stay in the node's memory.
  LogError("step {}: {}", index_, status.ToString());
  const MonotonicTime deadline = MonotonicClock::now() + kCollectiveGrace;
  uint32_t seen = 1;
  while (m.in_job() && MonotonicClock::now() < deadline) {
    const auto orders = m.channel->WaitOrders(seen, deadline);
    if (!orders.ok()) break;
    seen = orders->seq;
    if (orders->park) break;
  }
  m.Die(kExitFailed, fmt::format("step {}: {}", index_, status.ToString()));
}

void Step::AllReduceSum(std::span<float* const> buffers, std::span<const size_t> counts) {
  Run::Impl& m = *run_->impl_;
  GODWIT_CHECK(buffers.size() == counts.size());
  if (m.member().world_size == 1) return;
  // One operation for all: the time of a small one is its latency.
  size_t total = 0;
  for (const size_t count : counts) total += count;
  if (m.flat.size() < total) m.flat.resize(total);
  float* at = m.flat.data();
  for (size_t i = 0; i < buffers.size(); ++i) at = std::copy_n(buffers[i], counts[i], at);
  AllReduceSum(m.flat.data(), total);
  at = m.flat.data();
  for (size_t i = 0; i < buffers.size(); ++i) {
    std::copy_n(at, counts[i], buffers[i]);
    at += counts[i];
  }
}

void Step::BeginUpdate() {
  Run::Impl& m = *run_->impl_;
  if (m.updated) m.Die(kExitFailed, fmt::format("step {}: Update called twice", index_));
  if (!m.snapshotter) return;
  if (const Status status = m.snapshotter->Fence(); !status.ok()) {
    LogWarning("{}", status.message());
  }
}

void Step::EndUpdate() {
  Run::Impl& m = *run_->impl_;
  m.updated = true;
  for (Sampler* sampler : m.dealt) {
    sampler->Complete(index_, m.term, m.member().epoch, m.member().world_size);
  }
  if (m.snapshotter) m.channel->SetFenceWait(m.snapshotter->fence_wait_total());
}

}  // namespace godwit
