#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/philox.h"
#include "support/op_case.h"
#include "tensor/split_fp32.h"

// What the files of the op table share.
namespace octet::test {

inline Fill normal(int64_t count, DType dtype, uint64_t seed, double scale = 1.0, double offset = 0.0) {
  return [=](int64_t most) { return random_values(std::min(count, most), dtype, seed, scale, offset); };
}

inline Fill fixed(std::vector<double> values) {
  return [values = std::move(values)](int64_t) { return values; };
}

inline Fill zeros(int64_t count) {
  return [=](int64_t most) { return std::vector<double>(static_cast<size_t>(std::min(count, most))); };
}

// The bytes of a struct, for tensors of U8.
template <class T>
Fill bytes_of(const T& value) {
  std::vector<double> bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes.push_back(reinterpret_cast<const uint8_t*>(&value)[i]);
  return fixed(std::move(bytes));
}

inline std::vector<double> ids(int64_t count, int64_t bound, uint64_t seed) {
  std::vector<double> result(static_cast<size_t>(count));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<double>(Philox(seed, 3).below(i, static_cast<uint64_t>(bound)));
  }
  return result;
}

inline size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

inline std::string named(std::string name, DType dtype, std::initializer_list<int64_t> numbers) {
  name += fmt::format("_{}", name_of(dtype));
  for (const int64_t number : numbers) name += fmt::format("_{}", number);
  return name;
}

inline OpCase start(std::string name, DType dtype, std::initializer_list<int64_t> numbers) {
  OpCase op;
  op.name = named(std::move(name), dtype, numbers);
  op.dtype = dtype;
  return op;
}

inline Operand operand(const Tensor& dense) {
  Operand result;
  result.dense = dense;
  return result;
}

// Of so many elements, read or written once.
inline double bytes_for(DType dtype, int64_t elements) {
  return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

// Marks a case that is too large for finite differences.
inline OpCase large(OpCase op) {
  op.name = fmt::format("large_{}", op.name);
  op.large = true;
  return op;
}

// ---- all cases of a group of ops, each in the file op_table_<group>.cpp ----

void add_dense(std::vector<OpCase>& table, DType dtype);
void add_attention(std::vector<OpCase>& table, DType dtype);
void add_loss(std::vector<OpCase>& table, DType dtype);
void add_fp8(std::vector<OpCase>& table);
void add_fused(std::vector<OpCase>& table);
void add_adamw(std::vector<OpCase>& table);
void add_adapters(std::vector<OpCase>& table);
void add_model_adapters(std::vector<OpCase>& table);
void add_ranks(std::vector<OpCase>& table);  // ops between ranks
void add_model_ranks(std::vector<OpCase>& table);
void add_sampling(std::vector<OpCase>& table);
void add_model_sampling(std::vector<OpCase>& table);

// ---- cases that are also built at the sizes of real models ----

struct GemmVariant {
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType c_dtype = DType::F32;
  float alpha = 1;
};
OpCase gemm_case(DType dtype, int64_t m, int64_t n, int64_t k, GemmVariant variant);
OpCase embedding_case(DType dtype, int64_t rows, int64_t width, int64_t vocab, bool has_positions);
OpCase norm_case(DType dtype, NormKind kind, int64_t rows, int64_t width, bool has_delta);
OpCase activation_case(DType dtype, Activation activation, int64_t rows, int64_t width);
// `weighted`: with factors of rows, some of which are negative.
OpCase cross_entropy_case(DType dtype, int64_t rows, int64_t vocab, int64_t width, PenaltyKind penalty,
                          std::string label, bool weighted = false);
OpCase column_sum_case(DType dtype, int64_t rows, int64_t width, bool with_factors);
OpCase sum_case(DType dtype, int64_t count);
OpCase grad_norm_case(DType dtype, int64_t rows, int64_t width);

OpCase rope_case(DType dtype, int64_t rows, AttentionShape shape);
OpCase qk_norm_case(DType dtype, int64_t rows, AttentionShape shape);
OpCase attention_case(DType dtype, AttentionShape shape, std::vector<int64_t> lengths, std::string label);
// `lengths` tokens are cached of each sequence; then `added` more of each are read at once, with a filler between.
OpCase decode_case(DType dtype, AttentionShape shape, std::vector<int64_t> lengths, int64_t added,
                   std::string label);

OpCase quantize_case(DType dtype, const QuantizeRule& rule, int64_t rows, int64_t cols);
struct Fp8GemmVariant {
  Granularity a = Granularity::Tensor, b = Granularity::Tensor;
  DType format_a = DType::E4M3, format_b = DType::E4M3;
  bool accumulate = false, bias = false;
  DType c_dtype = DType::BF16;
  float alpha = 1;
};
OpCase gemm_fp8_case(int64_t m, int64_t n, int64_t k, const Fp8GemmVariant& variant);
OpCase delayed_scales_case(int64_t count, int64_t length, bool most_recent, bool due);

// Ops that write the FP8 form of their result, next to the plain op and quantize().
struct FusedVariant {
  QuantizeRule rule;
  bool keep_dense = false;
};
OpCase fused_norm_case(DType dtype, NormKind kind, int64_t rows, int64_t width, const FusedVariant& variant);
OpCase fused_norm_backward_case(DType dtype, NormKind kind, int64_t rows, int64_t width,
                                const FusedVariant& variant);
OpCase fused_activation_case(DType dtype, Activation activation, int64_t rows, int64_t width,
                             const FusedVariant& variant);
OpCase fused_activation_backward_case(DType dtype, Activation activation, int64_t rows, int64_t width,
                                      const FusedVariant& variant);
OpCase fused_rope_case(DType dtype, int64_t rows, AttentionShape shape, const FusedVariant& variant);
OpCase fused_qk_norm_backward_case(DType dtype, int64_t rows, AttentionShape shape,
                                   const FusedVariant& variant);
OpCase fused_cross_entropy_case(DType dtype, int64_t rows, int64_t vocab, int64_t width,
                                const FusedVariant& variant, bool weighted = false);

struct AdamWVariant {
  DType weight = DType::BF16;
  RemainderKind remainder = RemainderKind::None;
  DType gradient = DType::F32, moments = DType::F32;
  bool fp8 = false;    // copies with delayed scales
  bool finite = true;  // otherwise the step is skipped
  float rate_scale = 1;
};
OpCase adamw_case(int64_t rows, int64_t cols, const AdamWVariant& variant);
// The adapters of all matrices of an 8B model with so many layers: few rows or columns each, two learning rates.
OpCase adapters_adamw_case(int64_t layers);

struct NarrowVariant {
  bool transpose_w = false, accumulate = false;
  bool strided = false;  // x, u and its gradient are columns of wider matrices
  DType format = DType::E4M3;
  int64_t wide = 0;    // columns of the matrix that x is a part of, if not strided
  bool timed = false;  // at a size for timing
};
OpCase narrow_product_case(DType dtype, int64_t rows, int64_t depth, int64_t rank,
                           const NarrowVariant& variant);
OpCase transpose_fp8_case(DType format, int64_t rows, int64_t cols, Granularity granularity);
OpCase gather_rows_case(DType dtype, int64_t count, int64_t rows, int64_t width);
OpCase dropout_case(DType dtype, int64_t rows, int64_t width, float probability, bool accumulate);

// "Tensor", "Row128", ...
const char* name_of(Granularity granularity);
std::string name_of(const QuantizeRule& rule);

}  // namespace octet::test
