#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/random.h"
#include "godwit/ckpt/torch.h"

namespace godwit::ckpt {

namespace {

void Fail(StateList* state, std::string message) {
  if (state->error.ok()) state->error = InvalidArgumentError(std::move(message));
}

std::optional<DType> DTypeOf(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    case at::kLong:
      return DType::kI64;
    case at::kInt:
      return DType::kI32;
    case at::kShort:
      return DType::kI16;
    case at::kChar:
      return DType::kI8;
    case at::kByte:
      return DType::kU8;
    case at::kBool:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

void AddTensor(at::Tensor t, std::string name, Stability stability, StateList* state) {
  if (!t.defined()) return;
  if (!t.device().is_cpu()) {
    return Fail(state, "tensor '" + name + "': device " + t.device().str() + ", allowed: cpu");
  }
  if (t.layout() != at::kStrided) {
    return Fail(state, "tensor '" + name + "': a sparse layout, allowed: strided");
  }
  if (!t.is_contiguous()) {
    const at::NoGradGuard no_grad;
    t.set_data(t.contiguous());
  }
  TensorRef ref;
  ref.name = std::move(name);
  ref.bytes = t.nbytes();
  if (const std::optional<DType> dtype = DTypeOf(t)) {
    ref.dtype = *dtype;
    ref.shape.assign(t.sizes().begin(), t.sizes().end());
  } else {  // complex, 8-bit floats and whatever comes: their bytes are kept
    ref.dtype = DType::kU8;
    ref.shape = {static_cast<int64_t>(ref.bytes)};
  }
  ref.data = t.mutable_data_ptr();
  ref.stability = stability;
  // A tensor made in inference mode has no counter.
  if (!t.is_inference()) ref.version = [t] { return static_cast<uint64_t>(t._version()); };
  ref.data_now = [t] { return t.mutable_data_ptr(); };
  ref.owner = std::make_shared<at::Tensor>(t);
  state->tensors.push_back(std::move(ref));
}

}  // namespace

void GodwitDescribe(torch::nn::Module& module, std::string_view name, StateList* state) {
  const std::string prefix = std::string(name) + ".";
  for (auto& item : module.named_parameters()) {
    AddTensor(item.value(), prefix + item.key(), Stability::kStable, state);
  }
  for (auto& item : module.named_buffers()) {
    AddTensor(item.value(), prefix + item.key(), Stability::kVolatile, state);
  }
}

void GodwitDescribe(std::map<std::string, at::Tensor>& tensors, std::string_view name,
                    StateList* state) {
  for (auto& [key, tensor] : tensors) {
    AddTensor(tensor, std::string(name) + "." + key, Stability::kStable, state);
  }
}

void GodwitDescribe(torch::optim::AdamW& optimizer, std::string_view name, StateList* state) {
  using ParamState = torch::optim::AdamWParamState;
  std::vector<ParamState*> params;
  const auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    const bool amsgrad =
        static_cast<const torch::optim::AdamWOptions&>(groups[g].options()).amsgrad();
    for (size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& parameter = groups[g].params()[i];
      auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (slot == nullptr) {  // as AdamW::step makes it
        const auto zeros = [&] {
          return torch::zeros_like(parameter, torch::MemoryFormat::Preserve);
        };
        auto fresh = std::make_unique<ParamState>();
        fresh->step(0);
        fresh->exp_avg(zeros());
        fresh->exp_avg_sq(zeros());
        if (amsgrad) fresh->max_exp_avg_sq(zeros());
        slot = std::move(fresh);
      }
      auto& moments = static_cast<ParamState&>(*slot);
      params.push_back(&moments);
      const std::string prefix =
          std::string(name) + "." + std::to_string(g) + "." + std::to_string(i) + ".";
      AddTensor(moments.exp_avg(), prefix + "exp_avg", Stability::kStable, state);
      AddTensor(moments.exp_avg_sq(), prefix + "exp_avg_sq", Stability::kStable, state);
      AddTensor(moments.max_exp_avg_sq(), prefix + "max_exp_avg_sq", Stability::kStable, state);
    }
  }

  BlobRef steps;
  steps.name = std::string(name) + ".steps";
  steps.max_bytes = 8 * params.size();
  steps.save = [params] {
    ByteWriter writer;
    for (const ParamState* p : params) writer.I64(p->step());
    return writer.Take();
  };
  steps.load = [params, blob = steps.name](std::string_view bytes) {
    if (bytes.size() != 8 * params.size()) {
      return FailedPreconditionError("'" + blob + "': " + std::to_string(bytes.size() / 8) +
                                     " step counters in the checkpoint, the optimizer has " +
                                     std::to_string(params.size()) + " parameters");
    }
    ByteReader reader(AsBytes(bytes), "step counters");
    for (ParamState* p : params) p->step(reader.ReadI64());
    return OkStatus();
  };
  state->blobs.push_back(std::move(steps));
}

void GodwitDescribePerRank(at::Generator& generator, std::string_view name, StateList* state) {
  if (!generator.defined() || !generator.device().is_cpu()) {
    return Fail(state, "generator '" + std::string(name) + "': allowed: a defined one on the CPU");
  }
  BlobRef blob;
  blob.name = std::string(name);
  blob.placement = Placement::kPerRank;
  blob.save = [generator] {
    const std::scoped_lock lock(generator.mutex());
    const at::Tensor bytes = generator.get_state().contiguous();
    return std::string(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  };
  blob.load = [generator, text = blob.name](std::string_view bytes) mutable {
    const at::Tensor copy =
        at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(copy.mutable_data_ptr()));
    try {
      const std::scoped_lock lock(generator.mutex());
      generator.set_state(copy);
    } catch (const c10::Error& error) {
      return FailedPreconditionError("'" + text + "': the generator refuses its saved state: " +
                                     error.what_without_backtrace());
    }
    return OkStatus();
  };
  blob.derive = [generator, seed = generator.current_seed()](uint64_t step, uint32_t rank,
                                                             uint32_t world_size) mutable {
    const std::scoped_lock lock(generator.mutex());
    generator.set_current_seed(Mix64(Mix64(seed ^ step) ^ (uint64_t{world_size} << 32 | rank)));
  };
  state->blobs.push_back(std::move(blob));
}

}  // namespace godwit::ckpt
