#pragma once

#include "godwit/ckpt/torch.h"
#include "godwit/runtime/run.h"

namespace godwit {

// Sums the gradients of all parameters over all ranks, and `*loss` (null: none) with them, in one
// operation. A parameter without a gradient (this rank had no samples) counts as zero, and gets
// one. Gradients are floats on the CPU; anything else ends the process (78) naming the parameter.
void AllReduceGradients(Step& step, torch::nn::Module& module, float* loss = nullptr);

}  // namespace godwit
