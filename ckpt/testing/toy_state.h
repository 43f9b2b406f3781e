#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "ckpt/include/godwit/ckpt/state.h"

namespace godwit::ckpt::testing {

// Training state of one rank for tests: all kinds of tensors and blobs, filled with a pure function
// of (step, rank), so that a restored state says by itself whether it's the right one.
class ToyState {
 public:
  // `scale` multiplies the number of elements of the large tensors.
  ToyState(uint32_t rank, uint32_t world_size, uint64_t scale = 1)
      : rank_(rank), world_size_(world_size) {
    Add("wte", DType::kF32, {static_cast<int64_t>(300 * scale), 1024}, Stability::kStable);
    Add("ln.weight", DType::kF32, {64}, Stability::kStable);
    Add("scalar", DType::kF64, {}, Stability::kStable);
    Add("empty", DType::kF32, {0, 7}, Stability::kStable);
    Add("half", DType::kBF16, {3, 5, 7}, Stability::kStable);
    Add("h.weight", DType::kF32, {static_cast<int64_t>(100 * scale), 700}, Stability::kStable);
    Add("mask", DType::kBool, {11}, Stability::kStable);
    Add("running_mean", DType::kF32, {33}, Stability::kVolatile);
    Add("expert", DType::kF32, {static_cast<int64_t>(90 * scale), 1024}, Stability::kStable,
        Placement::kPerRank);
    blobs_ = {"", ""};
  }

  // The state after `step` updates.
  void Fill(uint64_t step) {
    if (change != Change::kAll) {
      FillAll(1);
      for (size_t i = 0; i < data_.size(); ++i) {
        if (change == Change::kOneTensor && tensors_[i].name != "ln.weight") continue;
        Random random(Mix64(step * 1000 + i));
        for (size_t at = 0; at < data_[i]->size(); at += ByteSize(tensors_[i].dtype)) {
          (*data_[i])[at] = static_cast<std::byte>(random.Next());
        }
      }
      return;
    }
    FillAll(step);
  }

  // What a step changes.
  enum class Change {
    kAll,         // every byte
    kOneTensor,   // all the rest is what it was: frozen
    kLowestByte,  // of each element, as training moves weights: what differences are for
  };
  Change change = Change::kAll;

  void FillAll(uint64_t step) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const bool own = tensors_[i].placement == Placement::kPerRank;
      Random random(Mix64(step * 1000 + i) + (own ? 7919 * (rank_ + 1) : 0));
      // Half of the bytes from a small alphabet: it compresses, as real state does.
      for (auto& byte : *data_[i]) {
        const uint64_t v = random.Next();
        byte = static_cast<std::byte>(v & 1 ? v >> 8 : v >> 61);
      }
      ++versions_[i];
    }
    blobs_[0] = "sampler cursor " + std::to_string(step);
    blobs_[1] = "rng of rank " + std::to_string(rank_) + " at " + std::to_string(step);
  }

  void Clear() {
    for (auto& d : data_) std::fill(d->begin(), d->end(), std::byte{0});
    blobs_ = {"", ""};
    derived_.clear();
  }

  // All bytes are those of Fill(step) on this rank.
  bool Holds(uint64_t step, bool with_per_rank = true) const {
    ToyState other(rank_, world_size_, Scale());
    other.change = change;
    other.Fill(step);
    for (size_t i = 0; i < data_.size(); ++i) {
      if (!with_per_rank && tensors_[i].placement == Placement::kPerRank) continue;
      if (*data_[i] != *other.data_[i]) return false;
    }
    return blobs_[0] == other.blobs_[0] && (!with_per_rank || blobs_[1] == other.blobs_[1]);
  }

  StateList List() {
    StateList list;
    list.tensors = tensors_;
    for (size_t i = 0; i < list.tensors.size(); ++i) {
      list.tensors[i].version = [this, i] { return versions_[i]; };
    }
    list.blobs.push_back({.name = "sampler",
                          .placement = Placement::kReplicated,
                          .save = [this] { return blobs_[0]; },
                          .load =
                              [this](std::string_view b) {
                                blobs_[0] = b;
                                return OkStatus();
                              }});
    list.blobs.push_back({.name = "rng",
                          .placement = Placement::kPerRank,
                          .save = [this] { return blobs_[1]; },
                          .load =
                              [this](std::string_view b) {
                                blobs_[1] = b;
                                return OkStatus();
                              },
                          .derive =
                              [this](uint64_t step, uint32_t rank, uint32_t world) {
                                derived_ = std::to_string(step) + "/" + std::to_string(rank) + "/" +
                                           std::to_string(world);
                              }});
    return list;
  }

  uint64_t bytes() const {
    uint64_t n = 0;
    for (const TensorRef& t : tensors_) n += t.bytes;
    return n;
  }
  const std::string& derived() const { return derived_; }
  // A write to the tensor, as a program would do it.
  void Touch(size_t tensor) {
    if (!data_[tensor]->empty()) (*data_[tensor])[0] ^= std::byte{1};
    ++versions_[tensor];
  }
  std::vector<std::byte>& data(size_t tensor) { return *data_[tensor]; }
  std::string& blob(size_t i) { return blobs_[i]; }

 private:
  uint64_t Scale() const { return static_cast<uint64_t>(tensors_[0].shape[0]) / 300; }

  void Add(std::string name, DType dtype, std::vector<int64_t> shape, Stability stability,
           Placement placement = Placement::kReplicated) {
    TensorRef t;
    t.name = std::move(name);
    t.dtype = dtype;
    t.shape = std::move(shape);
    t.bytes = ByteSize(dtype);
    for (int64_t d : t.shape) t.bytes *= static_cast<uint64_t>(d);
    auto data = std::make_shared<std::vector<std::byte>>(t.bytes);
    t.data = data->data();
    t.stability = stability;
    t.placement = placement;
    tensors_.push_back(t);
    data_.push_back(std::move(data));
    versions_.push_back(0);
  }

  const uint32_t rank_;
  const uint32_t world_size_;
  std::vector<TensorRef> tensors_;
  std::vector<std::shared_ptr<std::vector<std::byte>>> data_;
  std::vector<uint64_t> versions_;
  std::vector<std::string> blobs_;
  std::string derived_;
};

}  // namespace godwit::ckpt::testing
