#pragma once

// Marks functions of plain arithmetic that both kernels and the host call, so that both get the same bits.
#if defined(__CUDACC__)
#define OCTET_HOST_DEVICE __host__ __device__
#else
#define OCTET_HOST_DEVICE
#endif
