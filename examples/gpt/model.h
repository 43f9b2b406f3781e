#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace godwit::gpt {

struct ModelOptions {
  int64_t layers = 3;
  int64_t width = 96;  // a multiple of heads
  int64_t heads = 4;
  int64_t context = 64;  // bytes
};

// A byte-level GPT: learned positions, pre-norm blocks, tied input and output embedding.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const ModelOptions& o)
      : heads_(o.heads),
        norm1_(
            register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))),
        norm2_(
            register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))),
        qkv_(register_module("qkv", torch::nn::Linear(o.width, 3 * o.width))),
        out_(register_module("out", torch::nn::Linear(o.width, o.width))),
        up_(register_module("up", torch::nn::Linear(o.width, 4 * o.width))),
        down_(register_module("down", torch::nn::Linear(4 * o.width, o.width))) {}

  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    auto parts =
        qkv_(norm1_(x)).view({batch, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
    auto attention = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                      /*is_causal=*/true);
    x = x + out_(attention.transpose(1, 2).reshape({batch, length, width}));
    return x + down_(torch::gelu(up_(norm2_(x))));
  }

 private:
  int64_t heads_;
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear qkv_, out_, up_, down_;
};
TORCH_MODULE(Block);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const ModelOptions& o)
      : tokens_(register_module("tokens", torch::nn::Embedding(256, o.width))),
        positions_(register_module("positions", torch::nn::Embedding(o.context, o.width))),
        blocks_(register_module("blocks", torch::nn::ModuleList())),
        norm_(
            register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))) {
    for (int64_t i = 0; i < o.layers; ++i) blocks_->push_back(Block(o));
    torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      if (parameter.dim() > 1) parameter.normal_(0.0, 0.02);
    }
  }

  // `x`: int64 [batch, length] of byte values; returns logits [batch, length, 256].
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = tokens_(x) + positions_(torch::arange(x.size(1), x.options()));
    for (const auto& block : *blocks_) h = block->as<Block>()->forward(h);
    return torch::matmul(norm_(h), tokens_->weight.t());
  }

 private:
  torch::nn::Embedding tokens_, positions_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
};
TORCH_MODULE(Gpt);

}  // namespace godwit::gpt
