#include "ckpt/codec/planes.h"

namespace godwit::ckpt {

const PlaneKernels& PortablePlaneKernels();
#if defined(__x86_64__)
const PlaneKernels& Avx2PlaneKernels();
const PlaneKernels& Avx512PlaneKernels();
#endif

std::vector<const PlaneKernels*> AllPlaneKernels() {
  std::vector<const PlaneKernels*> all = {&PortablePlaneKernels()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) all.push_back(&Avx2PlaneKernels());
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    all.push_back(&Avx512PlaneKernels());
  }
#endif
  return all;
}

const PlaneKernels& BestPlaneKernels() {
  static const PlaneKernels* const best = AllPlaneKernels().back();
  return *best;
}

}  // namespace godwit::ckpt
