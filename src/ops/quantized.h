#pragma once

#include <cstdint>
#include <limits>

#include "tensor/tensor.h"

namespace octet {

// FP8 operands as the GEMMs of Hopper and Blackwell read them: both operands K-major ("TN"), that is, each row of a
// matrix runs along the reduction. A tensor X (rows, cols) that takes part in several products is therefore kept as
// X (rowwise: reduced over its columns) and as its transpose (colwise: reduced over its rows).

// How many elements share a scale. "Row" runs along the reduction of the copy it belongs to.
enum class Granularity : uint8_t {
  Tensor,    // one scale, fp32                                    scales: (1)
  Row128,    // 1 x 128 along the reduction, fp32                  scales: (rows, ceil(depth / 128))
  Block128,  // 128 x 128, fp32                                    scales: (ceil(rows / 128), ceil(depth / 128))
  Row32,     // 1 x 32 along the reduction, e8m0 (MXFP8)           scales: (rows, ceil(depth / 32))
};

constexpr int64_t block_depth(Granularity granularity) { return granularity == Granularity::Row32 ? 32 : 128; }

// One K-major FP8 matrix: value[r][k] = codes[r][k] * scale of its block.
struct QuantizedMatrix {
  Tensor codes;   // (rows, depth) e4m3 | e5m2
  Tensor scales;  // dequantisation factors, shape by granularity; absent for Tensor: then ScaleSlot has it
  const float* tensor_scale = nullptr;  // Granularity::Tensor: the slot's inverse scale, 16-byte aligned
  Granularity granularity = Granularity::Tensor;

  explicit operator bool() const { return static_cast<bool>(codes); }
};

// The scale of one tensor and what was seen of it, in memory the backend can reach. The inverse scales lie at
// 16-byte boundaries because cuBLASLt demands it. Two scales, because the two copies may have different formats.
struct alignas(64) ScaleSlot {
  float scale_rowwise = 1.0f;  // code = round(x * scale)
  float scale_colwise = 1.0f;
  float amax = 0.0f;      // largest |x| since the scales were last updated; NaN counts as larger than Inf
  float amax_last = 0.0f; // largest |x| of the last tensor quantised
  float inverse_rowwise = 1.0f;
  float unused0[3] = {};
  float inverse_colwise = 1.0f;
  float unused1[3] = {};
  float unused2[4] = {};  // a backend may count here during an op; zero between ops
};
static_assert(sizeof(ScaleSlot) == 64);

// Counts over the elements of the rowwise copy (colwise where there is no other), summed since they were cleared.
struct QuantStats {
  double elements = 0;
  double saturated = 0;      // |x * scale| above the largest finite value
  double flushed = 0;        // not zero before, zero after
  double signal = 0;         // sum of x^2
  double noise = 0;          // sum of (dequantised - x)^2
  double amax = 0;
};

// How to quantise a tensor: what a recipe decides for it, once, before the run.
struct QuantizeRule {
  DType format_rowwise = DType::E4M3;
  DType format_colwise = DType::E4M3;
  Granularity granularity = Granularity::Tensor;
  int margin = 0;            // Tensor: scale = fp8_max / 2^margin / amax
  bool pow2_scales = false;  // Row128, Block128: scales rounded to powers of two (towards more headroom)
  bool delayed = false;      // Tensor: use the slot's scale as it stands; otherwise set it from this very tensor
};

// A tensor X (rows, cols) in FP8. Copies that nobody reads are absent.
struct Quantized {
  QuantizedMatrix rowwise;  // X   (rows, cols)
  QuantizedMatrix colwise;  // X^T (cols, rows)
  QuantizeRule rule;
  ScaleSlot* slot = nullptr;    // always present
  QuantStats* stats = nullptr;  // when present, counts are added here
};

// What an op hands to the Linear after it. Without `fp8`, `dense` is the result. With it, the result, rounded to
// dense's dtype, is quantised into the copies present in *fp8, bit-equal to a separate quantize() of that rounded
// result; `dense` then is scratch whose content is unspecified afterwards, unless keep_dense is set.
struct Operand {
  Tensor dense;                // (rows, cols) fp32 | bf16
  Quantized* fp8 = nullptr;
  bool keep_dense = true;
  Tensor column_sum;           // optional (cols) fp32: the sums over rows are added (the gradient of a bias)
};

// The rule for a per-tensor scale. `amax` that is zero, Inf or NaN keeps `previous`; the result is finite and so is
// its inverse, neither denormal.
inline float scale_from_amax(float amax, DType format, int margin, float previous) {
  constexpr float kSmallest = 0x1p-126f, kLargest = 0x1p126f;
  if (!(amax > 0.0f) || !(amax <= std::numeric_limits<float>::max())) return previous;
  const float target = fp8_max(format) / static_cast<float>(uint64_t{1} << margin);
  const float scale = target / amax;
  return scale < kSmallest ? kSmallest : scale > kLargest ? kLargest : scale;
}

}  // namespace octet
