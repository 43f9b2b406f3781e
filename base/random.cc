#include "base/random.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>

#include "base/check.h"

namespace godwit {

uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

Random::Random(uint64_t seed) {
  for (uint64_t& s : s_) {
    s = Mix64(seed);
    seed += 0x9e3779b97f4a7c15;
  }
}

uint64_t Random::Next() {
  const uint64_t result = std::rotl(s_[1] * 5, 7) * 9;
  const uint64_t t = s_[1] << 17;
  s_[2] ^= s_[0];
  s_[3] ^= s_[1];
  s_[1] ^= s_[2];
  s_[0] ^= s_[3];
  s_[2] ^= t;
  s_[3] = std::rotl(s_[3], 45);
  return result;
}

uint64_t Random::Below(uint64_t n) {
  GODWIT_CHECK(n > 0);
  // Numbers below 2^64 mod n are thrown away, so that what is left divides evenly.
  const uint64_t threshold = -n % n;
  while (true) {
    const uint64_t x = Next();
    if (x >= threshold) return x % n;
  }
}

int64_t Random::Between(int64_t low, int64_t high) {
  GODWIT_CHECK(low <= high);
  const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const uint64_t offset = span == UINT64_MAX ? Next() : Below(span + 1);
  return static_cast<int64_t>(static_cast<uint64_t>(low) + offset);
}

double Random::Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

uint64_t SystemRandom64() {
  uint64_t x = 0;
  ssize_t n;
  // Eight bytes come whole or not at all; EINTR only before the generator is seeded at boot.
  while ((n = getrandom(&x, sizeof(x), 0)) < 0 && errno == EINTR) {
  }
  GODWIT_CHECK(n == sizeof(x));
  return x;
}

}  // namespace godwit
