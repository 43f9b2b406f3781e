#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "godwit/ckpt/state.h"

namespace godwit::ckpt {

// A plain array of floats as one stable tensor. Its size stays.
inline void GodwitDescribe(std::vector<float>& values, std::string_view name, StateList* state) {
  TensorRef tensor;
  tensor.name = std::string(name);
  tensor.shape = {static_cast<int64_t>(values.size())};
  tensor.data = values.data();
  tensor.bytes = values.size() * sizeof(float);
  tensor.data_now = [&values] { return static_cast<void*>(values.data()); };
  state->tensors.push_back(std::move(tensor));
}

}  // namespace godwit::ckpt

namespace godwit {

class Sampler;
class Collective;
class Run;

struct RunOptions {
  std::string dir;               // of checkpoints; relative to the working directory. Empty: none
  uint64_t steps = 0;            // optimizer updates in all; the same on every rank
  uint64_t snapshot_every = 10;  // steps between snapshots in memory; 0: only on a notice
  uint64_t persist_every =
      100;  // steps between saves to storage; 0: only on a notice and at the end
  std::vector<uint32_t> world_sizes;  // legal ones; empty: any
  double fence_budget_s = 10;
  bool verify_boundary = false;
};

// What Restore found.
struct Restored {
  bool fresh = true;
  uint64_t step = 0;   // updates done in the restored state
  std::string reason;  // for people: from where, and why
};

// One optimizer update.
class Step {
 public:
  uint64_t index() const { return index_; }  // 0-based; index() updates were done before it
  bool Every(uint64_t n) const { return (index_ + 1) % n == 0; }

  // This rank's share of the step's global batch, in micro-batches of at most the sampler's
  // micro size. A rank may get none.
  class MicroBatch {
   public:
    std::span<const uint64_t> ids() const { return ids_; }  // global sample indices
    double weight() const { return weight_; }               // samples here / global batch
   private:
    friend class Step;
    friend class Sampler;
    std::span<const uint64_t> ids_;
    double weight_ = 0;
  };
  std::span<const MicroBatch> Micro(Sampler& sampler);

  // Sums buffers (floats, in place) over all ranks, buffers[i] of counts[i] values. Blocks; on
  // failure of a peer it waits, bounded, for the launcher to restart or end this process, then
  // exits (1): it never returns wrong sums.
  void AllReduceSum(std::span<float* const> buffers, std::span<const size_t> counts);
  void AllReduceSum(float* values, size_t count);

  // The only place where tracked stable state may change, once in each step: waits for the snapshot
  // under way (the fence), then calls `update`.
  template <typename F>
  void Update(F&& update) {
    BeginUpdate();
    std::forward<F>(update)();
    EndUpdate();
  }

 private:
  friend class Run;
  void BeginUpdate();
  void EndUpdate();
  Run* run_ = nullptr;
  uint64_t index_ = 0;
};

// A training run: membership, the step gate, snapshots. One per process; used from one thread (the
// training thread) unless said otherwise.
class Run {
 public:
  // Joins the job that launched this process (GODWIT_KEEPER_SOCKET), or runs alone. A world size
  // above 1 (RANK, WORLD_SIZE of another launcher) without a keeper is FAILED_PRECONDITION naming
  // `godwit run`. Reads --godwit-… options out of argv (none in this version) and GODWIT_* out of
  // the environment.
  static Result<Run> Open(int* argc, char** argv, RunOptions options);
  // The same; an error is printed as one line and ends the process with code 78.
  static Run OpenOrExit(int* argc, char** argv, RunOptions options);

  Run(Run&&) noexcept;
  Run& operator=(Run&&) noexcept;
  ~Run();

  uint32_t rank() const;
  uint32_t world_size() const;
  uint32_t local_rank() const;
  uint64_t epoch() const;          // of the membership
  uint64_t term() const;           // of the writer, at this worker's start
  const std::string& dir() const;  // absolute; empty: none

  // Registers state, before Restore; objects stay where they are while the run lives. Tensors and
  // blobs come through adaptors: anything for which `void GodwitDescribe(T&, std::string_view name,
  // ckpt::StateList*)` is found by ADL. The torch adaptors (runtime/torch) give modules,
  // optimizers, tensor maps and generators.
  template <typename T>
  Run& Track(std::string_view name, T& object) {
    GodwitDescribe(object, name, &state());
    return *this;
  }
  // Trivially copyable values and std::string as blobs.
  template <typename T>
  Run& TrackVolatile(std::string_view name, T& value) {
    ckpt::BlobRef blob;
    blob.name = std::string(name);
    if constexpr (std::is_same_v<T, std::string>) {
      blob.save = [&value] { return value; };
      blob.load = [&value](std::string_view bytes) {
        value = std::string(bytes);
        return OkStatus();
      };
    } else {
      static_assert(std::is_trivially_copyable_v<T>, "track it through an adaptor, or as a blob");
      blob.max_bytes = sizeof(T);
      blob.save = [&value] {
        return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
      };
      blob.load = [&value, text = blob.name](std::string_view bytes) {
        if (bytes.size() != sizeof(T)) {
          return FailedPreconditionError("'" + text + "': " + std::to_string(bytes.size()) +
                                         " bytes in the checkpoint, the program's value has " +
                                         std::to_string(sizeof(T)));
        }
        std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof(T));
        return OkStatus();
      };
    }
    return TrackBlob(std::move(blob));
  }
  Run& TrackBlob(ckpt::BlobRef blob);
  Run& TrackTensor(ckpt::TensorRef tensor);
  // Per-rank: at another world size derived from (step, rank, world size).
  template <typename T>
  Run& TrackPerRank(std::string_view name, T& object) {
    GodwitDescribePerRank(object, name, &state());
    return *this;
  }

  // A program's own collective, before Restore, instead of the one that Restore would connect.
  void UseCollective(std::unique_ptr<Collective> collective);

  // Restores all tracked state, once: blocks until the master decides from where (bounded), or solo
  // from the directory; connects the collective; reserves memory for snapshots. Prints one line and
  // exits 78 on failure: never a silent fresh start. Told to leave meanwhile, it exits 75
  // (TryRestore: CANCELLED).
  Restored Restore();
  Result<Restored> TryRestore();

  // The step loop: iterates until all steps are done or the run must leave. Entering a step is the
  // gate. A boundary without a notice: no system call, no allocation, no lock. After the last step
  // it stages the final snapshot and, in a job, waits until that is committed. Once per run, after
  // Restore.
  class StepRange;
  StepRange Steps();

  // A bounded piece of work inside a step, after its Update (evaluation). `tick()` is true while it
  // may go on, false once there is a notice: then the body returns soon. Not begun when there is
  // one already. It must use no collective, or all ranks would have to see the notice at the same
  // tick.
  void Phase(std::string_view name, const std::function<void(const std::function<bool()>&)>& body);

  bool done() const;  // all steps are done, as opposed to leaving
  bool leaving() const;
  // 0 done; 75 parked on a notice; 1 a snapshot or save failed in a way the user must know, or the
  // loop was left early. Waits for saves under way (of a solo run), at most 10 minutes.
  int ExitCode();

  Collective& collective();
  ckpt::StateList& state();

 private:
  friend class Step;
  friend class StepRange;
  struct Impl;
  explicit Run(std::unique_ptr<Impl> impl);
  Step* Next();  // nullptr: the loop ends
  std::unique_ptr<Impl> impl_;
};

class Run::StepRange {
 public:
  struct Sentinel {};
  class Iterator {
   public:
    explicit Iterator(Run* run) : run_(run), step_(run->Next()) {}
    Step& operator*() const { return *step_; }
    Iterator& operator++() {
      step_ = run_->Next();
      return *this;
    }
    bool operator==(Sentinel) const { return step_ == nullptr; }

   private:
    Run* run_;
    Step* step_;
  };
  explicit StepRange(Run* run) : run_(run) {}
  Iterator begin() const { return Iterator(run_); }
  Sentinel end() const { return {}; }

 private:
  Run* run_;
};

inline Run::StepRange Run::Steps() { return StepRange(this); }

}  // namespace godwit
