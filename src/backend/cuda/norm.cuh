#pragma once

#include <optional>

#include "backend/cuda/device/tile_kernel.cuh"

// Shared by the kernels of norm.cu (any type and width) and norm_strip.cu (bf16, fast).

namespace octet::device {

// An element of the result. Rounded as written, so that the bits are the same in every kernel that uses this. `centred`: x
// - mean for LayerNorm, x for RmsNorm, which has no bias.
template <bool layer_norm>
__device__ __forceinline__ float normed_value(float centred, float inv, float gain, float bias) {
  const float normed = __fmul_rn(centred, inv);
  return layer_norm ? fmaf(normed, gain, bias) : __fmul_rn(normed, gain);
}

template <class T>
struct NormForwardArgs {
  int64_t rows, width;
  const T* x;
  const T* delta;  // absent: the residual is x
  T* residual;
  const T* gain;
  const T* bias;  // may be absent
  float* mean;
  float* inv;
  float epsilon;
  T* y;  // absent: not stored
  CastTarget cast;
};

template <class T>
struct NormBackwardArgs {
  int64_t rows, width;
  T* dresidual;  // in place
  bool store;
  const T* dy;
  const T* residual;
  const T* gain;
  const float* mean;
  const float* inv;
  float* gain_sums;  // (blocks, width) partial sums, each when wanted
  float* bias_sums;
  float* column_sums;  // of the new dresidual
  CastTarget cast;
};

// A result with a scale per block: the other kernels find the statistics, then this computes the result and casts it.
void launch_norm_blocks(CudaOps& ops, NormKind kind, const NormForwardArgs<Bf16>& args,
                        const BlockTarget& blocks, Bf16* dense);
// Plans for it where it can; returns whether it can.
bool fuse_norm_blocks(OperandPlan<Bf16>& plan, const Operand& y, bool vector);

// Lets a kernel use all the shared memory of a block. Returns what is left next to its static variables. The limit is
// always the same, because a recorded graph may hold launches that need more than the current one.
int allow_all_shared(const void* kernel, const char* op);

// How a kernel of norm_strip.cu is to be launched.
struct StripLaunch {
  unsigned blocks = 0;
  unsigned threads = 0;
  int shared = 0;  // bytes
};

// Nothing if a row is too wide for these kernels. They require what vectors_fit checks.
std::optional<StripLaunch> plan_forward_strips(const CudaOps& ops, NormKind kind,
                                               const NormForwardArgs<Bf16>& args);
std::optional<StripLaunch> plan_backward_strips(const CudaOps& ops, NormKind kind, int64_t rows,
                                                int64_t width, bool colwise);
void launch_forward_strips(CudaOps& ops, NormKind kind, const NormForwardArgs<Bf16>& args,
                           const StripLaunch& launch);
void launch_backward_strips(CudaOps& ops, NormKind kind, const NormBackwardArgs<Bf16>& args,
                            const StripLaunch& launch);

}  // namespace octet::device
