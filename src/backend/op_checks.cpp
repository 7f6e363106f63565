#include "backend/op_checks.h"

#include <algorithm>

#include "base/error.h"
#include "ops/sampling.h"

namespace octet {
namespace {

template <class View>
void require_real(const char* op, const char* what, const View& x) {
  require(x.dtype == DType::F32 || x.dtype == DType::BF16, "[{}] {} is {}, expected fp32 or bf16", op, what,
          name_of(x.dtype));
}

void require_codes(const char* op, const QuantizedMatrix& x) {
  require(is_fp8(x.codes.dtype), "[{}] x is {}, expected FP8", op, name_of(x.codes.dtype));
  require(x.granularity == Granularity::Tensor && x.tensor_scale != nullptr,
          "[{}] x has scales per block or none, expected one scale per tensor", op);
}

}  // namespace

NarrowShape check_narrow_product(const Matrix& u, const QuantizedMatrix& x, const Matrix& w,
                                 bool transpose_w) {
  constexpr const char* op = "narrow_product";
  require_codes(op, x);
  require_real(op, "u", u);
  require(w.dtype == u.dtype, "[{}] w is {}, expected {} as u", op, name_of(w.dtype), name_of(u.dtype));
  const NarrowShape shape{x.codes.rows(), x.codes.cols(), transpose_w ? w.rows : w.cols};
  require(u.rows == shape.rows && u.cols == shape.rank && (transpose_w ? w.cols : w.rows) == shape.depth,
          "[{}] u {} = x {} w {}{}: the shapes do not fit together", op, u.to_string(),
          x.codes.shape.to_string(), w.to_string(), transpose_w ? " transposed" : "");
  return shape;
}

NarrowShape check_narrow_product_over_rows(const Matrix& g, const QuantizedMatrix& x, const Matrix& u,
                                           bool transpose_g) {
  constexpr const char* op = "narrow_product_over_rows";
  require_codes(op, x);
  require_real(op, "u", u);
  require(g.dtype == DType::F32, "[{}] g is {}, expected fp32", op, name_of(g.dtype));
  const NarrowShape shape{x.codes.rows(), x.codes.cols(), u.cols};
  require(u.rows == shape.rows && (transpose_g ? g.cols : g.rows) == shape.depth &&
              (transpose_g ? g.rows : g.cols) == shape.rank,
          "[{}] g {}{} = x {} transposed times u {}: the shapes do not fit together", op, g.to_string(),
          transpose_g ? " transposed" : "", x.codes.shape.to_string(), u.to_string());
  return shape;
}

void check_dequantize(const Tensor& dense, const QuantizedMatrix& x) {
  constexpr const char* op = "dequantize";
  require_codes(op, x);
  require_real(op, "dense", dense);
  require(dense.rows() == x.codes.rows() && dense.cols() == x.codes.cols(),
          "[{}] {} from {}, expected one shape", op, dense.shape.to_string(), x.codes.shape.to_string());
}

void check_transpose_fp8(const QuantizedMatrix& to, const QuantizedMatrix& from) {
  constexpr const char* op = "transpose_fp8";
  require(size_of(from.codes.dtype) == 1 && to.codes.dtype == from.codes.dtype,
          "[{}] {} from {}, expected one dtype of one byte", op, name_of(to.codes.dtype),
          name_of(from.codes.dtype));
  const int64_t rows = from.codes.rows(), cols = from.codes.cols();
  require(to.codes.rows() == cols && to.codes.cols() == rows, "[{}] {} from {}, expected ({}, {})", op,
          to.codes.shape.to_string(), from.codes.shape.to_string(), cols, rows);
  require(to.granularity == from.granularity, "[{}] the two matrices differ in granularity", op);
  require(from.granularity == Granularity::Tensor || from.granularity == Granularity::Block128,
          "[{}] the scales are per row, expected one per tensor or per 128 x 128 block", op);
  if (from.granularity == Granularity::Tensor) return;
  require(is_fp8(from.codes.dtype), "[{}] scales per block for {}, expected FP8", op,
          name_of(from.codes.dtype));
  const int64_t blocks = div_up(rows, 128) * div_up(cols, 128);
  for (const QuantizedMatrix* x : {&to, &from}) {
    require(x->scales && x->scales.dtype == DType::F32 && x->scales.numel() == blocks,
            "[{}] the scales are {} {}, expected {} in fp32", op, name_of(x->scales.dtype),
            x->scales.shape.to_string(), blocks);
  }
}

void check_rows(const char* op, const Tensor& few, const Tensor& many, const Tensor& rows) {
  require(rows.dtype == DType::I32 && rows.numel() == few.rows(),
          "[{}] {} {} for {} rows, expected one int32 each", op, rows.numel(), name_of(rows.dtype),
          few.rows());
  require(few.dtype == many.dtype && few.cols() == many.cols(),
          "[{}] rows of {} {} and of {} {}, expected the same", op, few.cols(), name_of(few.dtype),
          many.cols(), name_of(many.dtype));
  const size_t bytes = size_of(few.dtype);
  require(bytes == 2 || bytes == 4, "[{}] the dtype is {}, expected one of 2 or 4 bytes", op,
          name_of(few.dtype));
}

void check_scaled_rows(const char* op, const Tensor& few, const Tensor& many, const Tensor& rows,
                       const Tensor& factors) {
  require(rows.dtype == DType::I32 && rows.numel() == few.rows() && factors.dtype == DType::F32 &&
              factors.numel() == few.rows(),
          "[{}] {} {} and {} {} for {} rows, expected one int32 and one fp32 each", op, rows.numel(),
          name_of(rows.dtype), factors.numel(), name_of(factors.dtype), few.rows());
  require_real(op, "the first matrix", few);
  require_real(op, "the second matrix", many);
  require(few.cols() == many.cols(), "[{}] rows of {} and of {}, expected the same", op, few.cols(),
          many.cols());
}

namespace {

void require_row(const char* op, const Tensor& row, const Tensor& matrix) {
  require(row.dtype == DType::F32 && row.numel() == matrix.cols(), "[{}] the row has {} {}, expected {} fp32",
          op, row.numel(), name_of(row.dtype), matrix.cols());
}

void require_column(const char* op, const Tensor& column, const Tensor& matrix) {
  require(!column || (column.dtype == DType::F32 && column.numel() == matrix.rows()),
          "[{}] the column has {} {}, expected {} fp32", op, column.numel(), name_of(column.dtype),
          matrix.rows());
}

}  // namespace

void check_outer(const Tensor& to, const Tensor& column, const Tensor& row) {
  constexpr const char* op = "add_outer";
  require_real(op, "the matrix", to);
  require_row(op, row, to);
  require_column(op, column, to);
}

void check_column_sum(const Tensor& column_sum, const Tensor& x, const Tensor& factors) {
  constexpr const char* op = "add_column_sum";
  require_real(op, "the matrix", x);
  require_real(op, "the sum", column_sum);
  require(column_sum.numel() == x.cols(), "[{}] the sum has {} elements, expected {}", op, column_sum.numel(),
          x.cols());
  require_column(op, factors, x);
}

void check_shift_rows(const Tensor& to, const Tensor& row, const Tensor& targets) {
  constexpr const char* op = "shift_rows";
  require_real(op, "the matrix", to);
  require_row(op, row, to);
  require(targets.dtype == DType::I32 && targets.numel() == to.rows(),
          "[{}] {} {} for {} rows, expected one int32 each", op, targets.numel(), name_of(targets.dtype),
          to.rows());
}

void check_cross_entropy(const Operand& gradient, const Tensor& correction, const Tensor& loss,
                         const Tensor& penalty, const Tensor& correct, const Tensor& logits,
                         const Tensor& targets, const LossOptions& options) {
  constexpr const char* op = "cross_entropy";
  const int64_t rows = logits.rows(), width = logits.cols();
  require(options.vocab > 0 && options.vocab <= width, "[{}] the vocabulary is {}, expected 1 to {}", op,
          options.vocab, width);
  require(loss.numel() == rows && targets.numel() == rows && (!penalty || penalty.numel() == rows) &&
              (!correct || correct.numel() == rows) && (!correction || correction.numel() == rows),
          "[{}] {} losses, {} targets for {} rows", op, loss.numel(), targets.numel(), rows);
  require(penalty || options.penalty == PenaltyKind::None, "[{}] there is a penalty but no output for it",
          op);
  const Tensor& factors = options.row_factors;
  require(!factors || (factors.dtype == DType::F32 && factors.numel() == rows),
          "[{}] {} {} row factors for {} rows, expected one fp32 each", op, factors.numel(),
          name_of(factors.dtype), rows);
  require(loss.dtype == DType::F32 && targets.dtype == DType::I32 &&
              (!correct || correct.dtype == DType::I32) && (!correction || correction.dtype == DType::F32),
          "[{}] losses and corrections are fp32, targets and correct int32", op);
  const Tensor& dlogits = gradient.dense;
  require(!dlogits || (dlogits.rows() == rows && dlogits.cols() == width && dlogits.dtype == logits.dtype),
          "[{}] the gradient is {} {}, expected {} {}", op, name_of(dlogits.dtype), dlogits.shape.to_string(),
          name_of(logits.dtype), logits.shape.to_string());
  require(!dlogits || (options.gradient_scale && options.gradient_scale.dtype == DType::F32),
          "[{}] a gradient is requested without its scale in fp32", op);
  const Quantized* fp8 = gradient.fp8;
  require(!correction || (dlogits && fp8 && fp8->keeps_scale() &&
                          fp8->rule().granularity == Granularity::Tensor && (fp8->rowwise || fp8->colwise)),
          "[{}] corrections are requested without FP8 codes of delayed scaling", op);
}

void check_choose_tokens(const Tensor& ids, const Tensor& logits, int64_t vocab, const Tensor& choices) {
  constexpr const char* op = "choose_tokens";
  const int64_t rows = logits.rows();
  require(logits.dtype == DType::F32 && ids.dtype == DType::I32 && ids.numel() == rows,
          "[{}] {} {} ids for {} rows of {} logits, expected one int32 per row of fp32", op, ids.numel(),
          name_of(ids.dtype), rows, name_of(logits.dtype));
  require(vocab > 0 && vocab <= std::min(logits.cols(), kMostChoices),
          "[{}] the vocabulary is {}, expected 1 to {}", op, vocab, std::min(logits.cols(), kMostChoices));
  require(choices.bytes() == rows * static_cast<int64_t>(sizeof(TokenChoice)) &&
              reinterpret_cast<uintptr_t>(choices.data) % alignof(TokenChoice) == 0,
          "[{}] {} bytes of choices for {} rows, expected {} each, at a multiple of {} bytes", op,
          choices.bytes(), rows, sizeof(TokenChoice), alignof(TokenChoice));
}

void check_dropout(const Tensor& y, const Tensor& x, float probability, const Tensor& seed, bool accumulate) {
  constexpr const char* op = "dropout";
  require_real(op, "x", x);
  require(y.dtype == x.dtype && y.numel() == x.numel(), "[{}] y is {} {}, expected {} {} as x", op,
          name_of(y.dtype), y.shape.to_string(), name_of(x.dtype), x.shape.to_string());
  require(probability >= 0.0f && probability < 1.0f,
          "[{}] the probability is {}, expected at least 0 and less than 1", op, probability);
  require(seed.dtype == DType::I32 && seed.numel() == 2, "[{}] the seed is {} {}, expected two int32", op,
          seed.numel(), name_of(seed.dtype));
  require(!accumulate || y.data != x.data, "[{}] y is x, expected another tensor to add to", op);
}

int64_t check_sum_parts(const Tensor& sum, const Tensor& parts) {
  const int64_t k = sum.numel(), n = k > 0 ? parts.numel() / k : 1;
  require(sum.dtype == DType::F32, "[sum_parts] the sum is {}, expected fp32", name_of(sum.dtype));
  require(parts.dtype == DType::F32 || parts.dtype == DType::BF16,
          "[sum_parts] the parts are {}, expected fp32 or bf16", name_of(parts.dtype));
  require(n >= 1 && parts.numel() == n * k,
          "[sum_parts] parts {} for a sum of {} elements, expected a multiple", parts.shape.to_string(), k);
  return n;
}

void check_convert(const Tensor& to, const Tensor& from) {
  require_real("convert", "the source", from);
  require_real("convert", "the result", to);
  require(to.numel() == from.numel(), "[convert] {} elements to {}, expected equally many", from.numel(),
          to.numel());
}

void check_combine_norms(const Tensor& result, const Tensor& records) {
  require(result.dtype == DType::F32 && result.numel() == 2,
          "[combine_norms] the result is {} {}, expected (2) fp32", name_of(result.dtype),
          result.shape.to_string());
  require(records.dtype == DType::F32 && records.shape.rank() == 2 && records.numel() > 0,
          "[combine_norms] records are {} {}, expected (ranks, values) fp32", name_of(records.dtype),
          records.shape.to_string());
}

void check_reciprocal_of_sum(const Tensor& scale, const Tensor& counts) {
  require(scale.dtype == DType::F32 && scale.numel() == 1 && counts.dtype == DType::I32 && counts.numel() > 0,
          "[reciprocal_of_sum] {} {} from {} {}, expected (1) fp32 from (ranks) int32", name_of(scale.dtype),
          scale.shape.to_string(), name_of(counts.dtype), counts.shape.to_string());
}

int64_t check_merge_slots(const Tensor& slots, const Tensor& gathered) {
  const int64_t bytes = slots.bytes(), ranks = bytes > 0 ? gathered.bytes() / bytes : 0;
  require(
      bytes % static_cast<int64_t>(sizeof(ScaleSlot)) == 0 && ranks >= 1 && gathered.bytes() == ranks * bytes,
      "[merge_slots] {} bytes of gathered slots for {} bytes of slots, expected a multiple", gathered.bytes(),
      bytes);
  for (const Tensor* x : {&slots, &gathered}) {
    require(reinterpret_cast<uintptr_t>(x->data) % alignof(ScaleSlot) == 0,
            "[merge_slots] the slots do not begin at a multiple of {} bytes", alignof(ScaleSlot));
  }
  return ranks;
}

void check_add_hash(const Tensor& hash, const Tensor& x) {
  require(hash.bytes() == 8, "[add_hash] the hash has {} bytes, expected 8", hash.bytes());
  require(reinterpret_cast<uintptr_t>(hash.data) % 8 == 0,
          "[add_hash] the hash does not begin at a multiple of 8 bytes");
  require(x || x.numel() == 0, "[add_hash] x is absent");
}

}  // namespace octet
