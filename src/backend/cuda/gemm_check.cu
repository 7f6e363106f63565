#include <algorithm>

#include "backend/cuda/device/vec.cuh"
#include "backend/cuda/gemm_check.h"

namespace octet {
namespace device {
namespace {

constexpr int kThreads = 256;
// Rows of op(A) and columns of op(B) repeat after so many: primes, so that no tile of a kernel sees equal neighbours.
constexpr int kLinesA = 61, kLinesB = 59;
constexpr uint32_t kSaltA = 0x68bc21ebu, kSaltB = 0x02e5be93u;
constexpr float kBefore = 3.0f;  // what an accumulating product finds in C

// 1 or -1: element k of a line, without a visible pattern.
__device__ int sign_of(uint32_t line, uint32_t k, uint32_t salt) {
  uint32_t x = (line + 1) * 0x9e3779b1u ^ (k * 0x85ebca77u + salt);
  x = (x ^ (x >> 15)) * 0x2c1b3c6du;
  x = (x ^ (x >> 12)) * 0x297a2d39u;
  return ((x ^ (x >> 15)) & 1u) ? 1 : -1;
}

__device__ float bias_of(int64_t row) {
  return static_cast<float>(row % 5 - 2);
}

// Element k of a line is at k + line * stride, or at line + k * stride.
template <class T>
__global__ void fill_kernel(T* data, T one, T minus_one, bool k_is_inner, int64_t lines, int64_t depth,
                            int64_t stride, int period, uint32_t salt) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < lines * depth;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t line = k_is_inner ? i / depth : i % lines, k = k_is_inner ? i % depth : i / lines;
    const int sign = sign_of(static_cast<uint32_t>(line % period), static_cast<uint32_t>(k), salt);
    data[k_is_inner ? k + line * stride : line + k * stride] = sign > 0 ? one : minus_one;
  }
}

template <class T>
__global__ void fill_vector_kernel(T* data, int64_t count, bool bias, float value) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    data[i] = from_float<T>(bias ? bias_of(i) : value);
  }
}

// blockIdx.x: a line of A and one of B.
__global__ void __launch_bounds__(kThreads) sums_kernel(int* sums, int64_t depth) {
  const auto line_a = static_cast<uint32_t>(blockIdx.x / kLinesB), line_b = blockIdx.x % kLinesB;
  int sum = 0;
  for (int64_t k = threadIdx.x; k < depth; k += kThreads) {
    const auto at = static_cast<uint32_t>(k);
    sum += sign_of(line_a, at, kSaltA) * sign_of(line_b, at, kSaltB);
  }
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, sum);
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

template <class T>
__global__ void count_wrong_kernel(unsigned long long* wrong, const T* c, const int* sums, int64_t m,
                                   int64_t n, int64_t stride, bool bias, bool accumulate) {
  unsigned long long count = 0;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < m * n;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i % m, column = i / m;
    const auto sum = static_cast<float>(sums[row % kLinesA * kLinesB + column % kLinesB]);
    const float expected = sum + (bias ? bias_of(row) : 0.0f) + (accumulate ? kBefore : 0.0f);
    // NaN is not equal to anything.
    if (!(to_float(c[row + column * stride]) == to_float(from_float<T>(expected)))) ++count;
  }
  if (count > 0) atomicAdd(wrong, count);
}

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, 4096));
}

}  // namespace
}  // namespace device

namespace {

int64_t size_of_type(cudaDataType_t type) {
  return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1;
}

// A matrix in cuBLAS's own layout, with columns `stride` apart.
int64_t bytes_of(cudaDataType_t type, int64_t stride, int64_t columns) {
  return stride * columns * size_of_type(type);
}

// Enough for every mode: of scales of 128 values each in fp32, or of 32 in one byte.
int64_t scale_bytes(int64_t lines, int64_t depth) {
  return (lines + 127) / 128 * 128 * ((depth + 511) / 512 * 4) * 4;
}

void fill_operand(cudaDataType_t type, void* data, bool k_is_inner, int64_t lines, int64_t depth,
                  int64_t stride, int period, uint32_t salt, cudaStream_t stream) {
  const unsigned blocks = device::blocks_for(lines * depth);
  const auto fill = [&]<class T>(T one, T minus_one) {
    device::fill_kernel<<<blocks, device::kThreads, 0, stream>>>(
        static_cast<T*>(data), one, minus_one, k_is_inner, lines, depth, stride, period, salt);
  };
  switch (type) {
    case CUDA_R_32F:
      return fill(1.0f, -1.0f);
    case CUDA_R_16BF:
      return fill(uint16_t{0x3f80}, uint16_t{0xbf80});
    case CUDA_R_8F_E4M3:
      return fill(uint8_t{0x38}, uint8_t{0xb8});
    case CUDA_R_8F_E5M2:
      return fill(uint8_t{0x3c}, uint8_t{0xbc});
    default:
      fail("[gemm] operands of type {} cannot be checked", static_cast<int>(type));
  }
}

template <class Work>
void with_type(cudaDataType_t type, const Work& work) {
  if (type == CUDA_R_32F) {
    work(float{});
  } else {
    work(device::Bf16{});
  }
}

}  // namespace

std::unique_ptr<GemmCheck> GemmCheck::make(const GemmKey& key, cudaStream_t stream) {
  // Column-major, so the columns of a stored matrix are what is `stride` apart.
  const int64_t columns_a = key.transpose_a ? key.m : key.k, columns_b = key.transpose_b ? key.k : key.n;
  struct Part {
    int64_t bytes;
    int align;
    void* place = nullptr;
  };
  Part a{bytes_of(key.type_a, key.lda, columns_a), key.align_a};
  Part b{bytes_of(key.type_b, key.ldb, columns_b), key.align_b};
  Part c{bytes_of(key.type_c, key.ldc, key.n), key.align_c};
  Part bias{key.bias ? key.m * 4 : 0, 256};
  Part scale_a{key.scale_a ? scale_bytes(key.m, key.k) : 0, 256};
  Part scale_b{key.scale_b ? scale_bytes(key.n, key.k) : 0, 256};
  Part alpha_beta{2 * sizeof(float), 256};
  Part sums{device::kLinesA * device::kLinesB * sizeof(int), 256};
  Part wrong{sizeof(unsigned long long), 256};
  Part* const parts[] = {&a, &b, &c, &bias, &scale_a, &scale_b, &alpha_beta, &sums, &wrong};
  int64_t total = 0;
  for (const Part* part : parts) total += (part->bytes + 255) / 256 * 256 + 256;
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(total)) != cudaSuccess) {
    cudaGetLastError();  // it stays set otherwise
    return nullptr;
  }
  std::unique_ptr<GemmCheck> check(new GemmCheck(key, stream));
  check->memory_.reset(memory);
  auto* next = static_cast<std::byte*>(memory);
  for (Part* part : parts) {
    part->place = next + part->align % 256;  // no better aligned than in the run
    next += (part->bytes + 255) / 256 * 256 + 256;
  }
  cuda_check(cudaMemsetAsync(memory, 0xff, static_cast<size_t>(total), stream), "gemm check");
  fill_operand(key.type_a, a.place, key.transpose_a, key.m, key.k, key.lda, device::kLinesA, device::kSaltA,
               stream);
  fill_operand(key.type_b, b.place, !key.transpose_b, key.n, key.k, key.ldb, device::kLinesB, device::kSaltB,
               stream);
  if (key.bias) {
    with_type(*key.bias, [&]<class T>(T) {
      device::fill_vector_kernel<<<device::blocks_for(key.m), device::kThreads, 0, stream>>>(
          static_cast<T*>(bias.place), key.m, true, 0.0f);
    });
  }
  const auto fill_scales = [&](const Part& scale, const std::optional<cublasLtMatmulMatrixScale_t>& mode) {
    if (!mode) return;
    if (*mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0) {  // 127: 2^0
      cuda_check(cudaMemsetAsync(scale.place, 127, static_cast<size_t>(scale.bytes), stream), "gemm check");
      return;
    }
    const int64_t count = scale.bytes / 4;
    device::fill_vector_kernel<<<device::blocks_for(count), device::kThreads, 0, stream>>>(
        static_cast<float*>(scale.place), count, false, 1.0f);
  };
  fill_scales(scale_a, key.scale_a);
  fill_scales(scale_b, key.scale_b);
  const float factors[] = {1.0f, key.accumulate ? 1.0f : 0.0f};
  cuda_check(cudaMemcpyAsync(alpha_beta.place, factors, sizeof factors, cudaMemcpyHostToDevice, stream),
             "gemm check");
  device::sums_kernel<<<device::kLinesA * device::kLinesB, device::kThreads, 0, stream>>>(
      static_cast<int*>(sums.place), key.k);
  check_launch("gemm check");
  check->call_ = {.a = a.place,
                  .b = b.place,
                  .c = c.place,
                  .bias = bias.place,
                  .scale_a = scale_a.place,
                  .scale_b = scale_b.place,
                  .alpha_beta = static_cast<float*>(alpha_beta.place)};
  check->sums_ = static_cast<int*>(sums.place);
  check->wrong_ = static_cast<unsigned long long*>(wrong.place);
  return check;
}

void GemmCheck::prepare() {
  const int64_t count = key_.ldc * key_.n;
  if (key_.accumulate) {
    with_type(key_.type_c, [&]<class T>(T) {
      device::fill_vector_kernel<<<device::blocks_for(count), device::kThreads, 0, stream_>>>(
          static_cast<T*>(call_.c), count, false, device::kBefore);
    });
    check_launch("gemm check");
  } else {
    cuda_check(
        cudaMemsetAsync(call_.c, 0xff, static_cast<size_t>(count * size_of_type(key_.type_c)), stream_),
        "gemm check");
  }
  cuda_check(cudaMemsetAsync(wrong_, 0, sizeof *wrong_, stream_), "gemm check");
}

int64_t GemmCheck::wrong_elements() {
  with_type(key_.type_c, [&]<class T>(T) {
    device::count_wrong_kernel<<<device::blocks_for(key_.m * key_.n), device::kThreads, 0, stream_>>>(
        wrong_, static_cast<const T*>(call_.c), sums_, key_.m, key_.n, key_.ldc, key_.bias.has_value(),
        key_.accumulate);
  });
  check_launch("gemm check");
  unsigned long long count = 0;
  cuda_check(cudaMemcpyAsync(&count, wrong_, sizeof count, cudaMemcpyDeviceToHost, stream_), "gemm check");
  cuda_check(cudaStreamSynchronize(stream_), "gemm check");
  return static_cast<int64_t>(count);
}

}  // namespace octet
