#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/op_checks.h"
#include "base/hash.h"

// Ops for several ranks, bit-equal to those of the CPU.

namespace octet {
namespace device {
namespace {

constexpr int kThreads = 256;

// ---- sums of parts, conversions ----

// 16 bytes of a tensor that is read or written once. They are marked as such, so that they do not push out of the cache
// what products on another queue read again.
template <class T>
struct Once {
  static constexpr int kCount = 16 / sizeof(T);
  uint4 raw;
  __device__ __forceinline__ static Once load(const T* from) {
    return {__ldcs(reinterpret_cast<const uint4*>(from))};
  }
  __device__ __forceinline__ float at(int j) const {
    if constexpr (sizeof(T) == 2) return Pack8<Bf16>{raw}.at(j);
    return __uint_as_float(j == 0 ? raw.x : j == 1 ? raw.y : j == 2 ? raw.z : raw.w);
  }
};

template <int count>
__device__ __forceinline__ void store_once(float* to, const float (&x)[count]) {
#pragma unroll
  for (int j = 0; j < count; j += 4) {
    __stcs(reinterpret_cast<float4*>(to + j), make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]));
  }
}

// sum (k) = parts[0] + parts[1] + ..., k a multiple of a vector. `fixed` is the number of parts if it has a kernel of
// its own, in which a thread issues all its loads before the first addition; else 0.
template <class T, int fixed, bool accumulate>
__global__ void __launch_bounds__(kThreads, 2)
    sum_parts_kernel(float* sum, const T* parts, int64_t k, int64_t part_count) {
  constexpr int kCount = Once<T>::kCount;
  constexpr int kParts = fixed == 0 ? 1 : fixed;  // loaded ahead
  // Vectors per thread at once, so that about eight loads of 16 bytes are in flight.
  constexpr int kVectors = fixed == 8 ? 1 : fixed == 1 || fixed == 2 ? 4 : 2;
  const int64_t vectors = k / kCount, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t first = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; first < vectors;
       first += kVectors * stride) {
    Once<T> part[kVectors][kParts];
    float before[kVectors][kCount];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t place = (first + v * stride) * kCount;
      if (place >= k) break;
#pragma unroll
      for (int p = 0; p < kParts; ++p) part[v][p] = Once<T>::load(parts + p * k + place);
      if constexpr (accumulate) {
#pragma unroll
        for (int j = 0; j < kCount; j += 4) {
          const float4 four = __ldcs(reinterpret_cast<const float4*>(sum + place + j));
          before[v][j] = four.x, before[v][j + 1] = four.y, before[v][j + 2] = four.z;
          before[v][j + 3] = four.w;
        }
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t place = (first + v * stride) * kCount;
      if (place >= k) break;
      float total[kCount];
#pragma unroll
      for (int j = 0; j < kCount; ++j) total[j] = part[v][0].at(j);
#pragma unroll
      for (int p = 1; p < fixed; ++p) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) total[j] = __fadd_rn(total[j], part[v][p].at(j));
      }
      if constexpr (fixed == 0) {
#pragma unroll 4
        for (int64_t p = 1; p < part_count; ++p) {
          const Once<T> next = Once<T>::load(parts + p * k + place);
#pragma unroll
          for (int j = 0; j < kCount; ++j) total[j] = __fadd_rn(total[j], next.at(j));
        }
      }
      if constexpr (accumulate) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) total[j] = __fadd_rn(before[v][j], total[j]);
      }
      store_once(sum + place, total);
    }
  }
}

// The same for any k and any place in memory.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_parts_scalar_kernel(float* sum, const T* parts, int64_t k, int64_t part_count, bool accumulate) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < k;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    float total = to_float(parts[i]);
#pragma unroll 4
    for (int64_t p = 1; p < part_count; ++p) total = __fadd_rn(total, to_float(parts[p * k + i]));
    sum[i] = accumulate ? __fadd_rn(sum[i], total) : total;
  }
}

// to_bf16 of tensor/floats.h, which keeps the upper bits of a NaN. The conversion of the GPU has one NaN for all.
__device__ __forceinline__ Bf16 rounded(float x) {
  const Bf16 nearest = __float2bfloat16_rn(x);
  const auto nan = static_cast<unsigned short>((__float_as_uint(x) >> 16) | 0x40u);
  return isnan(x) ? __ushort_as_bfloat16(nan) : nearest;
}

__device__ __forceinline__ void convert_to(float& to, float x) {
  to = x;
}
__device__ __forceinline__ void convert_to(Bf16& to, float x) {
  to = rounded(x);
}

// Between two real dtypes, one of them bf16; four vectors of a thread at once.
template <class To, class From, bool vector>
__global__ void __launch_bounds__(kThreads) convert_kernel(To* to, const From* from, int64_t count) {
  constexpr int kVectors = 4;
  const int64_t stride = 8 * static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t first = 8 * (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x); first < count;
       first += kVectors * stride) {
    Pack8<From> in[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t place = first + v * stride;
      if (place < count) in[v] = load8<vector>(from + place, count - place);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t place = first + v * stride;
      if (place >= count) break;
      To out[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) convert_to(out[j], in[v].at(j));
      store8<vector>(to + place, Pack8<To>::of(out), count - place);
    }
  }
}

// ---- records of ranks ----

// One thread: there are as many records as ranks. The square of a float is exact in double.
__global__ void combine_norms_kernel(float* result, const float* records, int64_t count, int64_t stride,
                                     float max_norm) {
  double squares = 0.0;
  for (int64_t r = 0; r < count; ++r) {
    const auto norm = static_cast<double>(records[r * stride]);
    squares = __dadd_rn(squares, __dmul_rn(norm, norm));
  }
  const float norm = __double2float_rn(__dsqrt_rn(squares));
  result[0] = norm;
  result[1] = max_norm > 0.0f && norm > max_norm ? __fdiv_rn(max_norm, norm) : 1.0f;
}

__global__ void reciprocal_of_sum_kernel(float* scale, const int32_t* counts, int64_t count) {
  long long total = 0;
  for (int64_t i = 0; i < count; ++i) total += counts[i];
  *scale = total > 0 ? __fdiv_rn(1.0f, __ll2float_rn(total)) : 0.0f;
}

__device__ __forceinline__ float larger_as_bits(float a, float b) {
  return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
}

// A thread per slot. The rest of a slot stays as it is.
__global__ void merge_slots_kernel(ScaleSlot* slots, const ScaleSlot* gathered, int64_t count,
                                   int64_t ranks) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= count) return;
  float amax = gathered[i].amax, amax_last = gathered[i].amax_last, scale = 0.0f;
  const ScaleSlot* smallest = nullptr;
  for (int64_t r = 0; r < ranks; ++r) {
    const ScaleSlot* slot = gathered + r * count + i;
    const float last = slot->amax_last;
    amax = larger_as_bits(amax, slot->amax);
    amax_last = larger_as_bits(amax_last, last);
    const bool counts = last > 0.0f && last <= 3.402823466e+38f;
    if (!counts || (smallest && !(slot->scale_rowwise < scale))) continue;
    smallest = slot;
    scale = slot->scale_rowwise;
  }
  ScaleSlot* own = slots + i;
  own->amax = amax;
  own->amax_last = amax_last;
  if (!smallest) return;
  own->scale_rowwise = smallest->scale_rowwise;
  own->scale_colwise = smallest->scale_colwise;
  own->inverse_rowwise = smallest->inverse_rowwise;
  own->inverse_colwise = smallest->inverse_colwise;
}

// ---- hashes ----

// Word i of x, filled up with zeros behind the end. Without `vector`, x lies anywhere.
template <bool vector>
__device__ __forceinline__ uint64_t load_word(const uint8_t* x, int64_t bytes, int64_t i) {
  if (vector && 8 * i + 8 <= bytes) return __ldcs(reinterpret_cast<const unsigned long long*>(x) + i);
  uint64_t word = 0;
  for (int64_t j = 0; j < 8 && 8 * i + j < bytes; ++j) word |= static_cast<uint64_t>(x[8 * i + j]) << (8 * j);
  return word;
}

// The order of additions does not matter: they are modulo 2^64.
template <bool vector>
__global__ void __launch_bounds__(kThreads)
    add_hash_kernel(unsigned long long* hash, const uint8_t* x, int64_t bytes, uint64_t seed) {
  constexpr int kWarps = kThreads / 32;
  __shared__ unsigned long long shared[kWarps];
  const int64_t words = (bytes + 7) / 8, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  unsigned long long total = 0;
#pragma unroll 4
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < words; i += stride) {
    total += mix_bits(load_word<vector>(x, bytes, i) + mix_bits(seed + static_cast<uint64_t>(i)));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, offset);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) total += shared[warp];
  atomicAdd(hash, total);
}

}  // namespace
}  // namespace device

namespace {

// These ops run next to products on another queue, whose blocks wait while an SM is taken. Two blocks of 256 threads
// per SM have 64 KiB in flight there, which is enough for the whole bandwidth of the memory; more would only take room.
unsigned blocks_for(CudaOps& ops, int64_t threads) {
  return narrow<unsigned>(std::min<int64_t>(div_up(threads, device::kThreads), 2 * ops.sm_count()));
}

template <class T, int fixed>
void launch_sum_parts(CudaOps& ops, const Tensor& sum, const Tensor& parts, int64_t n, bool accumulate) {
  const int64_t k = sum.numel();
  const auto kernel =
      accumulate ? device::sum_parts_kernel<T, fixed, true> : device::sum_parts_kernel<T, fixed, false>;
  kernel<<<blocks_for(ops, k / device::Once<T>::kCount), device::kThreads, 0, ops.stream()>>>(
      static_cast<float*>(sum.data), static_cast<const T*>(parts.data), k, n);
}

}  // namespace

void CudaOps::sum_parts(Tensor sum, Tensor parts, bool accumulate) {
  constexpr const char* op = "sum_parts";
  const int64_t n = check_sum_parts(sum, parts), k = sum.numel();
  const OpScope scope(profiler_, OpKind::Other, op, (accumulate ? 2 : 1) * bytes_of(sum) + bytes_of(parts));
  if (k == 0) return;
  dispatch_real(op, parts.dtype, [&]<class T>(T) {
    // Every part begins at a multiple of k.
    const bool vector = k % device::Once<T>::kCount == 0 && aligned16(sum.data) && aligned16(parts.data);
    if (!vector) {
      device::sum_parts_scalar_kernel<T><<<blocks_for(*this, k), device::kThreads, 0, stream()>>>(
          static_cast<float*>(sum.data), static_cast<const T*>(parts.data), k, n, accumulate);
      return;
    }
    const auto launch = n == 1   ? launch_sum_parts<T, 1>
                        : n == 2 ? launch_sum_parts<T, 2>
                        : n == 4 ? launch_sum_parts<T, 4>
                        : n == 8 ? launch_sum_parts<T, 8>
                                 : launch_sum_parts<T, 0>;
    launch(*this, sum, parts, n, accumulate);
  });
  check_launch(op);
}

void CudaOps::convert(Tensor to, Tensor from) {
  constexpr const char* op = "convert";
  check_convert(to, from);
  const OpScope scope(profiler_, OpKind::Other, op, bytes_of(to, from));
  const int64_t count = to.numel();
  if (count == 0) return;
  if (to.dtype == from.dtype) {
    const auto bytes = static_cast<size_t>(to.bytes());
    cuda_check(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, stream()), op);
    return;
  }
  const bool vector = count % 8 == 0 && aligned16(to.data) && aligned16(from.data);
  const auto launch = [&]<class To, class From>(To, From) {
    const auto kernel =
        vector ? device::convert_kernel<To, From, true> : device::convert_kernel<To, From, false>;
    kernel<<<blocks_for(*this, div_up(count, 8)), device::kThreads, 0, stream()>>>(
        static_cast<To*>(to.data), static_cast<const From*>(from.data), count);
  };
  to.dtype == DType::BF16 ? launch(device::Bf16{}, float{}) : launch(float{}, device::Bf16{});
  check_launch(op);
}

void CudaOps::combine_norms(Tensor result, Tensor records, float max_norm) {
  constexpr const char* op = "combine_norms";
  check_combine_norms(result, records);
  const OpScope scope(profiler_, OpKind::GradNorm, op);
  device::combine_norms_kernel<<<1, 1, 0, stream()>>>(static_cast<float*>(result.data),
                                                      static_cast<const float*>(records.data), records.rows(),
                                                      records.cols(), max_norm);
  check_launch(op);
}

void CudaOps::reciprocal_of_sum(Tensor scale, Tensor counts) {
  constexpr const char* op = "reciprocal_of_sum";
  check_reciprocal_of_sum(scale, counts);
  const OpScope scope(profiler_, OpKind::Other, op);
  device::reciprocal_of_sum_kernel<<<1, 1, 0, stream()>>>(
      static_cast<float*>(scale.data), static_cast<const int32_t*>(counts.data), counts.numel());
  check_launch(op);
}

void CudaOps::merge_slots(Tensor slots, Tensor gathered) {
  constexpr const char* op = "merge_slots";
  const int64_t ranks = check_merge_slots(slots, gathered);
  const OpScope scope(profiler_, OpKind::Quantize, op, bytes_of(slots, gathered));
  const int64_t count = slots.bytes() / static_cast<int64_t>(sizeof(ScaleSlot));
  device::merge_slots_kernel<<<narrow<unsigned>(div_up(count, device::kThreads)), device::kThreads, 0,
                               stream()>>>(static_cast<ScaleSlot*>(slots.data),
                                           static_cast<const ScaleSlot*>(gathered.data), count, ranks);
  check_launch(op);
}

void CudaOps::add_hash(Tensor hash, Tensor x, uint64_t seed) {
  constexpr const char* op = "add_hash";
  check_add_hash(hash, x);
  const OpScope scope(profiler_, OpKind::Other, op, bytes_of(x));
  const int64_t bytes = x.bytes();
  if (bytes == 0) return;
  const bool vector = reinterpret_cast<uintptr_t>(x.data) % 8 == 0;
  const auto kernel = vector ? device::add_hash_kernel<true> : device::add_hash_kernel<false>;
  kernel<<<blocks_for(*this, div_up(bytes, 8)), device::kThreads, 0, stream()>>>(
      static_cast<unsigned long long*>(hash.data), static_cast<const uint8_t*>(x.data), bytes, seed);
  check_launch(op);
}

}  // namespace octet
