#include <torch/torch.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include "base/bytes.h"
#include "base/random.h"
#include "godwit/ckpt/torch.h"

namespace godwit::ckpt {
namespace {

void Refuse(StateList* state, const std::string& name, const std::string& why) {
  if (state->error.ok()) {
    state->error = InvalidArgumentError("cannot track '" + name + "': " + why);
  }
}

std::optional<DType> ToDType(at::ScalarType type) {
  switch (type) {
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

void DescribeTensor(at::Tensor tensor, std::string name, Stability stability, StateList* state) {
  if (!tensor.defined()) return Refuse(state, name, "the tensor is undefined");
  if (tensor.layout() != at::kStrided || !tensor.device().is_cpu()) {
    return Refuse(state, name,
                  "the tensor is on " + tensor.device().str() + " with layout " +
                      std::to_string(static_cast<int>(tensor.layout())) +
                      ", allowed: dense on the CPU");
  }
  const auto dtype = ToDType(tensor.scalar_type());
  if (!dtype) {
    return Refuse(state, name,
                  std::string("dtype ") + at::toString(tensor.scalar_type()) +
                      ", allowed: f64, f32, bf16, f16, i64, i32, i16, i8, u8, bool");
  }
  if (!tensor.is_contiguous()) tensor.set_data(tensor.contiguous());
  TensorRef ref;
  ref.name = std::move(name);
  ref.dtype = *dtype;
  ref.shape = tensor.sizes().vec();
  ref.data = tensor.data_ptr();
  ref.bytes = tensor.nbytes();
  ref.stability = stability;
  ref.version = [tensor] { return static_cast<uint64_t>(tensor._version()); };
  ref.data_now = [tensor] { return tensor.data_ptr(); };
  ref.owner = std::make_shared<at::Tensor>(tensor);
  state->tensors.push_back(std::move(ref));
}

std::string Path(std::string_view name, std::string_view rest) {
  return std::string(name) + "." + std::string(rest);
}

}  // namespace

void GodwitDescribe(torch::nn::Module& module, std::string_view name, StateList* state) {
  for (const auto& item : module.named_parameters()) {
    DescribeTensor(item.value(), Path(name, item.key()), Stability::kStable, state);
  }
  for (const auto& item : module.named_buffers()) {
    DescribeTensor(item.value(), Path(name, item.key()), Stability::kVolatile, state);
  }
}

void GodwitDescribe(torch::optim::AdamW& optimizer, std::string_view name, StateList* state) {
  const auto moments = [](const at::Tensor& parameter) {
    return torch::zeros_like(parameter, at::MemoryFormat::Contiguous);
  };
  std::vector<torch::optim::AdamWParamState*> states;
  auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& options = static_cast<torch::optim::AdamWOptions&>(groups[g].options());
    const auto& parameters = groups[g].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto& slot = optimizer.state()[parameters[i].unsafeGetTensorImpl()];
      if (!slot) {
        const torch::NoGradGuard no_grad;
        auto made = std::make_unique<torch::optim::AdamWParamState>();
        made->step(0);
        made->exp_avg(moments(parameters[i]));
        made->exp_avg_sq(moments(parameters[i]));
        if (options.amsgrad()) made->max_exp_avg_sq(moments(parameters[i]));
        slot = std::move(made);
      }
      auto& s = static_cast<torch::optim::AdamWParamState&>(*slot);
      states.push_back(&s);
      const std::string path = Path(name, std::to_string(g) + "." + std::to_string(i));
      DescribeTensor(s.exp_avg(), path + ".exp_avg", Stability::kStable, state);
      DescribeTensor(s.exp_avg_sq(), path + ".exp_avg_sq", Stability::kStable, state);
      if (options.amsgrad()) {
        DescribeTensor(s.max_exp_avg_sq(), path + ".max_exp_avg_sq", Stability::kStable, state);
      }
    }
  }
  BlobRef blob;
  blob.name = Path(name, "steps");
  blob.max_bytes = 64 + 8 * (states.size() + groups.size());
  blob.save = [states, &groups] {
    ByteWriter w;
    w.U32(static_cast<uint32_t>(states.size()));
    for (const auto* s : states) w.I64(s->step());
    w.U32(static_cast<uint32_t>(groups.size()));
    for (auto& group : groups) w.F64(group.options().get_lr());
    return w.Take();
  };
  blob.load = [states, &groups, text = blob.name](std::string_view bytes) -> Status {
    ByteReader r(AsBytes(bytes), text);
    const auto count = [&](const char* what, size_t here) {
      const uint32_t saved = r.ReadU32();
      if (r.ok() && saved != here) {
        r.Fail(std::to_string(saved) + " " + what + ", the program's optimizer has " +
               std::to_string(here));
      }
    };
    count("parameters", states.size());
    for (auto* s : states) s->step(r.ReadI64());
    count("parameter groups", groups.size());
    for (auto& group : groups) group.options().set_lr(r.ReadF64());
    return r.Finish();
  };
  state->blobs.push_back(std::move(blob));
}

void GodwitDescribe(std::vector<std::pair<std::string, at::Tensor>>& tensors, std::string_view name,
                    StateList* state) {
  for (const auto& [key, tensor] : tensors) {
    DescribeTensor(tensor, Path(name, key), Stability::kStable, state);
  }
}

void GodwitDescribePerRank(at::Generator& generator, std::string_view name, StateList* state) {
  BlobRef blob;
  blob.name = std::string(name);
  blob.placement = Placement::kPerRank;
  blob.save = [generator]() mutable {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    const at::Tensor bytes = generator.get_state();
    return std::string(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
  };
  blob.load = [generator, text = blob.name](std::string_view bytes) mutable -> Status {
    const at::Tensor tensor = torch::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    try {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(tensor);
    } catch (const c10::Error& e) {
      return DataLossError("'" + text + "': no generator's state: " + e.what_without_backtrace());
    }
    return OkStatus();
  };
  blob.derive = [generator](uint64_t step, uint32_t rank, uint32_t world_size) mutable {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    const uint64_t seed = generator.current_seed();
    generator.set_current_seed(
        Mix64(seed ^ Mix64(step ^ Mix64((uint64_t{rank} << 32) | world_size))));
  };
  state->blobs.push_back(std::move(blob));
}

}  // namespace godwit::ckpt
