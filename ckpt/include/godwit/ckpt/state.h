#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace godwit::ckpt {

enum class DType : uint8_t {
  kF64 = 1,
  kF32 = 2,
  kBF16 = 3,
  kF16 = 4,
  kI64 = 5,
  kI32 = 6,
  kI16 = 7,
  kI8 = 8,
  kU8 = 9,
  kBool = 10,
};
size_t ByteSize(DType dtype);
std::string_view Name(DType dtype);  // "f32"

// When the training program changes a piece of state.
enum class Stability : uint8_t {
  kStable = 1,    // only inside Update: copied behind the next forward and backward
  kVolatile = 2,  // anywhere: copied at the step gate, on the training thread
};

// Who holds a piece of state.
enum class Placement : uint8_t {
  kReplicated = 1,  // the same bytes on every rank
  kPerRank = 2,     // each rank's own; at another world size only ranks that existed find theirs
};

// A shard's place in the global tensor; empty lists: the tensor is whole.
struct ShardSpec {
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offsets;
};

// One tensor of training state, as plain memory. `data` is dense, row-major and stays where it is
// for as long as it is tracked (a tensor that moves is a plan change: `data_now` tells).
struct TensorRef {
  std::string name;  // unique among all tracked state of the rank; any bytes
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: 0-d
  void* data = nullptr;
  uint64_t bytes = 0;  // ByteSize(dtype) * product(shape)
  Stability stability = Stability::kStable;
  Placement placement = Placement::kReplicated;
  ShardSpec shard;
  // A counter that grows with each write to the tensor; empty: not known. Called on the training
  // thread at the boundary and on the snapshot thread at the end of the copy.
  std::function<uint64_t()> version;
  // Where the tensor is now; empty: at `data`.
  std::function<void*()> data_now;
  // Keeps whatever owns `data` alive.
  std::shared_ptr<const void> owner;
};

// A piece of state that is bytes: a counter, a random generator, a sampler's cursor. Always
// volatile.
struct BlobRef {
  std::string name;
  Placement placement = Placement::kReplicated;
  // The current bytes. Called on the training thread at a boundary; at most max_bytes.
  std::function<std::string()> save;
  // Takes saved bytes back; errors name what is wrong with them.
  std::function<Status(std::string_view)> load;
  // At another world size, for a kPerRank blob whose rank did not exist: derive from
  // (step, rank, world size). Empty: keep what the program set up.
  std::function<void(uint64_t step, uint32_t rank, uint32_t world_size)> derive;
  uint64_t max_bytes = 64 * 1024;
};

// All tracked state of one rank, in the order of tracking.
struct StateList {
  std::vector<TensorRef> tensors;
  std::vector<BlobRef> blobs;
  // Why an adaptor could not describe its object, naming it; the first such. Validate returns it.
  Status error;
};

// INVALID_ARGUMENT naming the entry: an empty or repeated name, sizes that don't match, a null
// pointer with bytes, a shard outside its global shape.
Status Validate(const StateList& state);

}  // namespace godwit::ckpt
