#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "godwit/ckpt/state.h"

// libtorch's types are only named here: include <torch/torch.h> where they are used.
namespace at {
class Tensor;
struct Generator;
}  // namespace at
namespace torch::nn {
class Module;
}
namespace torch::optim {
class AdamW;
}

namespace godwit::ckpt {

// What makes libtorch's objects trackable (found by Run::Track). Objects must stay where they are
// and keep their shapes; their memory is borrowed. A tensor that is not dense and row-major is made
// so here. What this version cannot track (another device than the CPU, a sparse or undefined
// tensor, a dtype outside DType) is named by StateList::error, which Run::Restore reports.

// Parameters are stable, buffers volatile; names are "<name>.<path>".
void GodwitDescribe(torch::nn::Module& module, std::string_view name, StateList* state);

// exp_avg, exp_avg_sq (and max_exp_avg_sq) of each parameter are stable; step counts and learning
// rates are a blob. State that the optimizer would make at its first step is made here, so that
// the plan does not change.
void GodwitDescribe(torch::optim::AdamW& optimizer, std::string_view name, StateList* state);

// Tensors by name. Stable.
void GodwitDescribe(std::vector<std::pair<std::string, at::Tensor>>& tensors, std::string_view name,
                    StateList* state);

// A generator of random numbers, each rank's own; at another world size new ranks seed theirs from
// (its seed, step, rank, world size).
void GodwitDescribePerRank(at::Generator& generator, std::string_view name, StateList* state);

}  // namespace godwit::ckpt
