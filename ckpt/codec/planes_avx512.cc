#define GODWIT_PLANES_NAME "avx512"
#define GODWIT_PLANES_GETTER Avx512PlaneKernels
#include "ckpt/codec/planes_kernels.inc"
