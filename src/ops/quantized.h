#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "tensor/tensor.h"

namespace octet {

// FP8 operands as the GEMMs of Hopper and Blackwell read them: both operands K-major ("TN"), that is, each row of a
// matrix runs along the reduction. A tensor X (rows, cols) that takes part in several products is therefore kept as
// X (rowwise: reduced over its columns) and as its transpose (colwise: reduced over its rows).

// How many elements share a scale. "Row" runs along the reduction of the copy.
enum class Granularity : uint8_t {
  Tensor,    // one scale, fp32                                    scales: (1)
  Row128,    // 1 x 128 along the reduction, fp32                  scales: (rows, ceil(depth / 128))
  Block128,  // 128 x 128, fp32                                    scales: (ceil(rows / 128), ceil(depth / 128))
  Row32,     // 1 x 32 along the reduction, e8m0 (MXFP8)           scales: (rows, ceil(depth / 32))
};

constexpr int64_t block_depth(Granularity granularity) {
  return granularity == Granularity::Row32 ? 32 : 128;
}

// One K-major FP8 matrix: value[r][k] = codes[r][k] * scale of its block.
struct QuantizedMatrix {
  Tensor codes;  // (rows, depth) e4m3 | e5m2
  // Elements from one row of codes to the next; 0: depth. Larger for a part of a matrix, with Granularity::Tensor.
  int64_t stride = 0;
  Tensor scales;  // dequantisation factors, shape by granularity; absent for Tensor: then ScaleSlot has it
  const float* tensor_scale = nullptr;  // Granularity::Tensor: the slot's inverse scale, 16-byte aligned
  Granularity granularity = Granularity::Tensor;

  explicit operator bool() const { return static_cast<bool>(codes); }
  int64_t row_stride() const { return stride > 0 ? stride : codes.cols(); }
  // Rows [begin, begin + count) and columns [begin, begin + count); only for Granularity::Tensor.
  QuantizedMatrix rows(int64_t begin, int64_t count) const {
    return part(begin * row_stride(), count, codes.cols());
  }
  QuantizedMatrix columns(int64_t begin, int64_t count) const { return part(begin, codes.rows(), count); }

 private:
  QuantizedMatrix part(int64_t offset, int64_t part_rows, int64_t part_cols) const {
    require(granularity == Granularity::Tensor,
            "[fp8] a part of a matrix with block scales, expected one scale per tensor");
    QuantizedMatrix result = *this;
    result.stride = row_stride();
    result.codes = {static_cast<std::byte*>(codes.data) + offset, codes.dtype, {part_rows, part_cols}};
    return result;
  }
};

// The scale of one tensor and its amax, in memory that the device can reach. The inverse scales lie at 16-byte
// boundaries because cuBLASLt requires it. There are two scales because the two copies may have different formats.
struct alignas(64) ScaleSlot {
  float scale_rowwise = 1.0f;  // code = round(x * scale)
  float scale_colwise = 1.0f;
  float amax = 0.0f;  // largest |x| since update_delayed_scales cleared it; NaN counts as larger than Inf
  float amax_last = 0.0f;  // largest |x| of the last tensor quantised
  float inverse_rowwise = 1.0f;
  float unused0[3] = {};
  float inverse_colwise = 1.0f;
  float unused1[3] = {};
  // A device uses these while it quantises the tensor block by block. Zero between ops.
  uint32_t op_amax = 0;    // largest |x| so far: magnitude bits, which order NaN above Inf
  uint32_t op_blocks = 0;  // blocks that are done
  uint32_t unused2[2] = {};
};
static_assert(sizeof(ScaleSlot) == 64);

// Counts over the elements of the rowwise copy (or of the colwise copy if it is the only one), summed since they were
// cleared. Only every fourth row of a large rowwise copy counts, so that a step with statistics takes little longer.
constexpr int64_t kLargeForStats = int64_t{1} << 24;  // elements
constexpr int64_t stats_row_step(int64_t rows, int64_t cols, bool colwise) {
  return !colwise && rows * cols >= kLargeForStats ? 4 : 1;
}
struct QuantStats {
  double elements = 0;
  double saturated = 0;  // |x * scale| above the largest finite value by more than half its last step
  double flushed = 0;    // not zero before, zero after
  double signal = 0;     // sum of x^2 over finite x
  double noise = 0;      // sum of (dequantised - x)^2 over finite x
  double amax = 0;       // largest |x| of all elements; NaN counts as larger than Inf
};

// How to quantise a tensor. A recipe decides it when a run is planned; nothing changes it afterwards.
struct QuantizeRule {
  DType format_rowwise = DType::E4M3;
  DType format_colwise = DType::E4M3;
  Granularity granularity = Granularity::Tensor;
  int margin = 0;            // Tensor: scale = fp8_max / 2^margin / amax
  bool pow2_scales = false;  // Row128, Block128: scales rounded to powers of two (towards more headroom)
  bool delayed = false;      // Tensor: the scale comes from earlier steps, once there are some
};

// Where a tensor with one scale gets it from.
enum class ScaleFrom : uint8_t {
  Rule,    // the slot if the rule is delayed, otherwise the values
  Values,  // the slot's scale is set from the tensor's largest value
  Slot,    // the slot's scale is used unchanged
};

// Settings that change from pass to pass. All tensors of a ScaleTable share one.
struct QuantizePass {
  ScaleFrom scale = ScaleFrom::Rule;
  bool statistics = true;  // counts are added to the QuantStats of a tensor that has them
};
inline constexpr QuantizePass kScaleByRule{}, kScaleFromValues{ScaleFrom::Values, false},
    kScaleFromSlot{ScaleFrom::Slot, false};

// A tensor X (rows, cols) in FP8. Copies that no product reads are absent.
class Quantized {
 public:
  Quantized() = default;
  explicit Quantized(const QuantizeRule& rule) : rule_(rule) {}

  const QuantizeRule& rule() const { return rule_; }
  // Granularity::Tensor: the slot's scale is used unchanged; otherwise it is set from this tensor.
  bool keeps_scale() const {
    return pass->scale == ScaleFrom::Rule ? rule_.delayed : pass->scale == ScaleFrom::Slot;
  }
  // Where counts are added; null: nowhere.
  QuantStats* stats() const { return pass->statistics ? stats_memory : nullptr; }

  QuantizedMatrix rowwise;             // X   (rows, cols)
  QuantizedMatrix colwise;             // X^T (cols, rows)
  ScaleSlot* slot = nullptr;           // always present
  QuantStats* stats_memory = nullptr;  // optional
  const QuantizePass* pass = &kScaleByRule;

 private:
  QuantizeRule rule_;
};

// The result that an op passes to the next Linear. Without `fp8`, `dense` is the result. With it, the result is rounded to
// dense's dtype and quantised into the copies present in *fp8, bit-equal to a separate quantize() of that rounded
// result. Then `dense` is scratch with unspecified content afterwards, unless keep_dense is set.
struct Operand {
  Tensor dense;  // (rows, cols) fp32 | bf16
  Quantized* fp8 = nullptr;
  bool keep_dense = true;
  // Optional, (cols) fp32: the sums over rows are added. They are those of the result as rounded to dense's dtype, before
  // FP8, whether it is kept or not: the gradient of a bias, or sums of the logits' gradients.
  Tensor column_sum;
};

// How an element becomes a code, in fp32 with each operation rounded to nearest (nothing fused), so that all devices
// give the same bits:
//   Tensor: code = encode(x * scale), and dequantised = decode(code) * inverse with inverse = 1 / scale.
//   Blocks: code = encode(x * (1 / factor)), and dequantised = decode(code) * factor, factor by block_factor.
// amax is the maximum of the magnitude bits as integers, over elements of the high-precision source. The colwise copy
// of Row128 and Row32 has its own blocks, along the rows of X; that of Block128 has the transposed blocks.

// |x * scale| above this counts as saturated: the value would have been rounded beyond the largest finite one. (The
// largest value of a block may exceed that by a rounding error of the scale, which is no loss.)
constexpr float saturation_bound(DType format) {
  return format == DType::E5M2 ? 61440.0f : 464.0f;
}

// The dequantisation factor of a block. Rounded up to a power of two for Row32 (so that e8m0 holds it exactly) and if
// requested. 1 for a block whose amax is zero, Inf or NaN. Neither it nor its inverse is ever denormal.
inline float block_factor(float amax, DType format, bool pow2) {
  if (!(amax > 0.0f) || !(amax <= std::numeric_limits<float>::max())) return 1.0f;
  const float exact = amax / fp8_max(format);
  const float factor = exact < 0x1p-126f ? 0x1p-126f : exact;
  if (!pow2) return factor;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(factor) + 0x7FFFFF) & 0x7F800000);
}

// The rule for a per-tensor scale. An `amax` of zero, Inf or NaN keeps `previous`. The result and its inverse are
// finite and not denormal.
inline float scale_from_amax(float amax, DType format, int margin, float previous) {
  constexpr float kSmallest = 0x1p-126f, kLargest = 0x1p126f;
  if (!(amax > 0.0f) || !(amax <= std::numeric_limits<float>::max())) return previous;
  const float target = fp8_max(format) / static_cast<float>(uint64_t{1} << margin);
  const float scale = target / amax;
  return scale < kSmallest ? kSmallest : scale > kLargest ? kLargest : scale;
}

}  // namespace octet
