#pragma once

#include <map>
#include <string>
#include <string_view>

#include "godwit/ckpt/state.h"

namespace at {
class Tensor;
struct Generator;
}  // namespace at
namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::optim {
class AdamW;
}  // namespace torch::optim

// Adaptors of libtorch's objects, for `Run::Track`. Tensors are on the CPU (another device is an
// error that names the tensor); one that is not contiguous is made so first. The objects must stay
// where they are while they are tracked, and must not get new parameters, buffers or dtypes.
namespace godwit::ckpt {

// Parameters (stable) and buffers (volatile: BatchNorm writes them in forward), as
// "<name>.<its path in the module>".
void GodwitDescribe(torch::nn::Module& module, std::string_view name, StateList* state);

// Moments of each parameter (stable), as "<name>.<group>.<index>.exp_avg", "…exp_avg_sq" and with
// amsgrad "…max_exp_avg_sq", and the step counters in one blob "<name>.steps". State that
// the optimizer would make at its first step is made now, so that the plan never changes. Options
// (learning rate and so on) are the program's, not state.
void GodwitDescribe(torch::optim::AdamW& optimizer, std::string_view name, StateList* state);

// Tensors by name, stable, as "<name>.<key>". The map's tensors must not be replaced.
void GodwitDescribe(std::map<std::string, at::Tensor>& tensors, std::string_view name,
                    StateList* state);

// A CPU random generator, each rank's own. Where the rank did not exist in the checkpoint its seed
// is derived from (step, rank, world size).
void GodwitDescribePerRank(at::Generator& generator, std::string_view name, StateList* state);

}  // namespace godwit::ckpt
