#include "godwit/runtime/run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/real_file_system.h"
#include "base/strings.h"
#include "ckpt/engine/arena.h"
#include "ckpt/engine/restore.h"
#include "ckpt/engine/snapshotter.h"
#include "ckpt/engine/solo_saver.h"
#include "ckpt/lineage/checkpoint_dir.h"
#include "control/worker_channel.h"
#include "godwit/runtime/collective.h"
#include "godwit/runtime/sampler.h"
#include "runtime/collective/host_address.h"
#include "runtime/environment.h"
#if GODWIT_HAVE_GLOO
#include "runtime/collective/gloo/gloo_collective.h"
#endif

namespace godwit {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitParked = 75;
constexpr int kExitWorkLost = 76;
constexpr int kExitBadConfiguration = 78;

constexpr Duration kClaimTimeout = std::chrono::seconds(10);
constexpr Duration kReserveTimeout = std::chrono::seconds(60);
// Until the master has decided from where the run goes on: it may first wait for packs that are
// being written.
constexpr Duration kDecisionTimeout = std::chrono::minutes(10);
constexpr Duration kStageBudget = std::chrono::seconds(30);
constexpr Duration kDrainBudget = std::chrono::minutes(10);
// After a broken collective: the launcher ends this process as soon as it has found the culprit.
constexpr Duration kCollectiveGrace = std::chrono::seconds(60);
constexpr Duration kKeyTimeout = std::chrono::seconds(30);
constexpr Duration kResolveTimeout = std::chrono::seconds(10);
// Waits for orders look at the gate and at the keeper at least this often.
constexpr Duration kGateSlice = std::chrono::seconds(1);

std::string AbsolutePath(const std::string& path) {
  if (path.empty()) return path;
  std::string absolute = (std::filesystem::current_path() / path).lexically_normal().string();
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return absolute;
}

Status CheckOptions(const RunOptions& options) {
  if (options.steps == 0 || options.steps > kMaxGateStep) {
    return InvalidArgumentError(
        fmt::format("steps: got {}, allowed: 1 to {}", options.steps, kMaxGateStep));
  }
  if (!(options.fence_budget_s >= 0 && options.fence_budget_s <= 86400)) {
    return InvalidArgumentError(
        fmt::format("fence_budget_s: got {}, allowed: 0 to 86400", options.fence_budget_s));
  }
  return OkStatus();
}

}  // namespace

struct Run::Impl {
  explicit Impl(RunOptions o) : options(std::move(o)) {}
  ~Impl();

  Result<Restored> Restore();
  Result<Restored> RestoreSolo();
  Result<Restored> RestoreInJob();
  Result<Orders> AwaitDecision();
  Status ConnectCollective();
  Status OpenSnapshotter();

  Step* Next();
  bool SnapshotDue(uint64_t k) const;
  void BeginSnapshot(uint64_t k);
  // False: told to leave.
  bool WaitAtGate(uint64_t k);
  void FinishSteps(uint64_t k);
  void NoteSnapshotError(const Status& why);
  std::optional<Status> SnapshotError();
  // Says why, to the agent too, and ends the process without unwinding: other threads still run.
  [[noreturn]] void Die(int code, const std::string& message);

  bool in_job() const { return !solo_page; }
  const Membership& member() const { return channel->membership(); }

  // Constant after Open.
  const RunOptions options;
  LaunchEnvironment environment;
  std::string dir;
  // Alone, the control page is the process's own and its gate stays open, so that the step path is
  // the same.
  std::unique_ptr<ControlPage> solo_page;
  std::unique_ptr<WorkerChannel> channel;

  ckpt::StateList state;
  std::unique_ptr<Collective> collective;
  bool tracks_frozen = false;

  // Since Restore. Destroyed from the last to the first: the snapshot thread, which calls the
  // saver, then the saver, then the memory.
  SharedMapping snapshot_memory;
  std::optional<ckpt::Arena> arena;
  std::unique_ptr<ckpt::SoloSaver> saver;
  std::unique_ptr<ckpt::Snapshotter> snapshotter;
  uint64_t term = 0;
  uint64_t start = 0;

  // The loop.
  StepGate gate{nullptr};
  ControlPage* page = nullptr;
  Step step;
  uint64_t boundary = 0;  // updates done
  bool in_step = false;
  bool updated = false;
  bool ended = false;
  bool leaving = false;
  bool done = false;
  int64_t entered_ns = 0;
  int64_t longest_ns = 0;
  std::vector<Sampler*> dealt;  // samplers used in this step
  std::vector<float> flat;      // for all-reducing many buffers as one

  std::atomic<uint64_t> final_step{UINT64_MAX};  // the boundary whose snapshot must be saved
  Mutex error_mutex;
  std::optional<Status> snapshot_error GUARDED_BY(error_mutex);
};

Run::Impl::~Impl() = default;

// ---- Joining ----

Run::Run(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Run::Run(Run&&) noexcept = default;
Run& Run::operator=(Run&&) noexcept = default;
Run::~Run() = default;

Result<Run> Run::Open(int*, char**, RunOptions options) {
  GODWIT_RETURN_IF_ERROR(CheckOptions(options).Annotate("run options"));
  auto impl = std::make_unique<Impl>(std::move(options));
  GODWIT_ASSIGN_OR_RETURN(impl->environment,
                          ReadLaunchEnvironment([](const char* name) { return getenv(name); }));
  const LaunchEnvironment& env = impl->environment;
  impl->dir = AbsolutePath(env.dir.empty() ? impl->options.dir : env.dir);
  if (env.launched) {
    if (!IsUtf8(impl->dir)) {
      return InvalidArgumentError("directory of checkpoints: got '" + ValidUtf8(impl->dir) +
                                  "', allowed in a job: a path in UTF-8");
    }
    ClaimRequest claim;
    claim.slot = env.slot;
    claim.epoch = env.epoch;
    claim.pid = getpid();
    claim.directory = impl->dir;
    claim.total_steps = impl->options.steps;
    claim.persist_every = impl->options.persist_every;
    claim.legal_world_sizes = impl->options.world_sizes;
    GODWIT_ASSIGN_OR_RETURN(
        impl->channel,
        WorkerChannel::Claim(env.keeper_socket, claim, MonotonicClock::now() + kClaimTimeout));
  } else {
    impl->solo_page = std::make_unique<ControlPage>();
    impl->solo_page->world_size = 1;
    impl->solo_page->local_world_size = 1;
    impl->channel = WorkerChannel::Over(impl->solo_page.get(), UniqueFd());
  }
  impl->page = impl->channel->page();
  impl->gate = impl->channel->gate();
  const uint32_t world_size = impl->member().world_size;
  SetLogComponent(fmt::format("rank {}", impl->member().rank));
  impl->channel->SetTotals(impl->options.steps, impl->options.persist_every);
  const auto& legal = impl->options.world_sizes;
  if (!legal.empty() && std::find(legal.begin(), legal.end(), world_size) == legal.end()) {
    std::string allowed;
    for (const uint32_t n : legal) allowed += (allowed.empty() ? "" : ", ") + std::to_string(n);
    const Status status = FailedPreconditionError(
        fmt::format("world size {}, allowed by the program: {}", world_size, allowed));
    impl->channel->Report(WorkerState::kFailed, 0, status.message());
    return status;
  }
  impl->channel->Report(WorkerState::kInit, 0);
  impl->dealt.reserve(4);
  return Run(std::move(impl));
}

Run Run::OpenOrExit(int* argc, char** argv, RunOptions options) {
  auto run = Open(argc, argv, std::move(options));
  if (!run.ok()) {
    LogError("cannot join the run: {}", run.status().ToString());
    exit(kExitBadConfiguration);
  }
  return std::move(*run);
}

uint32_t Run::rank() const { return impl_->member().rank; }
uint32_t Run::world_size() const { return impl_->member().world_size; }
uint32_t Run::local_rank() const { return impl_->member().local_rank; }
uint64_t Run::epoch() const { return impl_->member().epoch; }
uint64_t Run::term() const { return impl_->term; }
const std::string& Run::dir() const { return impl_->dir; }
ckpt::StateList& Run::state() {
  GODWIT_CHECK(!impl_->tracks_frozen);
  return impl_->state;
}
Collective& Run::collective() {
  GODWIT_CHECK(impl_->collective != nullptr);
  return *impl_->collective;
}

Run& Run::TrackBlob(ckpt::BlobRef blob) {
  state().blobs.push_back(std::move(blob));
  return *this;
}
Run& Run::TrackTensor(ckpt::TensorRef tensor) {
  state().tensors.push_back(std::move(tensor));
  return *this;
}

void Run::UseCollective(std::unique_ptr<Collective> collective) {
  impl_->collective = std::move(collective);
}

// ---- Restoring ----

Restored Run::Restore() {
  auto restored = TryRestore();
  if (restored.ok()) {
    if (rank() == 0) {
      LogInfo("world size {}, {}", world_size(), restored->reason);
    }
    return std::move(*restored);
  }
  if (restored.status().code() == StatusCode::kCancelled) {
    LogInfo("{}", restored.status().message());
    fflush(nullptr);
    _exit(kExitParked);
  }
  LogError("cannot restore: {}", restored.status().ToString());
  fflush(nullptr);
  // Without unwinding: the collective's threads may wait for peers that never come.
  _exit(kExitBadConfiguration);
}

Result<Restored> Run::TryRestore() {
  Impl& m = *impl_;
  GODWIT_CHECK(!m.tracks_frozen);
  m.tracks_frozen = true;
  auto restored = m.Restore();
  if (!restored.ok() && restored.status().code() != StatusCode::kCancelled) {
    m.channel->Report(WorkerState::kFailed, 0, restored.status().ToString());
  }
  return restored;
}

Result<Restored> Run::Impl::Restore() {
  GODWIT_RETURN_IF_ERROR(ckpt::Validate(state));
  auto restored = in_job() ? RestoreInJob() : RestoreSolo();
  if (!restored.ok()) return restored;
  if (restored->step > options.steps) {
    return FailedPreconditionError(
        fmt::format("the run is to have {} steps in all, and {} are done in {}; give more steps or "
                    "another directory",
                    options.steps, restored->step, dir));
  }
  if (restored->step == options.steps) {
    restored->reason += fmt::format(": all {} steps are done", options.steps);
  }
  start = boundary = restored->step;
  GODWIT_RETURN_IF_ERROR(OpenSnapshotter());
  GODWIT_RETURN_IF_ERROR(ConnectCollective());
  gate.Reset(static_cast<uint32_t>(start));
  if (!in_job()) gate.Open();
  return restored;
}

Result<Restored> Run::Impl::RestoreSolo() {
  if (dir.empty()) {
    return Restored{.reason = "starts fresh: no checkpoint directory was given"};
  }
  FileSystem& fs = RealFileSystem();
  GODWIT_ASSIGN_OR_RETURN(const ckpt::Plan plan, ckpt::Snapshotter::MakePlan(state, 0, 1));
  GODWIT_ASSIGN_OR_RETURN(arena, ckpt::Arena::Private(plan));
  ckpt::SoloSaver::Options saving{.dir = dir, .job_id = environment.job};
  if (saving.job_id.empty()) saving.job_id = BaseName(dir);
  // Tails are whole, but chunks may be damaged: then the next older one, in a term of its own, and
  // say so. Each turn distrusts one save more, and when none is left Open says so.
  for (;;) {
    GODWIT_ASSIGN_OR_RETURN(saver, ckpt::SoloSaver::Open(fs, RealClock(), saving, *arena));
    term = saver->term();
    const ckpt::Found& found = saver->found();
    if (saving.distrusted.empty()) {
      for (const ckpt::Rejected& rejected : found.rejected) {
        LogWarning("passed over {}: {}", ckpt::ToString(rejected.save), rejected.reason);
      }
    }
    if (!found.newest) return Restored{.reason = "starts fresh: nothing was saved in " + dir};
    const ckpt::SaveId save = found.newest->save;
    auto stats = ckpt::RestoreFromStorage(fs, dir, save, 0, 1, state);
    if (stats.ok()) {
      return Restored{.fresh = false,
                      .step = save.step,
                      .reason = fmt::format("goes on at step {}, from {} in {}", save.step,
                                            ckpt::ToString(save), dir)};
    }
    if (stats.status().code() != StatusCode::kDataLoss) return stats.status();
    LogWarning("passed over {}: {}", ckpt::ToString(save), stats.status().message());
    saving.distrusted.insert(save);
    saver.reset();
  }
}

Result<Orders> Run::Impl::AwaitDecision() {
  const MonotonicTime deadline = MonotonicClock::now() + kDecisionTimeout;
  Result<Orders> orders = channel->ReadOrders();
  for (;;) {
    if (orders.ok()) {
      if (orders->park) {
        channel->Report(WorkerState::kParked, 0);
        leaving = ended = true;
        return CancelledError("told to leave before the first step");
      }
      if (orders->resume.kind != ResumeKind::kPending) return orders;
    } else if (orders.status().code() != StatusCode::kUnavailable || !channel->KeeperAlive()) {
      return orders.status();
    }
    // Odd numbers are never those of whole orders, so 1 stands for "none seen".
    orders = channel->WaitOrders(orders.ok() ? orders->seq : 1, deadline);
    if (!orders.ok() && orders.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceededError("the master has not decided from where to go on within " +
                                   HumanDuration(kDecisionTimeout));
    }
  }
}

Result<Restored> Run::Impl::RestoreInJob() {
  const uint32_t rank = member().rank;
  const uint32_t world_size = member().world_size;
  GODWIT_ASSIGN_OR_RETURN(const ckpt::Plan plan,
                          ckpt::Snapshotter::MakePlan(state, rank, world_size));
  GODWIT_ASSIGN_OR_RETURN(snapshot_memory,
                          channel->ReserveSnapshotMemory(ckpt::Arena::BytesFor(plan),
                                                         MonotonicClock::now() + kReserveTimeout));
  GODWIT_ASSIGN_OR_RETURN(arena, ckpt::Arena::Open(snapshot_memory.bytes(), plan));
  GODWIT_ASSIGN_OR_RETURN(const Orders orders, AwaitDecision());
  const ResumeDecision& from = orders.resume;
  term = from.writer_term;
  Restored restored;
  switch (from.kind) {
    case ResumeKind::kFresh:
      restored.reason =
          "starts fresh: " + (from.message.empty() ? "nothing was saved" : from.message);
      break;
    case ResumeKind::kMemory: {
      GODWIT_RETURN_IF_ERROR(
          ckpt::RestoreFromMemory(*arena, from.step, rank, world_size, state).status());
      restored.fresh = false;
      restored.step = from.step;
      restored.reason =
          fmt::format("goes on at step {}, from the snapshot in this node's memory", from.step);
      break;
    }
    case ResumeKind::kStorage: {
      const ckpt::SaveId save{from.term, from.step, from.attempt};
      GODWIT_RETURN_IF_ERROR(
          ckpt::RestoreFromStorage(RealFileSystem(), dir, save, rank, world_size, state).status());
      restored.fresh = false;
      restored.step = from.step;
      restored.reason = fmt::format("goes on at step {}, from {} in {} ({})", from.step,
                                    ckpt::ToString(save), dir, from.message);
      break;
    }
    case ResumeKind::kPending:
    case ResumeKind::kRefused:
      return FailedPreconditionError(from.message.empty() ? "the master refused the run"
                                                          : from.message);
  }
  // All ranks go on from this state. Other snapshots belong to a future that won't happen, and
  // would take the room of the next ones.
  uint64_t kept_epoch = 0;
  if (from.kind == ResumeKind::kMemory) {
    for (const ckpt::SlotInfo& slot : arena->slots()) {
      if (slot.state == ckpt::SlotState::kWhole && slot.step == from.step) {
        kept_epoch = std::max(kept_epoch, slot.epoch);
      }
    }
  }
  arena->FreeAllBut(kept_epoch, from.kind == ResumeKind::kMemory ? from.step : UINT64_MAX);
  return restored;
}

Status Run::Impl::OpenSnapshotter() {
  if (!arena) return OkStatus();
  ckpt::Snapshotter::Options snap;
  snap.rank = member().rank;
  snap.world_size = member().world_size;
  snap.term = term;
  snap.epoch = member().epoch;
  snap.fence_budget =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.fence_budget_s));
  snap.verify_boundary = options.verify_boundary;
  snap.clock = &RealClock();
  snap.on_whole = [this](uint64_t at, uint64_t) {
    channel->ReportStaged(at);
    if (!saver) return;
    const bool wanted =
        (options.persist_every > 0 && at % options.persist_every == 0) || at == final_step.load();
    wanted ? saver->Offer(at, member().epoch) : saver->Whole(at, member().epoch);
  };
  snap.on_dropped = [this](uint64_t at, const Status& why) {
    LogWarning("snapshot of step {} dropped: {}", at, why.message());
    // Running out of the fence's budget is a slow node; the rest is a mistake of the program.
    if (why.code() != StatusCode::kDeadlineExceeded) NoteSnapshotError(why);
  };
  GODWIT_ASSIGN_OR_RETURN(snapshotter, ckpt::Snapshotter::Open(state, *arena, std::move(snap)));
  return OkStatus();
}

Status Run::Impl::ConnectCollective() {
  if (collective) return OkStatus();
  if (member().world_size == 1) {
    collective = MakeSingleCollective();
    return OkStatus();
  }
#if GODWIT_HAVE_GLOO
  KeyExchange exchange;
  exchange.set = [this](std::string_view key, std::string_view value) -> Status {
    const Status status = channel->KvSet(key, value, kKeyTimeout);
    if (status.code() != StatusCode::kAlreadyExists) return status;
    // A set that went through just before its agent was replaced is passed on once more.
    const auto there = channel->KvGet(key, kKeyTimeout);
    return there.ok() && *there == value ? OkStatus() : status;
  };
  exchange.get = [this](std::string_view key, Duration timeout) {
    return channel->KvGet(key, timeout);
  };
  GlooOptions gloo;
  gloo.rank = member().rank;
  gloo.world_size = member().world_size;
  // Gloo would ask a name server without a bound.
  GODWIT_ASSIGN_OR_RETURN(
      gloo.host,
      LocalAddressOf(environment.host, SaturatingAdd(MonotonicClock::now(), kResolveTimeout)));
  GODWIT_ASSIGN_OR_RETURN(collective, OpenGlooCollective(gloo, exchange));
  return OkStatus();
#else
  return FailedPreconditionError(
      fmt::format("world size {}: this build has no Gloo; give the run a collective of your own "
                  "(Run::UseCollective)",
                  member().world_size));
#endif
}

// ---- The loop ----

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
