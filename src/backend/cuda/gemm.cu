#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/fp8.cuh"
#include "backend/cuda/device/tile_kernel.cuh"

// Row-major C (m, n) = A B is column-major C^T (n, m) = B^T A^T, so cuBLAS's A is our b and its B is our a.

namespace octet {
namespace device {
namespace {

constexpr int kThreads = 256;

// out[i][j] = value of row `row0 + i` of the codes, with the factor of its block (not that of the tensor).
template <class T>
__global__ void dequantize_kernel(T* out, const uint8_t* codes, const void* scales, Granularity granularity,
                                  bool e5m2, int64_t row0, int64_t rows, int64_t depth, int64_t stride) {
  const int64_t count = rows * depth;
  const int64_t blocks = granularity == Granularity::Row32 ? (depth + 31) / 32 : (depth + 127) / 128;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = row0 + i / depth, k = i % depth;
    float factor = 1.0f;
    if (granularity == Granularity::Row128) {
      factor = static_cast<const float*>(scales)[row * blocks + k / 128];
    } else if (granularity == Granularity::Block128) {
      factor = static_cast<const float*>(scales)[row / 128 * blocks + k / 128];
    } else if (granularity == Granularity::Row32) {
      const uint32_t exponent = static_cast<const uint8_t*>(scales)[row * blocks + k / 32];
      factor = exponent == 0 ? 0x1p-127f : __uint_as_float(exponent << 23);
    }
    out[i] = from_float<T>(decode1(codes[row * stride + k], e5m2) * factor);
  }
}

// {alpha, beta} of a product whose operands were not multiplied by their tensor scales.
__global__ void alpha_beta_kernel(float* out, const float* scale_a, const float* scale_b, float alpha,
                                  float beta) {
  out[0] = alpha * ((scale_a ? *scale_a : 1.0f) * (scale_b ? *scale_b : 1.0f));
  out[1] = beta;
}

// Scales in cuBLASLt's layout. Row128: (depth blocks, rows); Block128: rows of blocks padded to a multiple of 4.
struct ScaleArrangement {
  const float* from = nullptr;  // (rows, blocks); absent: nothing to do
  float* to = nullptr;
  unsigned rows = 0;
  unsigned blocks = 0;
  unsigned padded = 0;  // blocks of a row of `to`; Row128: 0
  unsigned count = 0;   // elements of `to`
};
struct ScaleArrangements {
  ScaleArrangement operands[2];
};

// Both operands of a product: blockIdx.y says which.
__global__ void __launch_bounds__(kThreads)
    arrange_scales_kernel(const __grid_constant__ ScaleArrangements arrangements) {
  const ScaleArrangement& x = arrangements.operands[blockIdx.y];
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < x.count; i += gridDim.x * kThreads) {
    if (x.padded == 0) {
      const unsigned block = i / x.rows, row = i - block * x.rows;
      x.to[i] = x.from[row * x.blocks + block];
    } else {
      const unsigned row = i / x.padded, block = i - row * x.padded;
      x.to[i] = block < x.blocks ? x.from[row * x.blocks + block] : 1.0f;
    }
  }
}

// The rows of c lie `stride` apart.
template <class T, class B>
__global__ void add_bias_kernel(T* c, const B* bias, int64_t rows, int64_t cols, int64_t stride) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < rows * cols;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    T& place = c[i / cols * stride + i % cols];
    place = from_float<T>(to_float(place) + to_float(bias[i % cols]));
  }
}

// out (rows, cols), with rows `stride` apart, = or += the product.
__global__ void round_into_kernel(Bf16* out, const float* product, int64_t rows, int64_t cols, int64_t stride,
                                  bool accumulate) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < rows * cols;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    Bf16* place = out + i / cols * stride + i % cols;
    *place = from_float<Bf16>(accumulate ? to_float(*place) + product[i] : product[i]);
  }
}

}  // namespace
}  // namespace device

namespace {

unsigned blocks_for(const CudaOps& ops, int64_t count) {
  return narrow<unsigned>(std::clamp<int64_t>(div_up(count, device::kThreads), 1, 16 * ops.sm_count()));
}

cudaDataType_t type_of(DType dtype, const char* op) {
  switch (dtype) {
    case DType::F32:
      return CUDA_R_32F;
    case DType::BF16:
      return CUDA_R_16BF;
    case DType::E4M3:
      return CUDA_R_8F_E4M3;
    case DType::E5M2:
      return CUDA_R_8F_E5M2;
    default:
      fail("[cuda] {}: operands of type {} are not supported", op, name_of(dtype));
  }
}

std::optional<cublasLtMatmulMatrixScale_t> scale_mode(Granularity granularity) {
  switch (granularity) {
    case Granularity::Tensor:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case Granularity::Row128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Granularity::Block128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case Granularity::Row32:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  }
  return {};
}

void check_bias(const Tensor& bias, int64_t n, const char* op) {
  require(!bias || bias.numel() == n, "[cuda] {}: the bias has {} elements, expected {}", op, bias.numel(),
          n);
}

}  // namespace

// Runs the product. If cuBLASLt cannot add the bias itself, a kernel adds it afterwards (bf16 is then rounded twice).
void CudaOps::run_gemm(GemmKey key, const GemmCall& call, Tensor bias) {
  scratch("gemm");  // makes the workspace if none was given
  GemmCall full = call;
  bool separate_bias = false;
  if (bias) {
    key.bias = type_of(bias.dtype, "gemm");
    full.bias = bias.data;
    if (alignment_of(bias.data) < 16 || !planner_->supported(key, kGemmWorkspace)) {
      key.bias.reset();
      full.bias = nullptr;
      separate_bias = true;
    }
  }
  planner_->run(key, full, workspace_, kGemmWorkspace);
  if (!separate_bias) return;
  const unsigned blocks = blocks_for(*this, key.m * key.n);
  dispatch_real("gemm", key.type_c == CUDA_R_32F ? DType::F32 : DType::BF16, [&]<class T>(T) {
    dispatch_real("gemm", bias.dtype, [&]<class B>(B) {
      device::add_bias_kernel<<<blocks, device::kThreads, 0, stream()>>>(
          static_cast<T*>(call.c), static_cast<const B*>(bias.data), key.n, key.m, key.ldc);
    });
  });
  check_launch("gemm bias");
}

void CudaOps::gemm(Matrix c, Matrix a, Matrix b, const GemmOptions& options) {
  const int64_t m = options.transpose_a ? a.cols : a.rows, k = options.transpose_a ? a.rows : a.cols;
  const int64_t n = options.transpose_b ? b.rows : b.cols, depth = options.transpose_b ? b.cols : b.rows;
  require(depth == k && c.rows == m && c.cols == n,
          "[cuda] gemm: c {} = a {}{} b {}{}: the shapes do not fit together", c.to_string(), a.to_string(),
          options.transpose_a ? " transposed" : "", b.to_string(), options.transpose_b ? " transposed" : "");
  require(a.dtype == b.dtype && (a.dtype == DType::F32 || a.dtype == DType::BF16) &&
              (c.dtype == a.dtype || c.dtype == DType::F32),
          "[cuda] gemm: {} = {} x {}, expected one real dtype, or fp32 for c", name_of(c.dtype),
          name_of(a.dtype), name_of(b.dtype));
  check_bias(options.bias, n, "gemm");
  require(k > 0, "[cuda] gemm: the inner dimension is 0");
  if (m == 0 || n == 0) return;
  const OpScope scope(profiler_, gemm_label("gemm", options.part, m, n, k));
  GemmKey key;
  key.m = n, key.n = m, key.k = k;
  key.lda = b.stride;
  key.ldb = a.stride;
  key.ldc = c.stride;
  key.transpose_a = options.transpose_b;
  key.transpose_b = options.transpose_a;
  key.type_a = key.type_b = type_of(a.dtype, "gemm");
  key.type_c = type_of(c.dtype, "gemm");
  key.accumulate = options.accumulate;
  key.align_a = alignment_of(b.data);
  key.align_b = alignment_of(a.data);
  key.align_c = alignment_of(c.data);
  run_gemm(key, {.a = b.data, .b = a.data, .c = c.data, .alpha = options.alpha}, options.bias);
}

GemmKey CudaOps::fp8_key(const Matrix& c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                         const GemmOptions& options) {
  GemmKey key;
  key.m = b.codes.rows(), key.n = a.codes.rows(), key.k = a.codes.cols();
  key.lda = b.row_stride();
  key.ldb = a.row_stride();
  key.ldc = c.stride;
  key.transpose_a = true;
  key.type_a = type_of(b.codes.dtype, "gemm_fp8");
  key.type_b = type_of(a.codes.dtype, "gemm_fp8");
  key.type_c = type_of(c.dtype, "gemm_fp8");
  key.accumulate = options.accumulate;
  key.scale_a = scale_mode(b.granularity);
  key.scale_b = scale_mode(a.granularity);
  key.fast_accumulation = options.fast_accumulation && a.granularity == Granularity::Tensor &&
                          b.granularity == Granularity::Tensor;
  key.align_a = alignment_of(b.codes.data);
  key.align_b = alignment_of(a.codes.data);
  key.align_c = alignment_of(c.data);
  return key;
}

bool CudaOps::runs_native(const GemmKey& key, Granularity a, Granularity b) {
  // The tensor cores need 16-byte rows. e8m0 scales need Blackwell and their own layout, which is not written yet.
  if (a == Granularity::Row32 || b == Granularity::Row32) return false;
  if (key.k % 16 != 0 || key.m % 16 != 0 || key.lda % 16 != 0 || key.ldb % 16 != 0 || key.align_a < 16 ||
      key.align_b < 16 || key.align_c < 16)
    return false;
  // Rows of scales must be whole vectors too.
  if ((a != Granularity::Tensor || b != Granularity::Tensor) && key.n % 8 != 0) return false;
  return planner_->supported(key, kGemmWorkspace);
}

std::string CudaOps::gemm_fp8_kind(int64_t m, int64_t n, int64_t k, Granularity granularity_a,
                                   Granularity granularity_b, DType format_a, DType format_b, DType out) {
  // Pointers as the memory plan would give them; nothing is read.
  void* aligned = reinterpret_cast<void*>(uintptr_t{256});
  const QuantizedMatrix a{.codes = {aligned, format_a, {m, k}}, .granularity = granularity_a};
  const QuantizedMatrix b{.codes = {aligned, format_b, {n, k}}, .granularity = granularity_b};
  const GemmKey key = fp8_key(Tensor{aligned, out, {m, n}}, a, b, {});
  return runs_native(key, granularity_a, granularity_b) ? "native" : "emulated";
}

void CudaOps::gemm_fp8(Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                       const GemmOptions& options) {
  constexpr const char* op = "gemm_fp8";
  require(is_fp8(a.codes.dtype) && is_fp8(b.codes.dtype), "[cuda] {}: operands are {} and {}, expected FP8",
          op, name_of(a.codes.dtype), name_of(b.codes.dtype));
  require(a.codes.dtype == DType::E4M3 || b.codes.dtype == DType::E4M3,
          "[cuda] {}: both operands are e5m2, expected at least one e4m3", op);
  require(c.dtype == DType::F32 || c.dtype == DType::BF16, "[cuda] {}: c is {}, expected fp32 or bf16", op,
          name_of(c.dtype));
  const int64_t m = a.codes.rows(), n = b.codes.rows(), k = a.codes.cols();
  require(b.codes.cols() == k && c.rows == m && c.cols == n && k > 0,
          "[cuda] {}: c {} = a {} b {} transposed: the shapes do not fit together", op, c.to_string(),
          a.codes.shape.to_string(), b.codes.shape.to_string());
  for (const QuantizedMatrix* x : {&a, &b}) {
    require(x->granularity != Granularity::Tensor || alignment_of(x->tensor_scale) >= 16,
            "[cuda] {}: a tensor scale is not 16-byte aligned", op);
    require(x->granularity != Granularity::Tensor || x->tensor_scale != nullptr,
            "[cuda] {}: a tensor scale is absent", op);
  }
  check_bias(options.bias, n, op);
  if (m == 0 || n == 0) return;
  const OpScope scope(profiler_, gemm_label(op, options.part, m, n, k));
  const GemmKey key = fp8_key(c, a, b, options);
  if (runs_native(key, a.granularity, b.granularity)) {
    gemm_fp8_native(key, c, a, b, options);
  } else {
    gemm_fp8_emulated(c, a, b, options);
  }
}

void CudaOps::gemm_fp8_native(const GemmKey& key, Matrix c, const QuantizedMatrix& a,
                              const QuantizedMatrix& b, const GemmOptions& options) {
  Scratch space = scratch("gemm_fp8");
  device::ScaleArrangements arrangements;
  unsigned most = 0;
  const auto scales = [&](const QuantizedMatrix& x, device::ScaleArrangement& arrangement) -> const float* {
    if (x.granularity == Granularity::Tensor) return x.tensor_scale;
    const bool row128 = x.granularity == Granularity::Row128;
    const int64_t blocks = div_up(x.codes.cols(), 128);
    const int64_t rows = row128 ? x.codes.rows() : div_up(x.codes.rows(), 128);
    const int64_t count = rows * (row128 ? blocks : round_up(blocks, 4));
    arrangement = {.from = static_cast<const float*>(x.scales.data),
                   .to = space.take<float>(count),
                   .rows = narrow<unsigned>(rows),
                   .blocks = narrow<unsigned>(blocks),
                   .padded = row128 ? 0 : narrow<unsigned>(round_up(blocks, 4)),
                   .count = narrow<unsigned>(count)};
    most = std::max(most, arrangement.count);
    return arrangement.to;
  };
  const GemmCall call{.a = b.codes.data,
                      .b = a.codes.data,
                      .c = c.data,
                      .scale_a = scales(b, arrangements.operands[0]),
                      .scale_b = scales(a, arrangements.operands[1]),
                      .alpha = options.alpha};
  if (most > 0) {
    const dim3 grid(blocks_for(*this, most), 2);
    device::arrange_scales_kernel<<<grid, device::kThreads, 0, stream()>>>(arrangements);
    check_launch("gemm_fp8 scales");
  }
  run_gemm(key, call, options.bias);
}

// Codes times block factors in bf16 where that is exact (one scale, or powers of two), in fp32 for Row128 and
// Block128; tensor scales multiply the product. Large operands go piece by piece.
void CudaOps::gemm_fp8_emulated(Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                                const GemmOptions& options) {
  constexpr const char* op = "gemm_fp8";
  const auto exact_in_bf16 = [](Granularity g) {
    return g == Granularity::Tensor || g == Granularity::Row32;
  };
  const DType type = exact_in_bf16(a.granularity) && exact_in_bf16(b.granularity) ? DType::BF16 : DType::F32;
  const int64_t m = a.codes.rows(), n = b.codes.rows(), k = a.codes.cols();
  const auto element = static_cast<int64_t>(size_of(type));
  Scratch space = scratch(op);
  auto* alpha_beta = space.take<float>(2);
  // cuBLASLt never writes bf16 results from fp32 operands, so the product goes through a separate fp32 matrix.
  const bool through_fp32 = type == DType::F32 && c.dtype == DType::BF16;
  const int64_t budget = std::min(space.left(), kEmulationScratch) - 4096;
  int64_t rows_a = m, rows_b = n;
  const auto bytes_needed = [&] {
    return (rows_a + rows_b) * k * element + (through_fp32 ? rows_a * rows_b * 4 : 0) + 1024;
  };
  while (bytes_needed() > budget && (rows_a > 64 || rows_b > 64)) {
    (rows_a > rows_b ? rows_a : rows_b) = round_up(std::max(rows_a, rows_b) / 2, 64);
  }
  auto* dense_a = space.take<std::byte>(rows_a * k * element);
  auto* dense_b = space.take<std::byte>(rows_b * k * element);
  auto* product = through_fp32 ? space.take<float>(rows_a * rows_b) : nullptr;

  const auto tensor_scale = [](const QuantizedMatrix& x) {
    return x.granularity == Granularity::Tensor ? x.tensor_scale : nullptr;
  };
  const bool accumulate = options.accumulate && !through_fp32;
  device::alpha_beta_kernel<<<1, 1, 0, stream()>>>(alpha_beta, tensor_scale(a), tensor_scale(b),
                                                   options.alpha, accumulate ? 1 : 0);
  check_launch(op);
  const auto dequantize = [&](std::byte* out, const QuantizedMatrix& x, int64_t row0, int64_t rows) {
    const bool e5m2 = x.codes.dtype == DType::E5M2;
    dispatch_real(op, type, [&]<class T>(T) {
      device::dequantize_kernel<<<blocks_for(*this, rows * k), device::kThreads, 0, stream()>>>(
          reinterpret_cast<T*>(out), static_cast<const uint8_t*>(x.codes.data), x.scales.data, x.granularity,
          e5m2, row0, rows, k, x.row_stride());
    });
    check_launch(op);
  };
  for (int64_t i = 0; i < m; i += rows_a) {
    const int64_t part_m = std::min(rows_a, m - i);
    dequantize(dense_a, a, i, part_m);
    for (int64_t j = 0; j < n; j += rows_b) {
      const int64_t part_n = std::min(rows_b, n - j);
      dequantize(dense_b, b, j, part_n);
      auto* out =
          static_cast<std::byte*>(c.data) + (i * c.stride + j) * static_cast<int64_t>(size_of(c.dtype));
      GemmKey key;
      key.m = part_n, key.n = part_m, key.k = k;
      key.lda = key.ldb = k;
      key.ldc = through_fp32 ? part_n : c.stride;
      key.transpose_a = true;
      key.type_a = key.type_b = type_of(type, op);
      key.type_c = through_fp32 ? CUDA_R_32F : type_of(c.dtype, op);
      key.accumulate = accumulate;
      key.device_alpha = true;
      key.align_c = through_fp32 ? 256 : alignment_of(out);
      planner_->run(key,
                    {.a = dense_b,
                     .b = dense_a,
                     .c = through_fp32 ? static_cast<void*>(product) : out,
                     .alpha_beta = alpha_beta},
                    workspace_, kGemmWorkspace);
      if (through_fp32) {
        device::round_into_kernel<<<blocks_for(*this, part_m * part_n), device::kThreads, 0, stream()>>>(
            reinterpret_cast<device::Bf16*>(out), product, part_m, part_n, c.stride, options.accumulate);
        check_launch(op);
      }
    }
  }
  if (!options.bias) return;
  dispatch_real(op, c.dtype, [&]<class T>(T) {
    dispatch_real(op, options.bias.dtype, [&]<class B>(B) {
      device::add_bias_kernel<<<blocks_for(*this, m * n), device::kThreads, 0, stream()>>>(
          static_cast<T*>(c.data), static_cast<const B*>(options.bias.data), m, n, c.stride);
    });
  });
  check_launch(op);
}

}  // namespace octet
