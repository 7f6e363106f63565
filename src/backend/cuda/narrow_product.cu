#include "backend/cuda/narrow_product.cuh"

#include "backend/cuda/device/tile_kernel.cuh"

// Both narrow products on the host's side, and a plain kernel for what the fast ones do not take: fp32, and codes whose
// rows are not whole vectors.

namespace octet {
namespace device {
namespace {

// c(i, j) [+]= alpha * scale * sum over k of a(i, k) b(k, j), where a(i, k) is the code at a[i * a_i + k * a_k] and so
// on.
struct PlainProduct {
  const uint8_t* a;
  int64_t a_i, a_k;
  const void* b;
  int64_t b_k, b_j;
  void* c;
  int64_t c_i, c_j;
  int64_t m, n, k;
  float alpha;
  const float* scale;
  bool e5m2, accumulate;
};

constexpr int kPlainTile = 32, kPlainRows = 8;

template <class B, class C>
__global__ void __launch_bounds__(kPlainTile* kPlainRows) plain_product_kernel(const PlainProduct p) {
  __shared__ float a[kPlainTile][kPlainTile + 1], b[kPlainTile][kPlainTile + 1];
  const int x = static_cast<int>(threadIdx.x) % kPlainTile, y = static_cast<int>(threadIdx.x) / kPlainTile;
  const int64_t i0 = static_cast<int64_t>(blockIdx.x) * kPlainTile;
  const int64_t j0 = static_cast<int64_t>(blockIdx.y) * kPlainTile;
  float sums[kPlainTile / kPlainRows] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kPlainTile) {
#pragma unroll
    for (int step = 0; step < kPlainTile; step += kPlainRows) {
      // Neighbouring threads read neighbouring elements.
      const int other = y + step;
      const int i = p.a_k == 1 ? other : x, a_depth = p.a_k == 1 ? x : other;
      const int j = p.b_j == 1 ? x : other, b_depth = p.b_j == 1 ? other : x;
      const bool in_a = i0 + i < p.m && k0 + a_depth < p.k, in_b = j0 + j < p.n && k0 + b_depth < p.k;
      a[a_depth][i] = in_a ? decode1(p.a[(i0 + i) * p.a_i + (k0 + a_depth) * p.a_k], p.e5m2) : 0.0f;
      b[b_depth][j] =
          in_b ? to_float(static_cast<const B*>(p.b)[(k0 + b_depth) * p.b_k + (j0 + j) * p.b_j]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kPlainTile; ++depth) {
#pragma unroll
      for (int s = 0; s < kPlainTile / kPlainRows; ++s) sums[s] += a[depth][y + s * kPlainRows] * b[depth][x];
    }
    __syncthreads();
  }
  const float factor = __fmul_rn(p.alpha, *p.scale);
#pragma unroll
  for (int s = 0; s < kPlainTile / kPlainRows; ++s) {
    const int64_t i = i0 + y + s * kPlainRows, j = j0 + x;
    if (i >= p.m || j >= p.n) continue;
    C* to = static_cast<C*>(p.c) + i * p.c_i + j * p.c_j;
    const float value = __fmul_rn(sums[s], factor);
    *to = from_float<C>(p.accumulate ? to_float(*to) + value : value);
  }
}

// result [+]= factor * the sums of all parts, in their order. Element (i, j) of the result is that of row i and column
// j of the sums. Neighbouring threads read neighbouring sums.
template <class T>
__global__ void add_parts_kernel(T* result, int64_t result_i, int64_t result_j, const float* sums, int parts,
                                 int64_t rows, int64_t columns, int64_t pitch, int64_t part_size, float alpha,
                                 const float* scale, bool accumulate) {
  const float factor = __fmul_rn(alpha, *scale);
  for (int64_t at = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; at < rows * columns;
       at += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t i = at / columns, j = at % columns;
    float total = 0;
    for (int part = 0; part < parts; ++part) total += sums[part * part_size + i * pitch + j];
    const float value = __fmul_rn(total, factor);
    T* to = result + i * result_i + j * result_j;
    *to = from_float<T>(accumulate ? to_float(*to) + value : value);
  }
}

}  // namespace
}  // namespace device

namespace {

using device::NarrowArgs;
using device::NarrowSplit;

template <class B, class C>
void launch_plain(CudaOps& ops, const char* op, const device::PlainProduct& product) {
  const dim3 grid(narrow<unsigned>(div_up(product.m, device::kPlainTile)),
                  narrow<unsigned>(div_up(product.n, device::kPlainTile)));
  device::plain_product_kernel<B, C>
      <<<grid, device::kPlainTile * device::kPlainRows, 0, ops.stream()>>>(product);
  check_launch(op);
}

NarrowArgs make_args(const QuantizedMatrix& x, const Matrix& dense, const NarrowShape& shape,
                     const NarrowSplit& split, float* sums) {
  return {.codes = static_cast<const uint8_t*>(x.codes.data),
          .codes_stride = x.row_stride(),
          .dense = static_cast<const device::Bf16*>(dense.data),
          .dense_stride = dense.stride,
          .sums = sums,
          .rows = shape.rows,
          .depth = narrow<int>(shape.depth),
          .rank = narrow<int>(shape.rank),
          .parts = split.parts,
          .format = device::CodeFormat::of(x.codes.dtype == DType::E5M2)};
}

// Where an element of a result is.
struct Strides {
  int64_t i, j;
};

template <class T>
void add_parts(CudaOps& ops, void* result, Strides strides, const float* sums, const NarrowSplit& split,
               int64_t rows, int64_t columns, float alpha, const float* scale, bool accumulate) {
  constexpr int kThreads = 256;
  const auto blocks =
      narrow<unsigned>(std::clamp<int64_t>(div_up(rows * columns, kThreads), 1, 8 * ops.sm_count()));
  device::add_parts_kernel<T><<<blocks, kThreads, 0, ops.stream()>>>(
      static_cast<T*>(result), strides.i, strides.j, sums, split.parts, rows, columns, split.pitch,
      split.rows * split.pitch, alpha, scale, accumulate);
  check_launch("narrow product");
}

// Whether vectors of `bytes` can be read from every row of a bf16 matrix, beginning at its first column.
bool reads_vectors(const Matrix& x, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) == 0 &&
         2 * x.stride % bytes == 0;
}

// Whether the sums of one part fit.
bool fits(const NarrowSplit& split) {
  return 4 * split.elements() <= kCudaNarrowSums;
}

// Whether the fast kernel takes w as it is stored.
bool takes_dense(const Matrix& w, bool transposed, int64_t rank) {
  if (transposed) return reads_vectors(w, 16);
  const int64_t tiles = device::narrow_tiles(rank);
  return rank % tiles == 0 && reads_vectors(w, tiles == 8 ? 16 : tiles == 4 ? 8 : tiles == 1 ? 2 : 4);
}

OpLabel label(const char* op, const NarrowShape& shape, double bytes) {
  return {
      .kind = OpKind::Adapters, .op = op, .bytes = bytes, .m = shape.rows, .n = shape.rank, .k = shape.depth};
}

double bytes_of(const Matrix& x) {
  return static_cast<double>(x.rows * x.cols) * static_cast<double>(size_of(x.dtype));
}

}  // namespace

void CudaOps::narrow_product(Matrix u, const QuantizedMatrix& x, Matrix w, bool transpose_w, float alpha) {
  constexpr const char* op = "narrow_product";
  const NarrowShape shape = check_narrow_product(u, x, w, transpose_w);
  const OpScope scope(profiler_, label(op, shape, octet::bytes_of(x.codes) + bytes_of(u) + bytes_of(w)));
  if (shape.rows == 0 || shape.rank == 0) return;
  const NarrowSplit split =
      device::split_narrow_product(shape.rows, shape.depth, shape.rank, kCudaNarrowSums / 4);
  if (u.dtype == DType::BF16 && whole_vectors(x) && shape.depth > 0 && fits(split) &&
      takes_dense(w, transpose_w, shape.rank)) {
    auto* sums = scratch(op).take<float>(split.elements());
    device::launch_narrow_product(*this, make_args(x, w, shape, split, sums), transpose_w);
    add_parts<device::Bf16>(*this, u.data, {u.stride, 1}, sums, split, shape.rows, shape.rank, alpha,
                            x.tensor_scale, false);
    return;
  }
  const device::PlainProduct product{.a = static_cast<const uint8_t*>(x.codes.data),
                                     .a_i = x.row_stride(),
                                     .a_k = 1,
                                     .b = w.data,
                                     .b_k = transpose_w ? 1 : w.stride,
                                     .b_j = transpose_w ? w.stride : 1,
                                     .c = u.data,
                                     .c_i = u.stride,
                                     .c_j = 1,
                                     .m = shape.rows,
                                     .n = shape.rank,
                                     .k = shape.depth,
                                     .alpha = alpha,
                                     .scale = x.tensor_scale,
                                     .e5m2 = x.codes.dtype == DType::E5M2,
                                     .accumulate = false};
  dispatch_real(op, u.dtype, [&]<class T>(T) { launch_plain<T, T>(*this, op, product); });
}

void CudaOps::narrow_product_over_rows(Matrix g, const QuantizedMatrix& x, Matrix u, bool transpose_g,
                                       float alpha, bool accumulate) {
  constexpr const char* op = "narrow_product_over_rows";
  const NarrowShape shape = check_narrow_product_over_rows(g, x, u, transpose_g);
  const OpScope scope(profiler_, label(op, shape, octet::bytes_of(x.codes) + bytes_of(u) + bytes_of(g)));
  if (shape.depth == 0 || shape.rank == 0) return;
  const NarrowSplit split =
      device::split_narrow_product_over_rows(shape.rows, shape.depth, shape.rank, kCudaNarrowSums / 4);
  if (u.dtype == DType::BF16 && whole_vectors(x) && shape.rows > 0 && fits(split) && shape.rank % 2 == 0 &&
      reads_vectors(u, 4)) {
    auto* sums = scratch(op).take<float>(split.elements());
    device::launch_narrow_product_over_rows(*this, make_args(x, u, shape, split, sums));
    const Strides strides = transpose_g ? Strides{g.stride, 1} : Strides{1, g.stride};
    add_parts<float>(*this, g.data, strides, sums, split, shape.rank, shape.depth, alpha, x.tensor_scale,
                     accumulate);
    return;
  }
  const device::PlainProduct product{.a = static_cast<const uint8_t*>(x.codes.data),
                                     .a_i = 1,
                                     .a_k = x.row_stride(),
                                     .b = u.data,
                                     .b_k = u.stride,
                                     .b_j = 1,
                                     .c = g.data,
                                     .c_i = transpose_g ? 1 : g.stride,
                                     .c_j = transpose_g ? g.stride : 1,
                                     .m = shape.depth,
                                     .n = shape.rank,
                                     .k = shape.rows,
                                     .alpha = alpha,
                                     .scale = x.tensor_scale,
                                     .e5m2 = x.codes.dtype == DType::E5M2,
                                     .accumulate = accumulate};
  dispatch_real(op, u.dtype, [&]<class T>(T) { launch_plain<T, float>(*this, op, product); });
}

}  // namespace octet
