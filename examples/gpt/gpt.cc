#include "examples/gpt/gpt.h"

#include <torch/torch.h>

#include <cmath>

namespace gpt {
namespace {

constexpr double kInitStd = 0.02;

class Block : public torch::nn::Module {
 public:
  explicit Block(const GptSize& size) : heads_(size.heads) {
    const int64_t w = size.width;
    norm1_ = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({w})));
    qkv_ = register_module("qkv", torch::nn::Linear(w, 3 * w));
    out_ = register_module("out", torch::nn::Linear(w, w));
    norm2_ = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({w})));
    up_ = register_module("up", torch::nn::Linear(w, 4 * w));
    down_ = register_module("down", torch::nn::Linear(4 * w, w));
    // Each block adds twice to the residual stream, whose variance must not grow with depth.
    const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(size.layers));
    for (auto& [linear, std] : {std::pair(qkv_, kInitStd), std::pair(up_, kInitStd),
                                std::pair(out_, residual_std), std::pair(down_, residual_std)}) {
      torch::nn::init::normal_(linear->weight, 0.0, std);
      torch::nn::init::zeros_(linear->bias);
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    const int64_t b = x.size(0), t = x.size(1), w = x.size(2);
    const auto qkv = qkv_(norm1_(x)).view({b, t, 3, heads_, w / heads_}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true);
    const auto y = x + out_(mixed.transpose(1, 2).reshape({b, t, w}));
    return y + down_(torch::gelu(up_(norm2_(y)), "tanh"));
  }

 private:
  int64_t heads_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, out_{nullptr}, up_{nullptr}, down_{nullptr};
};

}  // namespace

Gpt::Gpt(const GptSize& size) : size_(size) {
  bytes_ = register_module("bytes", torch::nn::Embedding(256, size.width));
  positions_ = register_module("positions", torch::nn::Embedding(size.context, size.width));
  for (int64_t i = 0; i < size.layers; ++i) blocks_->push_back(std::make_shared<Block>(size));
  register_module("blocks", blocks_);
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width})));
  torch::nn::init::normal_(bytes_->weight, 0.0, kInitStd);
  torch::nn::init::normal_(positions_->weight, 0.0, kInitStd);
}

at::Tensor Gpt::forward(const at::Tensor& tokens) {
  const auto positions = torch::arange(tokens.size(1), torch::kLong);
  auto x = bytes_(tokens) + positions_(positions);
  for (const auto& block : *blocks_) x = block->as<Block>()->forward(x);
  return torch::linear(norm_(x), bytes_->weight);
}

}  // namespace gpt
