#pragma once

#include <array>
#include <cstdint>

namespace godwit {

// xoshiro256** seeded by splitmix64 (https://prng.di.unimi.it). The same seed gives the same
// numbers on every platform and in every version of Godwit. Not for secrets. Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed);
  uint64_t Next();
  // Uniform in [0, n), without bias. REQUIRES: n > 0.
  uint64_t Below(uint64_t n);
  // Uniform in [low, high]. REQUIRES: low <= high.
  int64_t Between(int64_t low, int64_t high);
  // Uniform in [0, 1), 53 bits.
  double Uniform();
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  std::array<uint64_t, 4> s_;
};

// One step of splitmix64: a good 64-bit mix of `x`.
uint64_t Mix64(uint64_t x);

// From the system's generator (getrandom): for seeds, ids and tokens.
uint64_t SystemRandom64();

}  // namespace godwit
