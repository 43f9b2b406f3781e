#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "godwit/runtime/torch.h"

namespace godwit {

void AllReduceGradients(Step& step, torch::nn::Module& module, float* loss) {
  const torch::NoGradGuard no_grad;
  std::vector<float*> buffers;
  std::vector<size_t> counts;
  for (const auto& item : module.named_parameters()) {
    at::Tensor parameter = item.value();
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) {
      gradient = torch::zeros_like(parameter, at::MemoryFormat::Contiguous);
    }
    if (gradient.scalar_type() != at::kFloat || !gradient.device().is_cpu() ||
        gradient.layout() != at::kStrided) {
      LogError("cannot all-reduce the gradient of '{}': {} on {}, allowed: Float on cpu",
               item.key(), at::toString(gradient.scalar_type()), gradient.device().str());
      fflush(nullptr);
      _exit(78);
    }
    if (!gradient.is_contiguous()) gradient = gradient.contiguous();
    buffers.push_back(gradient.data_ptr<float>());
    counts.push_back(static_cast<size_t>(gradient.numel()));
  }
  if (loss != nullptr) {
    buffers.push_back(loss);
    counts.push_back(1);
  }
  step.AllReduceSum(buffers, counts);
}

}  // namespace godwit
