#define GODWIT_PLANES_NAME "portable"
#define GODWIT_PLANES_GETTER PortablePlaneKernels
#include "ckpt/codec/planes_kernels.inc"
