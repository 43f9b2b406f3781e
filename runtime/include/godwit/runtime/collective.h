#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace godwit {

// Collective operations of one membership. Every rank calls the same operations in the same order,
// from one thread. Each blocks until all ranks take part, at most for the implementation's timeout.
// After any error the collective is unusable and its buffers hold anything: the membership is over.
class Collective {
 public:
  virtual ~Collective() = default;
  // values[i] becomes the sum over all ranks, the same bits on each.
  virtual Status AllReduceSum(std::span<float> values) = 0;
  // `bytes` becomes the root's. The same size on all ranks.
  virtual Status Broadcast(std::span<std::byte> bytes, uint32_t root) = 0;
  virtual Status Barrier() = 0;
};

// Of a world of one: nothing to do.
std::unique_ptr<Collective> MakeSingleCollective();

}  // namespace godwit
