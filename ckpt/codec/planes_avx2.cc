#define GODWIT_PLANES_NAME "avx2"
#define GODWIT_PLANES_GETTER Avx2PlaneKernels
#include "ckpt/codec/planes_kernels.inc"
