#pragma once

#include "ops/ops.h"

// Checks of arguments of the ops for adapters and for ranks. All devices use them, so the messages are the same.

namespace octet {

// The sizes of both narrow products.
struct NarrowShape {
  int64_t rows = 0;   // N
  int64_t depth = 0;  // D
  int64_t rank = 0;   // R
};

NarrowShape check_narrow_product(const Matrix& u, const QuantizedMatrix& x, const Matrix& w,
                                 bool transpose_w);
NarrowShape check_narrow_product_over_rows(const Matrix& g, const QuantizedMatrix& x, const Matrix& u,
                                           bool transpose_g);
void check_dequantize(const Tensor& dense, const QuantizedMatrix& x);
void check_transpose_fp8(const QuantizedMatrix& to, const QuantizedMatrix& from);
// `few` are the rows in the order of `rows`, `many` the rows that `rows` counts.
void check_rows(const char* op, const Tensor& few, const Tensor& many, const Tensor& rows);
void check_scaled_rows(const char* op, const Tensor& few, const Tensor& many, const Tensor& rows,
                       const Tensor& factors);
void check_outer(const Tensor& to, const Tensor& column, const Tensor& row);
void check_column_sum(const Tensor& column_sum, const Tensor& x, const Tensor& factors);
void check_shift_rows(const Tensor& to, const Tensor& row, const Tensor& targets);
void check_cross_entropy(const Operand& gradient, const Tensor& correction, const Tensor& loss,
                         const Tensor& penalty, const Tensor& correct, const Tensor& logits,
                         const Tensor& targets, const LossOptions& options);
// Returns the number of parts.
int64_t check_sum_parts(const Tensor& sum, const Tensor& parts);
void check_convert(const Tensor& to, const Tensor& from);
void check_combine_norms(const Tensor& result, const Tensor& records);
void check_reciprocal_of_sum(const Tensor& scale, const Tensor& counts);
// Returns the number of ranks.
int64_t check_merge_slots(const Tensor& slots, const Tensor& gathered);
void check_add_hash(const Tensor& hash, const Tensor& x);
void check_choose_tokens(const Tensor& ids, const Tensor& logits, int64_t vocab, const Tensor& choices);
void check_dropout(const Tensor& y, const Tensor& x, float probability, const Tensor& seed, bool accumulate);

}  // namespace octet
