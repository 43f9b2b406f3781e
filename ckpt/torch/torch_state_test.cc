#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstring>
#include <set>

#include "base/testing/matchers.h"
#include "godwit/ckpt/torch.h"

namespace godwit::ckpt {
namespace {

using testing::IsOk;
using testing::StatusIs;

const TensorRef* Find(const StateList& state, const std::string& name) {
  for (const TensorRef& t : state.tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

TEST(TorchState, ParametersAreStableAndBuffersVolatile) {
  torch::nn::BatchNorm1d norm(4);
  StateList state;
  GodwitDescribe(*norm, "norm", &state);
  EXPECT_THAT(Validate(state), IsOk());
  ASSERT_NE(Find(state, "norm.weight"), nullptr);
  EXPECT_EQ(Find(state, "norm.weight")->stability, Stability::kStable);
  ASSERT_NE(Find(state, "norm.running_mean"), nullptr);
  EXPECT_EQ(Find(state, "norm.running_mean")->stability, Stability::kVolatile);
}

TEST(TorchState, AWriteMovesTheVersionCounter) {
  torch::nn::Linear linear(3, 2);
  StateList state;
  GodwitDescribe(*linear, "m", &state);
  const TensorRef* weight = Find(state, "m.weight");
  ASSERT_NE(weight, nullptr);
  const uint64_t before = weight->version();
  {
    const at::NoGradGuard no_grad;
    linear->weight.add_(1);
  }
  EXPECT_GT(weight->version(), before);
}

TEST(TorchState, StorageThatMovedIsSeen) {
  torch::nn::Linear linear(3, 2);
  StateList state;
  GodwitDescribe(*linear, "m", &state);
  const TensorRef* weight = Find(state, "m.weight");
  EXPECT_EQ(weight->data_now(), weight->data);
  linear->weight.set_data(torch::zeros({2, 3}));
  EXPECT_NE(weight->data_now(), weight->data);
}

// The plan must not change at the first optimizer step, nor may training differ for it.
TEST(TorchState, MakingMomentsEarlyChangesNoUpdate) {
  torch::manual_seed(1);
  torch::nn::Linear a(3, 2), b(3, 2);
  {
    const at::NoGradGuard no_grad;
    b->weight.copy_(a->weight);
    b->bias.copy_(a->bias);
  }
  torch::optim::AdamW plain(a->parameters()), tracked(b->parameters());
  StateList state;
  GodwitDescribe(tracked, "opt", &state);
  EXPECT_THAT(Validate(state), IsOk());
  EXPECT_EQ(state.tensors.size(), 4u);
  const auto x = torch::randn({5, 3});
  for (int i = 0; i < 3; ++i) {
    for (auto* pair : {&a, &b}) {
      (*pair)->zero_grad();
      (*pair)->forward(x).pow(2).sum().backward();
    }
    plain.step();
    tracked.step();
  }
  EXPECT_TRUE(torch::equal(a->weight, b->weight));
  EXPECT_NE(*static_cast<const float*>(state.tensors[0].data_now()), 0.0f);
  EXPECT_EQ(state.tensors[0].data_now(), state.tensors[0].data);
}

TEST(TorchState, StepCountersGoRoundAndAnotherCountIsRefused) {
  torch::nn::Linear linear(3, 2);
  torch::optim::AdamW optimizer(linear->parameters());
  StateList state;
  GodwitDescribe(optimizer, "opt", &state);
  ASSERT_EQ(state.blobs.size(), 1u);
  linear->forward(torch::ones({1, 3})).sum().backward();
  optimizer.step();
  const std::string saved = state.blobs[0].save();
  optimizer.step();
  EXPECT_NE(state.blobs[0].save(), saved);
  EXPECT_THAT(state.blobs[0].load(saved), IsOk());
  EXPECT_EQ(state.blobs[0].save(), saved);
  EXPECT_THAT(state.blobs[0].load(saved.substr(8)), StatusIs(StatusCode::kDataLoss));
}

TEST(TorchState, AGeneratorGoesRoundAndIsDerivedDifferentlyForEachRank) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  StateList state;
  GodwitDescribePerRank(generator, "rng", &state);
  const BlobRef& blob = state.blobs.at(0);
  EXPECT_LE(blob.save().size(), blob.max_bytes);
  const std::string saved = blob.save();
  const auto first = at::randn({4}, generator);
  EXPECT_THAT(blob.load(saved), IsOk());
  EXPECT_TRUE(torch::equal(first, at::randn({4}, generator)));
  EXPECT_THAT(blob.load("nonsense"), StatusIs(StatusCode::kDataLoss));
  std::set<std::string> states;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    blob.derive(100, rank, 4);
    states.insert(blob.save());
  }
  EXPECT_EQ(states.size(), 4u);
}

TEST(TorchState, WhatCannotBeDescribedIsNamed) {
  std::vector<std::pair<std::string, at::Tensor>> tensors = {{"coo", torch::eye(3).to_sparse()}};
  StateList state;
  GodwitDescribe(tensors, "extra", &state);
  EXPECT_THAT(Validate(state), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_NE(Validate(state).message().find("extra.coo"), std::string::npos);
}

TEST(TorchState, WhatIsNotRowMajorIsMadeSoInPlace) {
  std::vector<std::pair<std::string, at::Tensor>> tensors = {
      {"t", torch::arange(6, torch::kFloat).view({2, 3}).t()}};
  StateList state;
  GodwitDescribe(tensors, "x", &state);
  EXPECT_THAT(Validate(state), IsOk());
  const TensorRef* t = Find(state, "x.t");
  EXPECT_EQ(t->shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(static_cast<const float*>(t->data)[1], 3.0f);
  EXPECT_EQ(tensors[0].second.data_ptr(), t->data);
}

}  // namespace
}  // namespace godwit::ckpt
