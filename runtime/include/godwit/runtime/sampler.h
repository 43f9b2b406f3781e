#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "godwit/ckpt/state.h"
#include "godwit/runtime/run.h"

namespace godwit {

struct SamplerOptions {
  uint64_t dataset_size = 0;  // samples; the same for the whole run
  uint64_t global_batch = 0;  // samples of one step over all ranks
  uint64_t micro_batch = 0;   // most samples in one micro-batch; 0: a rank's whole share
  uint64_t seed = 0;
  bool shuffle = true;
};

// Deals global sample indices, pass by pass (a pass uses every sample once; elsewhere that is
// called an epoch). At any world size and through any number of restarts each sample of a pass is
// used exactly once, and the order of samples in a global batch is the same: it depends on (seed,
// pass, position) alone. The last batch of a pass is short when global_batch does not divide the
// data set. What counts is completed updates: a batch that was dealt for a step which never got to
// its Update is dealt again.
//
// Tracked with `run.Track("sampler", sampler)`; then used through Step::Micro. Training thread
// only. Stays where it is while it is tracked.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // INVALID_ARGUMENT naming the option. Step::Micro ends the process (78) with it.
  const Status& status() const;
  const SamplerOptions& options() const;

  uint64_t pass() const;      // of the next batch
  uint64_t position() const;  // samples of that pass used so far

  // This rank's share of the next global batch. Valid until the next call. Calling it again changes
  // nothing. Allocates only when the share is larger than any before. REQUIRES: status().ok().
  std::span<const Step::MicroBatch> Deal(uint32_t rank, uint32_t world_size);
  // The batch was used, by step `step` (0-based) of this membership: the next one is due.
  void Complete(uint64_t step, uint64_t term, uint64_t epoch, uint32_t world_size);

  // Cursor and ledger, as the checkpoint keeps them.
  std::string Save() const;
  // FAILED_PRECONDITION when the data set, the seed or the shuffling differ, naming both; DATA_LOSS
  // for bytes that are no ledger or contradict themselves.
  Status Load(std::string_view bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

void GodwitDescribe(Sampler& sampler, std::string_view name, ckpt::StateList* state);

}  // namespace godwit
