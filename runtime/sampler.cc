#include "godwit/runtime/sampler.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/sampler_ledger.h"

namespace godwit {

struct Sampler::Impl {
  SamplerOptions options;
  Status status;
  SamplerLedger ledger;
  std::vector<uint64_t> ids;
  std::vector<Step::MicroBatch> micro;
};

Sampler::Sampler(const SamplerOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  for (const auto& [name, value] : {std::pair("dataset_size", options.dataset_size),
                                    std::pair("global_batch", options.global_batch)}) {
    if (value == 0 || value > kMaxDatasetSize) {
      impl_->status =
          InvalidArgumentError("sampler: " + std::string(name) + " " + std::to_string(value) +
                               ", allowed: 1 to " + std::to_string(kMaxDatasetSize));
      return;
    }
  }
  impl_->ledger.dataset_size = options.dataset_size;
  impl_->ledger.seed = options.seed;
  impl_->ledger.shuffle = options.shuffle;
}

Sampler::~Sampler() = default;

const Status& Sampler::status() const { return impl_->status; }
const SamplerOptions& Sampler::options() const { return impl_->options; }
uint64_t Sampler::pass() const { return impl_->ledger.cursor.pass; }
uint64_t Sampler::position() const { return impl_->ledger.cursor.position; }

std::span<const Step::MicroBatch> Sampler::Deal(uint32_t rank, uint32_t world_size) {
  GODWIT_CHECK(impl_->status.ok());
  const SamplerLedger& ledger = impl_->ledger;
  const uint64_t count = BatchSize(ledger.cursor, ledger.dataset_size, impl_->options.global_batch);
  const Share share = ShareOf(count, rank, world_size);
  const PassOrder order(ledger.dataset_size, ledger.seed, ledger.cursor.pass, ledger.shuffle);
  impl_->ids.clear();
  for (uint64_t i = share.first; i < share.last; ++i) {
    impl_->ids.push_back(order[ledger.cursor.position + i]);
  }
  impl_->micro.clear();
  const std::span<const uint64_t> ids = impl_->ids;
  const uint64_t most = impl_->options.micro_batch == 0 ? ids.size() : impl_->options.micro_batch;
  for (uint64_t first = 0; first < ids.size(); first += most) {
    Step::MicroBatch& micro = impl_->micro.emplace_back();
    micro.ids_ = ids.subspan(first, std::min<uint64_t>(most, ids.size() - first));
    micro.weight_ = static_cast<double>(micro.ids_.size()) / static_cast<double>(count);
  }
  return impl_->micro;
}

void Sampler::Complete(uint64_t step, uint64_t term, uint64_t epoch, uint32_t world_size) {
  AppendStep(&impl_->ledger, step, impl_->options.global_batch, term, epoch, world_size);
}

std::string Sampler::Save() const { return SerializeLedger(impl_->ledger); }

Status Sampler::Load(std::string_view bytes) {
  GODWIT_RETURN_IF_ERROR(impl_->status);
  GODWIT_ASSIGN_OR_RETURN(SamplerLedger ledger, ParseLedger(bytes));
  GODWIT_RETURN_IF_ERROR(CheckLedger(ledger).status());
  const SamplerLedger& now = impl_->ledger;
  for (const auto& [name, saved, here] :
       {std::tuple("dataset_size", ledger.dataset_size, now.dataset_size),
        std::tuple("seed", ledger.seed, now.seed),
        std::tuple("shuffle", uint64_t{ledger.shuffle}, uint64_t{now.shuffle})}) {
    if (saved != here) {
      return FailedPreconditionError("sampler: " + std::string(name) + " is " +
                                     std::to_string(here) + ", but the checkpoint was made with " +
                                     std::to_string(saved) +
                                     ": samples would be skipped or used twice");
    }
  }
  impl_->ledger = std::move(ledger);
  return OkStatus();
}

void GodwitDescribe(Sampler& sampler, std::string_view name, ckpt::StateList* state) {
  ckpt::BlobRef blob;
  blob.name = std::string(name);
  blob.max_bytes = kMaxLedgerBytes;
  blob.save = [&sampler] { return sampler.Save(); };
  blob.load = [&sampler](std::string_view bytes) { return sampler.Load(bytes); };
  state->blobs.push_back(std::move(blob));
}

}  // namespace godwit
