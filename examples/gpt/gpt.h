#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>

namespace gpt {

struct GptSize {
  int64_t context = 128;
  int64_t width = 128;
  int64_t layers = 4;
  int64_t heads = 4;
};

// A decoder-only transformer over bytes (GPT-2's layout: pre-norm, learned positions, output tied
// to the input embedding).
class Gpt : public torch::nn::Module {
 public:
  explicit Gpt(const GptSize& size);
  // tokens: [batch, time] of int64 below 256, time <= context. Logits: [batch, time, 256].
  at::Tensor forward(const at::Tensor& tokens);

 private:
  GptSize size_;
  torch::nn::Embedding bytes_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
};

}  // namespace gpt
