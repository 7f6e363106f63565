#include <algorithm>

#include "backend/cuda/attention_flash.cuh"
#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/cuda_workspace.h"

// Attention of a few new tokens against cached keys and values. The time goes into reading the cache. So a block
// serves all query heads that share a key/value head, and long contexts are cut into splits so that one token keeps
// the whole GPU busy. A second kernel joins the splits, in their order.

namespace octet {
namespace device {
namespace {

constexpr int kDecodeWarps = kAttentionThreads / 32;

struct DecodeShape {
  int64_t qkv_stride;  // (H + 2K) * D
  int64_t capacity;    // positions of the cache
  int heads, kv_heads, group, depth;
  int pieces;  // blocks to a group
  int splits, split_length;
  float scale;
  int window;  // INT_MAX: none
};

// The result of a split for one query: the running softmax, and its sum of values, not yet divided by `total`.
struct Partials {
  float* largest;  // (N, H, splits)
  float* total;    // (N, H, splits)
  float* sums;     // (N, H, splits, D)
};

__device__ __forceinline__ float decode_load(float x) {
  return x;
}
__device__ __forceinline__ float decode_load(Bf16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ void decode_store(float* to, float x) {
  *to = x;
}
__device__ __forceinline__ void decode_store(Bf16* to, float x) {
  *to = __float2bfloat16_rn(x);
}

__device__ __forceinline__ float decode_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// e^(x - largest), and 0 where nothing was seen: both are -Inf then.
__device__ __forceinline__ float decode_weight(float x, float largest) {
  return x == -INFINITY ? 0.0f : expf(x - largest);
}

template <class T>
__global__ void append_kernel(DecodeShape shape, T* keys, T* values, const T* qkv, const int* sequences,
                              const int* positions) {
  const int64_t token = blockIdx.x;
  const int sequence = sequences[token];
  if (sequence < 0) return;
  const int64_t width = static_cast<int64_t>(shape.kv_heads) * shape.depth;
  const int64_t place = (sequence * shape.capacity + positions[token]) * width;
  const T* k = qkv + token * shape.qkv_stride + static_cast<int64_t>(shape.heads) * shape.depth;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    keys[place + c] = k[c];
    values[place + c] = k[width + c];
  }
}

// Grid: (token, key/value head, piece of the group) by splits. Warps take the keys of a split in turn; lane l holds
// the columns l, l + 32, ...
template <class T, int slots>
__global__ void decode_kernel(DecodeShape shape, Partials partials, const T* qkv, const T* keys,
                              const T* values, const int* sequences, const int* positions) {
  __shared__ float warp_largest[kDecodeWarps][kDecodeGroup], warp_total[kDecodeWarps][kDecodeGroup];
  extern __shared__ float warp_sums[];  // (warps, group, D)
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int64_t item = blockIdx.x;
  const int piece = static_cast<int>(item % shape.pieces);
  item /= shape.pieces;
  const int kv_head = static_cast<int>(item % shape.kv_heads);
  const int64_t token = item / shape.kv_heads;
  const int first_head = kv_head * shape.group + piece * kDecodeGroup;
  const int count = min(kDecodeGroup, shape.group - piece * kDecodeGroup);
  const int sequence = sequences[token];
  const int oldest = max(0, positions[token] + 1 - shape.window);
  const int begin = oldest + static_cast<int>(blockIdx.y) * shape.split_length;
  const int end = sequence < 0 ? begin : min(begin + shape.split_length, positions[token] + 1);

  float q[kDecodeGroup][slots], sums[kDecodeGroup][slots] = {};
  float largest[kDecodeGroup], total[kDecodeGroup] = {};
#pragma unroll
  for (int g = 0; g < kDecodeGroup; ++g) {
    largest[g] = -INFINITY;
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      const int c = slot * 32 + lane;
      q[g][slot] = 0.0f;
      if (g < count && c < shape.depth) {
        q[g][slot] =
            shape.scale *
            decode_load(
                qkv[token * shape.qkv_stride + static_cast<int64_t>(first_head + g) * shape.depth + c]);
      }
    }
  }

  const int64_t width = static_cast<int64_t>(shape.kv_heads) * shape.depth;
  const int64_t base = sequence * shape.capacity * width + static_cast<int64_t>(kv_head) * shape.depth;
  for (int key = begin + warp; key < end; key += kDecodeWarps) {
    const int64_t row = base + key * width;
    float k[slots], v[slots];
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      const int c = slot * 32 + lane;
      const bool inside = c < shape.depth;
      k[slot] = inside ? decode_load(keys[row + c]) : 0.0f;
      v[slot] = inside ? decode_load(values[row + c]) : 0.0f;
    }
#pragma unroll
    for (int g = 0; g < kDecodeGroup; ++g) {
      if (g >= count) break;
      float dot = 0.0f;
#pragma unroll
      for (int slot = 0; slot < slots; ++slot) dot += q[g][slot] * k[slot];
      const float score = decode_sum(dot);
      const float highest = fmaxf(largest[g], score);
      const float shrink = decode_weight(largest[g], highest), p = expf(score - highest);
      largest[g] = highest;
      total[g] = total[g] * shrink + p;
#pragma unroll
      for (int slot = 0; slot < slots; ++slot) sums[g][slot] = sums[g][slot] * shrink + p * v[slot];
    }
  }

#pragma unroll
  for (int g = 0; g < kDecodeGroup; ++g) {
    if (g >= count) break;
    if (lane == 0) {
      warp_largest[warp][g] = largest[g];
      warp_total[warp][g] = total[g];
    }
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      const int c = slot * 32 + lane;
      if (c < shape.depth) warp_sums[(warp * kDecodeGroup + g) * shape.depth + c] = sums[g][slot];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * shape.depth; i += kAttentionThreads) {
    const int g = i / shape.depth, c = i % shape.depth;
    float highest = -INFINITY;
    for (int w = 0; w < kDecodeWarps; ++w) highest = fmaxf(highest, warp_largest[w][g]);
    float sum = 0.0f, all = 0.0f;
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float weight = decode_weight(warp_largest[w][g], highest);
      sum += weight * warp_sums[(w * kDecodeGroup + g) * shape.depth + c];
      all += weight * warp_total[w][g];
    }
    const int64_t place = (token * shape.heads + first_head + g) * shape.splits + blockIdx.y;
    partials.sums[place * shape.depth + c] = sum;
    if (c == 0) {
      partials.largest[place] = highest;
      partials.total[place] = all;
    }
  }
}

// One block per query head of a token.
template <class T>
__global__ void join_kernel(DecodeShape shape, T* out, Partials partials) {
  const int64_t query = blockIdx.x, first = query * shape.splits;
  float highest = -INFINITY;
  for (int s = 0; s < shape.splits; ++s) highest = fmaxf(highest, partials.largest[first + s]);
  for (int c = static_cast<int>(threadIdx.x); c < shape.depth; c += static_cast<int>(blockDim.x)) {
    float sum = 0.0f, total = 0.0f;
    for (int s = 0; s < shape.splits; ++s) {
      const float weight = decode_weight(partials.largest[first + s], highest);
      sum += weight * partials.sums[(first + s) * shape.depth + c];
      total += weight * partials.total[first + s];
    }
    decode_store(out + query * shape.depth + c, total > 0.0f ? sum / total : 0.0f);
  }
}

}  // namespace
}  // namespace device

namespace {

constexpr int64_t kShortestSplit = 32;  // keys

int64_t pieces_of(const AttentionShape& shape) {
  return div_up(shape.heads / shape.kv_heads, int64_t{kDecodeGroup});
}

int64_t splits_of(int64_t tokens, int64_t longest, const AttentionShape& shape) {
  const int64_t blocks = tokens * shape.kv_heads * pieces_of(shape);
  return std::clamp<int64_t>(kDecodeBlocks / std::max<int64_t>(blocks, 1), 1,
                             std::max<int64_t>(longest / kShortestSplit, 1));
}

}  // namespace

void CudaOps::attention_decode(Tensor out, const KvCache& cache, Tensor qkv, Tensor sequences,
                               Tensor positions, int64_t longest, const AttentionShape& shape) {
  constexpr const char* op = "attention_decode";
  require(
      shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim > 0 &&
          shape.head_dim <= kPlainDepth,
      "[cuda] {}: {} query heads and {} key heads of width {}, expected a multiple and a width of at most {}",
      op, shape.heads, shape.kv_heads, shape.head_dim, kPlainDepth);
  const int64_t tokens = qkv.rows();
  require(qkv.cols() == shape.qkv_width() && out.rows() == tokens && out.cols() == shape.out_width() &&
              out.dtype == qkv.dtype,
          "[cuda] {}: qkv {} {} and out {} {} do not fit {} + 2 * {} heads of width {}", op,
          name_of(qkv.dtype), qkv.shape.to_string(), name_of(out.dtype), out.shape.to_string(), shape.heads,
          shape.kv_heads, shape.head_dim);
  require(sequences.dtype == DType::I32 && positions.dtype == DType::I32 && sequences.numel() == tokens &&
              positions.numel() == tokens,
          "[cuda] {}: {} sequences and {} positions for {} tokens, expected one int32 of both per token", op,
          sequences.numel(), positions.numel(), tokens);
  require(cache.keys.shape.rank() == 3 && cache.keys.cols() == shape.kv_heads * shape.head_dim &&
              cache.values.shape == cache.keys.shape && cache.keys.dtype == qkv.dtype &&
              cache.values.dtype == qkv.dtype && longest > 0 && longest <= cache.keys.shape[1],
          "[cuda] {}: keys {} {} and values {} {}, expected {} (sequences, at least {}, {})", op,
          name_of(cache.keys.dtype), cache.keys.shape.to_string(), name_of(cache.values.dtype),
          cache.values.shape.to_string(), name_of(qkv.dtype), longest, shape.kv_heads * shape.head_dim);
  if (tokens == 0) return;

  const int64_t seen = shape.window > 0 ? std::min(longest, shape.window) : longest;
  const int64_t splits = splits_of(tokens, seen, shape);
  const device::DecodeShape decode{.qkv_stride = shape.qkv_width(),
                                   .capacity = cache.keys.shape[1],
                                   .heads = narrow<int>(shape.heads),
                                   .kv_heads = narrow<int>(shape.kv_heads),
                                   .group = narrow<int>(shape.heads / shape.kv_heads),
                                   .depth = narrow<int>(shape.head_dim),
                                   .pieces = narrow<int>(pieces_of(shape)),
                                   .splits = narrow<int>(splits),
                                   .split_length = narrow<int>(div_up(seen, splits)),
                                   .scale = shape.scale,
                                   .window = seen < longest ? narrow<int>(shape.window) : INT_MAX};
  Scratch space = scratch(op);
  const int64_t queries = tokens * shape.heads;
  device::Partials partials;
  partials.largest = space.take<float>(queries * splits);
  partials.total = space.take<float>(queries * splits);
  partials.sums = space.take<float>(queries * splits * shape.head_dim);
  const auto* sequence = static_cast<const int*>(sequences.data);
  const auto* position = static_cast<const int*>(positions.data);
  dispatch_real(op, qkv.dtype, [&]<class T>(T) {
    const auto* in = static_cast<const T*>(qkv.data);
    auto* keys = static_cast<T*>(cache.keys.data);
    auto* values = static_cast<T*>(cache.values.data);
    device::append_kernel<<<narrow<unsigned>(tokens), device::kAttentionThreads, 0, stream()>>>(
        decode, keys, values, in, sequence, position);
    check_launch(op);
    const dim3 grid(narrow<unsigned>(tokens * shape.kv_heads * decode.pieces), narrow<unsigned>(splits));
    const size_t shared =
        sizeof(float) * device::kDecodeWarps * kDecodeGroup * static_cast<size_t>(shape.head_dim);
    const auto launch = [&](auto kernel) {
      kernel<<<grid, device::kAttentionThreads, shared, stream()>>>(decode, partials, in, keys, values,
                                                                    sequence, position);
      check_launch(op);
    };
    if (shape.head_dim <= 32) {
      launch(device::decode_kernel<T, 1>);
    } else if (shape.head_dim <= 64) {
      launch(device::decode_kernel<T, 2>);
    } else if (shape.head_dim <= 128) {
      launch(device::decode_kernel<T, 4>);
    } else {
      launch(device::decode_kernel<T, 8>);
    }
    device::join_kernel<<<narrow<unsigned>(queries), device::kAttentionThreads, 0, stream()>>>(
        decode, static_cast<T*>(out.data), partials);
    check_launch(op);
  });
}

}  // namespace octet
