#include <algorithm>

#include "backend/cuda/device/tile_kernel.cuh"

// One warp per head of a token; a lane holds pairs of neighbouring elements, so that a warp reads whole lines.

namespace octet {
namespace device {
namespace {

constexpr int kHeadThreads = 256;
constexpr int kHeadWarps = kHeadThreads / 32;
constexpr int kHeadDepth = 256;  // the widest head

struct HeadShape {
  int64_t rows;
  int64_t width;  // (H + 2K) * D
  int heads, kv_heads, depth;
};

__device__ __forceinline__ float2 load_pair(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
__device__ __forceinline__ float2 load_pair(const Bf16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}
__device__ __forceinline__ void store_pair(float* to, float2 x) {
  *reinterpret_cast<float2*>(to) = x;
}
__device__ __forceinline__ void store_pair(Bf16* to, float2 x) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x.x, x.y);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// The pairs of a head that a lane holds; zero beyond its end.
template <int Slots>
struct HeadPairs {
  float2 at[Slots];

  __device__ __forceinline__ static int column(int slot) {
    return 2 * (32 * slot + static_cast<int>(threadIdx.x) % 32);
  }
  template <class T>
  __device__ __forceinline__ static HeadPairs load(const T* from, int depth) {
    HeadPairs pairs;
#pragma unroll
    for (int slot = 0; slot < Slots; ++slot) {
      pairs.at[slot] = column(slot) < depth ? load_pair(from + column(slot)) : float2{0.0f, 0.0f};
    }
    return pairs;
  }
  template <class T>
  __device__ __forceinline__ void store(T* to, int depth) const {
#pragma unroll
    for (int slot = 0; slot < Slots; ++slot) {
      if (column(slot) < depth) store_pair(to + column(slot), at[slot]);
    }
  }
};

template <class T, int Slots>
__global__ void __launch_bounds__(kHeadThreads)
    qk_norm_forward_kernel(HeadShape shape, T* qkv, T* raw, float* inv, const T* gain_q, const T* gain_k,
                           float epsilon) {
  const int heads = shape.heads + shape.kv_heads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32;
  if (item >= shape.rows * heads) return;
  const int64_t row = item / heads;
  const int head = static_cast<int>(item % heads);
  T* place = qkv + row * shape.width + static_cast<int64_t>(head) * shape.depth;
  auto x = HeadPairs<Slots>::load(place, shape.depth);
  const auto gain = HeadPairs<Slots>::load(head < shape.heads ? gain_q : gain_k, shape.depth);
  if (raw) x.store(raw + item * shape.depth, shape.depth);
  float squares = 0.0f;
#pragma unroll
  for (const float2& pair : x.at) squares += pair.x * pair.x + pair.y * pair.y;
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(shape.depth) + epsilon);
  if (inv && threadIdx.x % 32 == 0) inv[item] = scale;
#pragma unroll
  for (int slot = 0; slot < Slots; ++slot) {
    x.at[slot] = {x.at[slot].x * scale * gain.at[slot].x, x.at[slot].y * scale * gain.at[slot].y};
  }
  x.store(place, shape.depth);
}

// Grid: (blocks, queries and keys). Each block leaves one row of partial sums of its gain's gradient, added up in the
// same order every time. sums: (2, blocks, D).
template <class T, int Slots>
__global__ void __launch_bounds__(kHeadThreads)
    qk_norm_backward_kernel(HeadShape shape, T* dqkv, float* sums, const T* raw, const float* inv,
                            const T* gain_q, const T* gain_k) {
  __shared__ float2 partials[kHeadWarps][kHeadDepth / 2];
  const bool keys = blockIdx.y == 1;
  const int first_head = keys ? shape.heads : 0, count = keys ? shape.kv_heads : shape.heads;
  const int heads = shape.heads + shape.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto gain = HeadPairs<Slots>::load(keys ? gain_k : gain_q, shape.depth);
  HeadPairs<Slots> dgain{};
  const int64_t items = shape.rows * count, step = static_cast<int64_t>(gridDim.x) * kHeadWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kHeadWarps + warp; item < items; item += step) {
    const int64_t row = item / count;
    const int head = first_head + static_cast<int>(item % count);
    T* place = dqkv + row * shape.width + static_cast<int64_t>(head) * shape.depth;
    auto dy = HeadPairs<Slots>::load(place, shape.depth);
    auto normed = HeadPairs<Slots>::load(raw + (row * heads + head) * shape.depth, shape.depth);
    const float scale = inv[row * heads + head];
    float sum = 0.0f;
#pragma unroll
    for (int slot = 0; slot < Slots; ++slot) {
      float2& n = normed.at[slot];
      n = {n.x * scale, n.y * scale};
      const float2 d = dy.at[slot], g = gain.at[slot];
      sum += d.x * g.x * n.x + d.y * g.y * n.y;
      dgain.at[slot].x += d.x * n.x;
      dgain.at[slot].y += d.y * n.y;
    }
    const float mean = warp_sum(sum) / static_cast<float>(shape.depth);
#pragma unroll
    for (int slot = 0; slot < Slots; ++slot) {
      const float2 d = dy.at[slot], g = gain.at[slot], n = normed.at[slot];
      dy.at[slot] = {scale * (d.x * g.x - n.x * mean), scale * (d.y * g.y - n.y * mean)};
    }
    dy.store(place, shape.depth);
  }
#pragma unroll
  for (int slot = 0; slot < Slots; ++slot) partials[warp][32 * slot + lane] = dgain.at[slot];
  __syncthreads();
  float* out = sums + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * shape.depth;
  for (int pair = static_cast<int>(threadIdx.x); 2 * pair < shape.depth; pair += kHeadThreads) {
    float2 total = {0.0f, 0.0f};
    for (int w = 0; w < kHeadWarps; ++w) {
      total.x += partials[w][pair].x;
      total.y += partials[w][pair].y;
    }
    store_pair(out + 2 * pair, total);
  }
}

}  // namespace
}  // namespace device

namespace {

void check_heads(const char* op, const Tensor& qkv, const Tensor& raw, const Tensor& inv,
                 const Tensor& gain_q, const Tensor& gain_k, const AttentionShape& shape) {
  const int64_t rows = qkv.rows(), heads = shape.heads + shape.kv_heads;
  require(qkv.cols() == shape.qkv_width() && shape.head_dim % 2 == 0 && shape.head_dim <= device::kHeadDepth,
          "[cuda] {}: qkv {} does not fit {} + 2 * {} heads of an even width {} of at most {}", op,
          qkv.shape.to_string(), shape.heads, shape.kv_heads, shape.head_dim, device::kHeadDepth);
  require(!raw || (raw.dtype == qkv.dtype && raw.numel() == rows * heads * shape.head_dim),
          "[cuda] {}: raw is {} {}, expected {} ({}, {})", op, name_of(raw.dtype), raw.shape.to_string(),
          name_of(qkv.dtype), rows, heads * shape.head_dim);
  require(!inv || (inv.dtype == DType::F32 && inv.numel() == rows * heads),
          "[cuda] {}: inv is {} {}, expected fp32 ({}, {})", op, name_of(inv.dtype), inv.shape.to_string(),
          rows, heads);
  for (const Tensor* gain : {&gain_q, &gain_k}) {
    require(gain->dtype == qkv.dtype && gain->numel() == shape.head_dim,
            "[cuda] {}: a gain is {} {}, expected {} elements of {}", op, name_of(gain->dtype),
            gain->shape.to_string(), shape.head_dim, name_of(qkv.dtype));
  }
}

device::HeadShape head_shape(const Tensor& qkv, const AttentionShape& shape) {
  return {.rows = qkv.rows(),
          .width = qkv.cols(),
          .heads = narrow<int>(shape.heads),
          .kv_heads = narrow<int>(shape.kv_heads),
          .depth = narrow<int>(shape.head_dim)};
}

// Calls fn<Slots>() with as many pairs per lane as the head needs.
template <class Function>
void with_slots(int64_t depth, const Function& fn) {
  if (depth <= 64) return fn.template operator()<1>();
  if (depth <= 128) return fn.template operator()<2>();
  fn.template operator()<4>();
}

}  // namespace

void CudaOps::qk_norm_forward(Tensor qkv, Tensor raw, Tensor inv, Tensor gain_q, Tensor gain_k, float epsilon,
                              const AttentionShape& shape) {
  constexpr const char* op = "qk_norm_forward";
  const OpScope scope(profiler_, OpKind::Norm, op, 2 * bytes_of(qkv) + bytes_of(raw));
  check_heads(op, qkv, raw, inv, gain_q, gain_k, shape);
  if (qkv.rows() == 0) return;
  const int64_t blocks = div_up(qkv.rows() * (shape.heads + shape.kv_heads), device::kHeadWarps);
  dispatch_real(op, qkv.dtype, [&]<class T>(T) {
    with_slots(shape.head_dim, [&]<int Slots>() {
      device::qk_norm_forward_kernel<T, Slots>
          <<<narrow<unsigned>(blocks), device::kHeadThreads, 0, stream()>>>(
              head_shape(qkv, shape), static_cast<T*>(qkv.data), static_cast<T*>(raw.data),
              static_cast<float*>(inv.data), static_cast<const T*>(gain_q.data),
              static_cast<const T*>(gain_k.data), epsilon);
    });
  });
  check_launch(op);
}

void CudaOps::qk_norm_backward(const Operand& dqkv, Tensor dgain_q, Tensor dgain_k, Tensor raw, Tensor inv,
                               Tensor gain_q, Tensor gain_k, const AttentionShape& shape) {
  constexpr const char* op = "qk_norm_backward";
  const OpScope scope(profiler_, OpKind::Norm, op, 2 * bytes_of(dqkv.dense) + bytes_of(raw));
  const Tensor& dense = dqkv.dense;
  check_heads(op, dense, raw, inv, gain_q, gain_k, shape);
  require(raw && inv, "[cuda] {}: needs raw and inv of the forward pass", op);
  for (const Tensor& dgain : {dgain_q, dgain_k}) {
    require(!dgain || dgain.numel() == shape.head_dim,
            "[cuda] {}: the gradient of a gain has {} elements, expected {}", op, dgain.numel(),
            shape.head_dim);
  }
  if (dense.rows() == 0) return;
  // A few heads per warp, so that there are few partial sums.
  const int64_t blocks =
      std::clamp<int64_t>(div_up(dense.rows() * shape.heads, 4 * device::kHeadWarps), 1, 4 * sm_count());
  Scratch space = scratch(op);
  auto* sums = space.take<float>(2 * blocks * shape.head_dim);
  dispatch_real(op, dense.dtype, [&]<class T>(T) {
    with_slots(shape.head_dim, [&]<int Slots>() {
      device::qk_norm_backward_kernel<T, Slots>
          <<<dim3(narrow<unsigned>(blocks), 2), device::kHeadThreads, 0, stream()>>>(
              head_shape(dense, shape), static_cast<T*>(dense.data), sums, static_cast<const T*>(raw.data),
              static_cast<const float*>(inv.data), static_cast<const T*>(gain_q.data),
              static_cast<const T*>(gain_k.data));
    });
  });
  check_launch(op);
  // Frozen gains have no gradient: their partial sums are not added up.
  add_partials(
      *this,
      {{dgain_q, dgain_q ? sums : nullptr}, {dgain_k, dgain_k ? sums + blocks * shape.head_dim : nullptr}},
      blocks, shape.head_dim, op);
  if (dqkv.fp8) {
    quantize(dqkv);
  } else if (dqkv.column_sum) {
    add_column_sum(dqkv.column_sum, dense, {}, 1.0f);
  }
}

}  // namespace octet
