#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "ckpt/engine/arena.h"
#include "ckpt/engine/snapshotter.h"
#include "ckpt/engine/solo_saver.h"
#include "control/page.h"
#include "control/step_gate.h"
#include "control/worker_channel.h"
#include "godwit/runtime/collective.h"
#include "godwit/runtime/run.h"
#include "godwit/runtime/sampler.h"
#include "runtime/environment.h"

namespace godwit {

// Exit codes of a worker, as its launcher understands them.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitParked = 75;
inline constexpr int kExitWorkLost = 76;
inline constexpr int kExitBadConfiguration = 78;

// All of a run. run.cc joins it and restores; run_loop.cc is the steps and the end.
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

}  // namespace godwit
