#include "ckpt/engine/snapshotter.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/background_pace.h"
#include "base/check.h"
#include "base/futex.h"
#include "base/mutex.h"
#include "base/strings.h"
#include "base/thread.h"
#include "ckpt/engine/arena_rep.h"

namespace godwit::ckpt {
namespace {

// Copied and digested block by block, so that the digest reads what is still in the L1/L2 cache.
constexpr uint64_t kBlockBytes = 64 * 1024;
// Waits look at the clock and at their condition at least this often.
constexpr Duration kWaitSlice = std::chrono::milliseconds(50);
constexpr Duration kSpin = std::chrono::microseconds(20);

// Of Impl::phase.
constexpr uint32_t kIdle = 0;
constexpr uint32_t kBusy = 1;
constexpr uint32_t kStop = 2;

// Of Impl::pending. Only kCopying holds Fence up; who moves it on decides: the copier to kNothing
// (all is copied), or Fence to kAbandoned (the snapshot is dropped).
constexpr uint32_t kNothing = 0;
constexpr uint32_t kCopying = 1;
constexpr uint32_t kAbandoned = 2;

}  // namespace

struct Snapshotter::Impl {
  Impl(const StateList& s, Arena a, Options o)
      : state(s), arena(std::move(a)), options(std::move(o)), rep(*arena.rep()) {}

  // Copies chunk `index` of tensors into `slot`. False when abandoned on the way.
  bool CopyTensorChunk(uint64_t index, uint32_t slot, DigestBuilder& digest);
  // Takes stable chunks until none is left. With `pace` it rests between them while others want the
  // processor, but not once the training thread waits.
  void CopySome(DigestBuilder& digest, BackgroundPace* pace = nullptr);
  Status CopyVolatile(uint32_t slot);
  Status CheckPlace(const TensorRef& t) const;
  Status CheckAfterCopy(DigestBuilder& digest);
  void StageLoop(StopToken stop);
  void FinishJob();
  // Until the copier is idle; false at the deadline. Helps to copy.
  bool WaitIdle(MonotonicTime deadline);

  void Hurry() {
    hurry.store(1, std::memory_order_relaxed);
    FutexWake(hurry);
  }
  MonotonicTime Now() const { return options.clock->Monotonic(); }

  // Constant after Open.
  const StateList state;
  Arena arena;
  const Options options;
  Arena::Rep& rep;
  std::vector<uint64_t> stable_chunks;
  std::vector<uint64_t> volatile_chunks;                 // of tensors
  std::vector<std::pair<uint64_t, size_t>> blob_chunks;  // chunk, index in state.blobs

  // The job: written by the training thread while idle, then read by the copier.
  uint32_t slot = 0;
  uint64_t step = 0;
  uint64_t blob_bytes = 0;
  std::atomic<bool> job_open{false};  // the slot is ours to publish or give up
  std::vector<uint64_t> versions;     // at the boundary, by tensor

  std::atomic<uint64_t> next{0};            // of stable_chunks
  std::atomic<uint32_t> copied{0};          // chunks; a futex
  std::atomic<uint32_t> pending{kNothing};  // a futex
  std::atomic<uint32_t> phase{kIdle};       // a futex
  std::atomic<uint32_t> hurry{0};           // the training thread waits for the copy; a futex

  std::atomic<uint64_t> last_whole{0};
  std::atomic<bool> any_whole{false};
  std::atomic<int64_t> fence_wait_ns{0};
  Mutex mutex;
  Status last_outcome GUARDED_BY(mutex);  // of the last job

  DigestBuilder trainer_digest;
  DigestBuilder copier_digest;
  Thread thread;
};

bool Snapshotter::Impl::CopyTensorChunk(uint64_t index, uint32_t to, DigestBuilder& digest) {
  const Chunk chunk = arena.plan().chunk(index);
  std::byte* const out = rep.data(to) + chunk.offset;
  digest.Reset();
  for (uint32_t i = 0; i < chunk.segments; ++i) {
    const Segment segment = arena.plan().segment(chunk, i);
    const auto* from =
        static_cast<const std::byte*>(state.tensors[segment.entry].data) + segment.entry_offset;
    std::byte* const dest = out + segment.chunk_offset;
    for (uint64_t done = 0; done < segment.bytes; done += kBlockBytes) {
      if (pending.load(std::memory_order_relaxed) == kAbandoned) return false;
      const uint64_t n = std::min(kBlockBytes, segment.bytes - done);
      std::memcpy(dest + done, from + done, n);
      digest.Update({dest + done, n});
    }
  }
  rep.table(to)[index] = {chunk.bytes, digest.Digest()};
  return true;
}

void Snapshotter::Impl::CopySome(DigestBuilder& digest, BackgroundPace* pace) {
  for (;;) {
    const uint64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= stable_chunks.size()) return;
    CopyTensorChunk(stable_chunks[i], slot, digest);
    if (copied.fetch_add(1, std::memory_order_acq_rel) + 1 == stable_chunks.size()) {
      FutexWake(copied);
    }
    if (!pace) continue;
    if (const Duration rest = pace->EndPiece(); rest > Duration::zero()) {
      FutexWait(hurry, 0, rest);
    }
  }
}

Status Snapshotter::Impl::CopyVolatile(uint32_t to) {
  for (uint64_t index : volatile_chunks) CopyTensorChunk(index, to, trainer_digest);
  blob_bytes = 0;
  for (const auto& [index, i] : blob_chunks) {
    const BlobRef& blob = state.blobs[i];
    const std::string bytes = blob.save();
    if (bytes.size() > blob.max_bytes) {
      return FailedPreconditionError(fmt::format("blob '{}': {} bytes at step {}, allowed are {}",
                                                 blob.name, bytes.size(), step, blob.max_bytes));
    }
    std::byte* const out = rep.data(to) + arena.plan().chunk(index).offset;
    std::memcpy(out, bytes.data(), bytes.size());
    rep.table(to)[index] = {bytes.size(), DigestOf({out, bytes.size()})};
    blob_bytes += bytes.size();
  }
  return OkStatus();
}

Status Snapshotter::Impl::CheckPlace(const TensorRef& t) const {
  if (!t.data_now) return OkStatus();
  const void* now = t.data_now();
  if (now == t.data) return OkStatus();
  return FailedPreconditionError(
      fmt::format("tensor '{}': its storage moved or was resized since it was tracked ({} was {}); "
                  "track it again after such a change",
                  t.name, now, t.data));
}

Status Snapshotter::Impl::CheckAfterCopy(DigestBuilder& digest) {
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const TensorRef& t = state.tensors[i];
    if (t.stability != Stability::kStable) continue;
    GODWIT_RETURN_IF_ERROR(CheckPlace(t));
    if (t.version && t.version() != versions[i]) {
      return FailedPreconditionError(fmt::format(
          "tensor '{}' was written outside Update, while step {} was being staged", t.name, step));
    }
  }
  if (!options.verify_boundary) return OkStatus();
  for (uint64_t index : stable_chunks) {
    const Chunk chunk = arena.plan().chunk(index);
    digest.Reset();
    for (uint32_t i = 0; i < chunk.segments; ++i) {
      const Segment s = arena.plan().segment(chunk, i);
      digest.Update(
          {static_cast<const std::byte*>(state.tensors[s.entry].data) + s.entry_offset, s.bytes});
    }
    if (digest.Digest() != rep.table(slot)[index].digest) {
      return FailedPreconditionError(
          fmt::format("{} was written outside Update, while step {} was being staged",
                      arena.plan().Describe(chunk), step));
    }
  }
  return OkStatus();
}

void Snapshotter::Impl::FinishJob() {
  while (copied.load(std::memory_order_acquire) < stable_chunks.size() &&
         pending.load() == kCopying) {
    // The training thread has the last chunk in hand: microseconds.
    FutexWait(copied, copied.load(), kWaitSlice);
  }
  Status outcome = CheckAfterCopy(copier_digest);
  uint32_t expected = kCopying;
  if (pending.compare_exchange_strong(expected, kNothing, std::memory_order_acq_rel)) {
    FutexWake(pending);
  } else if (outcome.ok()) {
    outcome = DeadlineExceededError(fmt::format(
        "snapshot of step {}: given up, it was not copied within the fence's budget of {}", step,
        HumanDuration(options.fence_budget)));
  }
  const uint64_t bytes = arena.plan().tensor_bytes() + blob_bytes;
  job_open.store(false);
  if (outcome.ok()) {
    SlotInfo info;
    info.index = slot;
    info.step = step;
    info.epoch = options.epoch;
    info.term = options.term;
    info.rank = options.rank;
    info.world_size = options.world_size;
    rep.PublishWhole(info);
    last_whole.store(step, std::memory_order_relaxed);
    any_whole.store(true, std::memory_order_release);
    if (options.on_whole) options.on_whole(step, bytes);
  } else {
    rep.GiveUp(slot);
    if (options.on_dropped) options.on_dropped(step, outcome);
  }
  MutexLock lock(mutex);
  last_outcome = outcome;
}

void Snapshotter::Impl::StageLoop(StopToken) {
  // The training thread's own work comes first; at the fence it copies, too.
  LowerThreadPriority();
  BackgroundPace pace(*options.clock);
  for (;;) {
    uint32_t p = phase.load(std::memory_order_acquire);
    if (p == kStop) return;
    if (p == kIdle) {
      FutexWait(phase, kIdle, std::chrono::seconds(1));
      continue;
    }
    CopySome(copier_digest, &pace);
    FinishJob();
    // Unless the destructor said kStop meanwhile.
    p = kBusy;
    phase.compare_exchange_strong(p, kIdle, std::memory_order_acq_rel);
    FutexWake(phase);
  }
}

bool Snapshotter::Impl::WaitIdle(MonotonicTime deadline) {
  if (phase.load(std::memory_order_acquire) != kIdle) {
    Hurry();
    CopySome(trainer_digest);
  }
  while (phase.load(std::memory_order_acquire) != kIdle) {
    const Duration left = deadline - Now();
    if (left <= Duration::zero()) return false;
    FutexWait(phase, kBusy, std::min(left, kWaitSlice));
  }
  return true;
}

Result<Plan> Snapshotter::MakePlan(const StateList& state, uint32_t rank, uint32_t world_size) {
  if (world_size == 0 || rank >= world_size) {
    return InvalidArgumentError(fmt::format("rank {} of world size {}", rank, world_size));
  }
  return PlanOf(state);
}

Snapshotter::Snapshotter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Snapshotter>> Snapshotter::Open(const StateList& state, Arena arena,
                                                       Options options) {
  GODWIT_CHECK(options.clock != nullptr);
  GODWIT_ASSIGN_OR_RETURN(const Plan plan, MakePlan(state, options.rank, options.world_size));
  if (plan.hash() != arena.plan().hash()) {
    return FailedPreconditionError(
        fmt::format("snapshot memory was opened with plan {}, the tracked state gives {}",
                    arena.plan().hash().ToHex(), plan.hash().ToHex()));
  }
  uint64_t at_gate = plan.volatile_bytes();
  for (const BlobRef& b : state.blobs) at_gate += b.max_bytes;
  if (at_gate > options.volatile_budget_bytes) {
    return FailedPreconditionError(
        fmt::format("volatile state: up to {} are copied at the gate, allowed are {}",
                    HumanBytes(at_gate), HumanBytes(options.volatile_budget_bytes)));
  }
  auto impl = std::make_unique<Impl>(state, std::move(arena), std::move(options));
  impl->versions.resize(state.tensors.size());
  for (uint64_t i = 0; i < plan.chunks(); ++i) {
    const Chunk chunk = plan.chunk(i);
    if (chunk.is_blob) {
      // Blobs follow the tensors in the plan's entries.
      impl->blob_chunks.emplace_back(i, plan.segment(chunk, 0).entry - state.tensors.size());
    } else if (chunk.stability == Stability::kStable) {
      impl->stable_chunks.push_back(i);
    } else {
      impl->volatile_chunks.push_back(i);
    }
  }
  Impl* const raw = impl.get();
  impl->thread = Thread("gw-stage", [raw](StopToken stop) { raw->StageLoop(stop); });
  return std::unique_ptr<Snapshotter>(new Snapshotter(std::move(impl)));
}

Snapshotter::~Snapshotter() {
  uint32_t expected = kCopying;
  impl_->pending.compare_exchange_strong(expected, kAbandoned);
  impl_->phase.store(kStop, std::memory_order_release);
  FutexWake(impl_->phase);
  impl_->thread.Join();
  if (impl_->job_open.load()) impl_->rep.GiveUp(impl_->slot);  // the copier had not seen it yet
}

Status Snapshotter::Begin(uint64_t step) {
  Impl& m = *impl_;
  if (m.phase.load(std::memory_order_acquire) != kIdle) {
    return UnavailableError(fmt::format(
        "snapshot of step {} skipped: the one of step {} is still being copied", step, m.step));
  }
  const std::optional<uint32_t> slot = m.rep.TryTakeFree();
  if (!slot) {
    return UnavailableError(
        fmt::format("snapshot of step {} skipped: all {} slots hold snapshots that are not freed "
                    "yet",
                    step, m.rep.slots));
  }
  m.slot = *slot;
  m.step = step;
  for (size_t i = 0; i < m.state.tensors.size(); ++i) {
    const TensorRef& t = m.state.tensors[i];
    if (Status s = m.CheckPlace(t); !s.ok()) {
      m.rep.GiveUp(*slot);
      return s;
    }
    if (t.version) m.versions[i] = t.version();
  }
  m.pending.store(kNothing, std::memory_order_relaxed);
  if (Status s = m.CopyVolatile(*slot); !s.ok()) {
    m.rep.GiveUp(*slot);
    return s;
  }
  m.hurry.store(0, std::memory_order_relaxed);
  m.next.store(0, std::memory_order_relaxed);
  m.copied.store(0, std::memory_order_relaxed);
  m.pending.store(kCopying, std::memory_order_relaxed);
  m.job_open.store(true, std::memory_order_relaxed);
  m.phase.store(kBusy, std::memory_order_release);
  FutexWake(m.phase);
  return OkStatus();
}

Status Snapshotter::Fence() {
  Impl& m = *impl_;
  if (m.pending.load(std::memory_order_acquire) != kCopying) return OkStatus();
  const MonotonicTime start = m.Now();
  const MonotonicTime deadline = SaturatingAdd(start, m.options.fence_budget);
  m.Hurry();
  // This thread has nothing better to do: with the copier off its core it copies all by itself.
  m.CopySome(m.trainer_digest);
  Status status;
  while (m.pending.load(std::memory_order_acquire) == kCopying) {
    const MonotonicTime now = m.Now();
    if (now - start < kSpin) continue;
    if (now >= deadline) {
      uint32_t expected = kCopying;
      if (!m.pending.compare_exchange_strong(expected, kAbandoned)) break;
      FutexWake(m.copied);
      status =
          DeadlineExceededError(fmt::format("snapshot of step {}: given up, the fence waited {}",
                                            m.step, HumanDuration(m.options.fence_budget)));
      break;
    }
    FutexWait(m.pending, kCopying, std::min(deadline - now, kWaitSlice));
  }
  m.fence_wait_ns.fetch_add((m.Now() - start).count(), std::memory_order_relaxed);
  return status;
}

Status Snapshotter::StageNow(uint64_t step, Duration budget) {
  Impl& m = *impl_;
  const MonotonicTime deadline = SaturatingAdd(m.Now(), budget);
  const auto late = [&](std::string_view what) {
    return DeadlineExceededError(
        fmt::format("snapshot of step {}: {} after {}", step, what, HumanDuration(budget)));
  };
  // A snapshot that was dropped (by a writer outside Update, before the rank was held) is tried
  // once more; a second failure is the program's.
  constexpr int kTries = 2;
  for (int tries = 0;;) {
    if (!m.WaitIdle(deadline)) return late("the copy is not done");
    if (has_whole() && last_whole_step() == step &&
        m.arena.WholeAt(m.options.epoch, step).has_value()) {
      return OkStatus();
    }
    if (tries == kTries) {
      MutexLock lock(m.mutex);
      return m.last_outcome.ok()
                 ? InternalError(fmt::format("snapshot of step {}: freed before it was seen", step))
                 : m.last_outcome;
    }
    const uint32_t freed = m.rep.header().freed.load(std::memory_order_acquire);
    const Status s = Begin(step);
    if (s.ok()) {
      ++tries;
      continue;
    }
    if (s.code() != StatusCode::kUnavailable) return s;
    const Duration left = deadline - m.Now();
    if (left <= Duration::zero()) return late("no slot was freed");
    FutexWait(m.rep.header().freed, freed, std::min(left, kWaitSlice), FutexScope::kShared);
  }
}

bool Snapshotter::busy() const { return impl_->phase.load(std::memory_order_acquire) == kBusy; }
uint64_t Snapshotter::last_whole_step() const {
  return impl_->last_whole.load(std::memory_order_relaxed);
}
bool Snapshotter::has_whole() const { return impl_->any_whole.load(std::memory_order_acquire); }
Duration Snapshotter::fence_wait_total() const {
  return Duration(impl_->fence_wait_ns.load(std::memory_order_relaxed));
}

}  // namespace godwit::ckpt
