#pragma once

#include <climits>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/cuda_ops.h"

namespace octet::device {

// Sizes and strides that all kernels of the flash engine read. N tokens; strides in elements.
struct FlashShape {
  int64_t tokens;
  int64_t qkv_stride;  // (H + 2K) * D
  int64_t out_stride;  // H * D
  int heads;
  int group;  // query heads per key/value head
  int depth;  // D
  float scale;
  int window;  // INT_MAX: none

  // The first key that a query sees; positions count from the start of the document, or of the batch.
  __device__ __forceinline__ int first_key(int query, int start) const {
    return max(start, query - window + 1);
  }
  // Kernels without a window are compiled separately, because the test costs registers that they do not have.
  template <bool windowed>
  __device__ __forceinline__ bool hides(int key, int query) const {
    return key > query || (windowed && query - key >= window);
  }

  __device__ __forceinline__ int64_t key_column(int kv_head) const {
    return static_cast<int64_t>(heads + kv_head) * depth;
  }
  __device__ __forceinline__ int64_t value_column(int kv_head) const {
    return static_cast<int64_t>(heads + heads / group + kv_head) * depth;
  }
};

// Tokens outside all documents attend to nothing: these rows become zero.
struct OutsideRows {
  int64_t tokens = 0;
  Bf16* rows = nullptr;  // (tokens, width)
  int64_t width = 0;
  float* lse = nullptr;  // (lse_heads, tokens)
  int lse_heads = 0;
};

}  // namespace octet::device

namespace octet {

device::FlashShape flash_shape(const AttentionCase& attention);

// The tiles of all documents, heaviest first, in workspace: tile_bound of them, the last ones empty. Also
// clears the rows outside.
int64_t tile_bound(const AttentionCase& attention, int rows);
const device::AttentionTile* schedule_tiles(CudaOps& ops, Scratch& scratch, const AttentionCase& attention,
                                            int rows, const device::OutsideRows& outside);

// Tensor-core kernels: bf16, D a multiple of 8 up to 128, 16-byte aligned pointers.
void flash_forward(CudaOps& ops, const AttentionCase& attention, const AttentionForward& call);
void flash_backward(CudaOps& ops, const AttentionCase& attention, const AttentionBackward& call);

// One warp per query or key: fp32 and bf16, any D up to 256, any alignment.
constexpr int64_t kPlainDepth = 256;
void plain_forward(CudaOps& ops, const AttentionCase& attention, const AttentionForward& call);
void plain_backward(CudaOps& ops, const AttentionCase& attention, const AttentionBackward& call);

// delta (H, N) = sum over D of out * dout.
void attention_delta(CudaOps& ops, const AttentionCase& attention, const AttentionBackward& call,
                     float* delta);

}  // namespace octet
