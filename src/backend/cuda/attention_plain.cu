#include <type_traits>

#include "backend/cuda/attention_flash.cuh"

// Attention with one warp per query (forward, dq) or per key (dk, dv), in fp32 arithmetic: for fp32 runs and for head
// widths that the tensor-core kernels do not support.

namespace octet {
namespace device {
namespace {

constexpr int kWarps = kAttentionThreads / 32;
constexpr int kSlots = static_cast<int>(kPlainDepth) / 32;  // elements of a row that one lane holds

__device__ __forceinline__ float plain_float(float x) {
  return x;
}
__device__ __forceinline__ float plain_float(Bf16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ void plain_store(float* to, float x) {
  *to = x;
}
__device__ __forceinline__ void plain_store(Bf16* to, float x) {
  *to = __float2bfloat16_rn(x);
}

__device__ __forceinline__ float plain_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}
__device__ __forceinline__ float plain_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}

// The document of a token: tokens [begin, end), or an empty range.
struct Range {
  int begin, end;
};
__device__ inline Range document_of(int token, const int* starts, int documents) {
  if (documents == 0 || token < starts[0] || token >= starts[documents]) return {0, 0};
  int low = 0, high = documents;  // starts[low] <= token < starts[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {starts[low], starts[high]};
}

// A row in shared memory, as floats, and the dot product of it with a row of a matrix.
template <class T>
__device__ __forceinline__ void stage_row(float* to, const T* from, int depth) {
  for (int c = lane_id(); c < depth; c += 32) to[c] = plain_float(from[c]);
}
template <class T>
__device__ __forceinline__ float dot(const float* staged, const T* row, int depth) {
  float total = 0.0f;
  for (int c = 0; c < depth; ++c) total += staged[c] * plain_float(row[c]);
  return total;
}

// sums += sum over lanes of weight(lane) * row `lane` of the matrix; lanes hold the columns.
template <class T>
__device__ __forceinline__ void add_rows(float (&sums)[kSlots], float weight, const T* rows, int64_t stride,
                                         int count, int depth) {
  for (int j = 0; j < count; ++j) {
    const float w = __shfl_sync(0xFFFFFFFFu, weight, j);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int c = slot * 32 + lane_id();
      if (c < depth) sums[slot] += w * plain_float(rows[j * stride + c]);
    }
  }
}
template <class T>
__device__ __forceinline__ void store_row(T* to, const float (&values)[kSlots], float factor, int depth) {
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int c = slot * 32 + lane_id();
    if (c < depth) plain_store(to + c, values[slot] * factor);
  }
}

template <class T>
__global__ void plain_forward_kernel(FlashShape shape, T* out, float* lse, const T* qkv, const int* starts,
                                     int documents) {
  __shared__ float staged[kWarps][kPlainDepth];
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_id();
  if (item >= shape.tokens * shape.heads) return;
  const int token = static_cast<int>(item / shape.heads), head = static_cast<int>(item % shape.heads);
  const int kv_head = head / shape.group;
  const Range range = document_of(token, starts, documents);
  float* q = staged[warp_id()];
  stage_row(q, qkv + token * shape.qkv_stride + static_cast<int64_t>(head) * shape.depth, shape.depth);
  __syncwarp();

  float o[kSlots] = {};
  float highest = -INFINITY, total = 0.0f;
  const int end = range.end > range.begin ? token + 1 : range.begin;
  for (int key = shape.first_key(token, range.begin); key < end; key += 32) {
    const int count = min(32, end - key);
    const T* rows = qkv + key * shape.qkv_stride;
    float x = -INFINITY;
    if (lane_id() < count) {
      x = shape.scale * dot(q, rows + lane_id() * shape.qkv_stride + shape.key_column(kv_head), shape.depth);
    }
    const float largest = fmaxf(highest, plain_max(x));
    const float shrink = expf(highest - largest);
    const float p = lane_id() < count ? expf(x - largest) : 0.0f;
    total = total * shrink + plain_sum(p);
    highest = largest;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) o[slot] *= shrink;
    add_rows(o, p, rows + shape.value_column(kv_head), shape.qkv_stride, count, shape.depth);
  }
  // A token outside all documents attends to nothing.
  const bool inside = range.end > range.begin;
  store_row(out + token * shape.out_stride + static_cast<int64_t>(head) * shape.depth, o,
            inside ? 1.0f / total : 0.0f, shape.depth);
  if (lane_id() == 0) lse[head * shape.tokens + token] = inside ? highest + logf(total) : 0.0f;
}

template <class T>
__global__ void plain_query_kernel(FlashShape shape, T* dqkv, const T* dout, const T* qkv, const float* lse,
                                   const float* delta, const int* starts, int documents) {
  __shared__ float staged[kWarps][2][kPlainDepth];
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_id();
  if (item >= shape.tokens * shape.heads) return;
  const int token = static_cast<int>(item / shape.heads), head = static_cast<int>(item % shape.heads);
  const int kv_head = head / shape.group;
  const int64_t column = static_cast<int64_t>(head) * shape.depth;
  const Range range = document_of(token, starts, documents);
  float* q = staged[warp_id()][0];
  float* d = staged[warp_id()][1];
  stage_row(q, qkv + token * shape.qkv_stride + column, shape.depth);
  stage_row(d, dout + token * shape.out_stride + column, shape.depth);
  __syncwarp();
  const float row_lse = lse[head * shape.tokens + token], row_delta = delta[head * shape.tokens + token];

  float dq[kSlots] = {};
  const int end = range.end > range.begin ? token + 1 : range.begin;
  for (int key = shape.first_key(token, range.begin); key < end; key += 32) {
    const int count = min(32, end - key);
    const T* rows = qkv + key * shape.qkv_stride;
    float ds = 0.0f;
    if (lane_id() < count) {
      const T* row = rows + lane_id() * shape.qkv_stride;
      const float p = expf(shape.scale * dot(q, row + shape.key_column(kv_head), shape.depth) - row_lse);
      ds = p * (dot(d, row + shape.value_column(kv_head), shape.depth) - row_delta);
    }
    add_rows(dq, ds, rows + shape.key_column(kv_head), shape.qkv_stride, count, shape.depth);
  }
  store_row(dqkv + token * shape.qkv_stride + column, dq, shape.scale, shape.depth);
}

template <class T>
__global__ void plain_key_kernel(FlashShape shape, T* dqkv, const T* dout, const T* qkv, const float* lse,
                                 const float* delta, const int* starts, int documents) {
  __shared__ float staged[kWarps][2][kPlainDepth];
  const int kv_heads = shape.heads / shape.group;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_id();
  if (item >= shape.tokens * kv_heads) return;
  const int token = static_cast<int>(item / kv_heads), kv_head = static_cast<int>(item % kv_heads);
  const Range range = document_of(token, starts, documents);
  float* k = staged[warp_id()][0];
  float* v = staged[warp_id()][1];
  stage_row(k, qkv + token * shape.qkv_stride + shape.key_column(kv_head), shape.depth);
  stage_row(v, qkv + token * shape.qkv_stride + shape.value_column(kv_head), shape.depth);
  __syncwarp();

  float dk[kSlots] = {}, dv[kSlots] = {};
  const int begin = range.end > range.begin ? token : range.end;
  const int end = range.end - begin > shape.window ? begin + shape.window : range.end;
  for (int head = kv_head * shape.group; head < (kv_head + 1) * shape.group; ++head) {
    const int64_t column = static_cast<int64_t>(head) * shape.depth;
    for (int query = begin; query < end; query += 32) {
      const int count = min(32, end - query);
      const T* q_rows = qkv + query * shape.qkv_stride + column;
      const T* d_rows = dout + query * shape.out_stride + column;
      float p = 0.0f, ds = 0.0f;
      if (lane_id() < count) {
        const int64_t place = head * shape.tokens + query + lane_id();
        p = expf(shape.scale * dot(k, q_rows + lane_id() * shape.qkv_stride, shape.depth) - lse[place]);
        ds = p * (dot(v, d_rows + lane_id() * shape.out_stride, shape.depth) - delta[place]);
      }
      add_rows(dk, ds, q_rows, shape.qkv_stride, count, shape.depth);
      add_rows(dv, p, d_rows, shape.out_stride, count, shape.depth);
    }
  }
  T* gradients = dqkv + token * shape.qkv_stride;
  store_row(gradients + shape.key_column(kv_head), dk, shape.scale, shape.depth);
  store_row(gradients + shape.value_column(kv_head), dv, 1.0f, shape.depth);
}

// Eight lanes per row of one head.
template <class T, bool vector>
__global__ void delta_kernel(FlashShape shape, float* delta, const T* out, const T* dout) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kAttentionThreads / 8) + threadIdx.x / 8;
  const bool valid = item < shape.tokens * shape.heads;  // all lanes stay for the shuffles
  const int64_t token = item / shape.heads, head = item % shape.heads;
  const int64_t place = token * shape.out_stride + head * shape.depth;
  float total = 0.0f;
  if (valid) {
    const int lane = static_cast<int>(threadIdx.x) % 8;
    if constexpr (vector) {
      for (int c = lane * 8; c < shape.depth; c += 64) {
        const uint4 a = *reinterpret_cast<const uint4*>(out + place + c);
        const uint4 b = *reinterpret_cast<const uint4*>(dout + place + c);
        const uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total += __uint_as_float(left[i] << 16) * __uint_as_float(right[i] << 16);
          total += __uint_as_float(left[i] & 0xFFFF0000u) * __uint_as_float(right[i] & 0xFFFF0000u);
        }
      }
    } else {
      for (int c = lane; c < shape.depth; c += 8)
        total += plain_float(out[place + c]) * plain_float(dout[place + c]);
    }
  }
  total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
  total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
  total += __shfl_xor_sync(0xFFFFFFFFu, total, 4);
  if (valid && threadIdx.x % 8 == 0) delta[head * shape.tokens + token] = total;
}

template <class Function>
void with_type(DType dtype, const Function& fn) {
  if (dtype == DType::F32) return fn(float{});
  return fn(Bf16{});
}

}  // namespace
}  // namespace device

namespace {

bool whole_chunks(const AttentionCase& attention, const AttentionBackward& call) {
  return attention.dtype == DType::BF16 && attention.shape.head_dim % 8 == 0 &&
         reinterpret_cast<uintptr_t>(call.out) % 16 == 0 && reinterpret_cast<uintptr_t>(call.dout) % 16 == 0;
}

}  // namespace

void attention_delta(CudaOps& ops, const AttentionCase& attention, const AttentionBackward& call,
                     float* delta) {
  const int64_t blocks = div_up(attention.tokens * attention.shape.heads, device::kAttentionThreads / 8);
  device::with_type(attention.dtype, [&]<class T>(T) {
    const auto launch = [&](auto kernel) {
      kernel<<<narrow<unsigned>(blocks), device::kAttentionThreads, 0, ops.stream()>>>(
          flash_shape(attention), delta, static_cast<const T*>(call.out), static_cast<const T*>(call.dout));
    };
    if constexpr (std::is_same_v<T, device::Bf16>) {
      if (whole_chunks(attention, call)) return launch(device::delta_kernel<T, true>);
    }
    launch(device::delta_kernel<T, false>);
  });
  check_launch("attention_backward");
}

void plain_forward(CudaOps& ops, const AttentionCase& attention, const AttentionForward& call) {
  const int64_t blocks = div_up(attention.tokens * attention.shape.heads, device::kWarps);
  device::with_type(attention.dtype, [&]<class T>(T) {
    device::plain_forward_kernel<<<narrow<unsigned>(blocks), device::kAttentionThreads, 0, ops.stream()>>>(
        flash_shape(attention), static_cast<T*>(call.out), call.lse, static_cast<const T*>(call.qkv),
        static_cast<const int*>(attention.documents.starts.data), narrow<int>(attention.documents.count));
  });
  check_launch("attention_forward");
}

void plain_backward(CudaOps& ops, const AttentionCase& attention, const AttentionBackward& call) {
  Scratch scratch = ops.scratch("attention_backward");
  auto* delta = scratch.take<float>(attention.shape.heads * attention.tokens);
  attention_delta(ops, attention, call, delta);
  device::with_type(attention.dtype, [&]<class T>(T) {
    const auto launch = [&](auto kernel, int64_t heads) {
      kernel<<<narrow<unsigned>(div_up(attention.tokens * heads, device::kWarps)), device::kAttentionThreads,
               0, ops.stream()>>>(flash_shape(attention), static_cast<T*>(call.dqkv),
                                  static_cast<const T*>(call.dout), static_cast<const T*>(call.qkv), call.lse,
                                  delta, static_cast<const int*>(attention.documents.starts.data),
                                  narrow<int>(attention.documents.count));
      check_launch("attention_backward");
    };
    launch(device::plain_query_kernel<T>, attention.shape.heads);
    launch(device::plain_key_kernel<T>, attention.shape.kv_heads);
  });
}

}  // namespace octet
