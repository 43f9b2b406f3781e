#include "godwit/runtime/run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/check.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/real_file_system.h"
#include "base/strings.h"
#include "ckpt/engine/restore.h"
#include "ckpt/lineage/checkpoint_dir.h"
#include "runtime/collective/host_address.h"
#include "runtime/run_impl.h"
#if GODWIT_HAVE_GLOO
#include "runtime/collective/gloo/gloo_collective.h"
#endif

namespace godwit {
namespace {

constexpr Duration kClaimTimeout = std::chrono::seconds(10);
constexpr Duration kReserveTimeout = std::chrono::seconds(60);
// Until the master has decided from where the run goes on: it may first wait for packs that are
// being written.
constexpr Duration kDecisionTimeout = std::chrono::minutes(10);
constexpr Duration kKeyTimeout = std::chrono::seconds(30);
constexpr Duration kResolveTimeout = std::chrono::seconds(10);

Result<std::string> AbsolutePath(const std::string& path) {
  if (path.empty()) return path;
  std::filesystem::path whole = path;
  if (whole.is_relative()) {
    std::error_code error;
    const std::filesystem::path here = std::filesystem::current_path(error);
    if (error) return ErrnoError(error.value(), "the working directory, for '" + path + "'");
    whole = here / whole;
  }
  std::string absolute = whole.lexically_normal().string();
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
  GODWIT_ASSIGN_OR_RETURN(impl->dir, AbsolutePath(env.dir.empty() ? impl->options.dir : env.dir));
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

}  // namespace godwit
