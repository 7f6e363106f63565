#include "model/linear_operands.h"

#include <algorithm>

namespace octet {
namespace {

QuantizedMatrix first_rows(const QuantizedMatrix& matrix, int64_t rows, bool rows_are_depth) {
  QuantizedMatrix result = matrix;
  if (!matrix) return result;
  const int64_t r = rows_are_depth ? matrix.codes.rows() : rows;
  const int64_t depth = rows_are_depth ? rows : matrix.codes.cols();
  result.codes.shape = {r, depth};
  if (matrix.scales) result.scales.shape = scales_shape(matrix.granularity, r, depth);
  return result;
}

// Up to here, products read codes. At rank 16 that is fast, at rank 64 dense products are faster (bench/RESULTS.md). The
// border between them is a choice.
constexpr int64_t kNarrowInputRanks = 48;     // of all parts
constexpr int64_t kNarrowGradientRanks = 32;  // of one part

}  // namespace

Quantized with_rows(const Quantized& quantized, int64_t rows) {
  Quantized result = quantized;
  result.rowwise = first_rows(quantized.rowwise, rows, false);
  result.colwise = first_rows(quantized.colwise, rows, true);
  return result;
}

LinearOperands::LinearOperands(const LinearSpec& spec, const Parameter& weight, LinearAdapter adapter)
    : name_(spec.site.name),
      in_(spec.site.in),
      out_(spec.site.out),
      forward8_(spec.fp8(Product::Forward)),
      dgrad8_(spec.fp8(Product::Dgrad)),
      wgrad8_(spec.fp8(Product::Wgrad)),
      trains_(weight.storage.trainable),
      has_dense_(weight.storage.has_dense_weight()),
      adapter_(std::move(adapter)) {}

bool LinearOperands::adapter_keeps_input_codes() const {
  return has_adapter() && !adapter_.drops && !adapter_.dense_input && forward8_ && !has_dense_ &&
         input_.rule().granularity == Granularity::Tensor;
}

bool LinearOperands::adapter_reads_input_codes() const {
  return adapter_keeps_input_codes() && adapter().ranks() <= kNarrowInputRanks;
}

bool LinearOperands::adapter_reads_gradient_codes() const {
  return has_adapter() && dgrad8_ && gradient_.rule().granularity == Granularity::Tensor &&
         std::ranges::all_of(adapter().parts(),
                             [](const LowRank::Part& part) { return part.rank <= kNarrowGradientRanks; });
}

void LinearOperands::plan_input(ScaleTable& scales, const QuantizeRule& rule) {
  input_ = Quantized(rule);
  scales.add(name_ + ".input", input_);
}

void LinearOperands::plan_gradient(ScaleTable& scales, const QuantizeRule& rule) {
  gradient_ = Quantized(rule);
  scales.add(name_ + ".gradient", gradient_);
}

void LinearOperands::attach_scratch(BufferPlanner& planner, const QuantizedScratch& scratch, int64_t tokens) {
  if (forward8_ && !adapter_keeps_input_codes()) {
    alias_matrix(planner, input_.rowwise, scratch.input_rowwise, scratch.input_rowwise_scales,
                 input_.rule().format_rowwise, input_.rule().granularity, tokens, in_);
  }
  if (dgrad8_ && scratch.gradient_rowwise.numel() > 0) {
    alias_matrix(planner, gradient_.rowwise, scratch.gradient_rowwise, scratch.gradient_rowwise_scales,
                 gradient_.rule().format_rowwise, gradient_.rule().granularity, tokens, out_);
  }
  if (input_needed_colwise() && scratch.gradient_colwise.numel() > 0) {
    alias_matrix(planner, gradient_.colwise, scratch.gradient_colwise, scratch.gradient_colwise_scales,
                 gradient_.rule().format_colwise, gradient_.rule().granularity, out_, tokens);
  }
}

void LinearOperands::attach_input(BufferPlanner& planner, int64_t tokens, Lifetime lifetime,
                                  const QuantizedBuffers* shared) {
  const QuantizeRule& rule = input_.rule();
  const auto place = [&](QuantizedMatrix& matrix, const char* name, DType format, int64_t rows,
                         int64_t depth) {
    if (shared) {
      alias_matrix(planner, matrix, shared->codes, shared->scales, format, rule.granularity, rows, depth);
    } else {
      plan_matrix(planner, matrix, name_ + name, format, rule.granularity, rows, depth,
                  MemoryCategory::Activations, lifetime);
    }
  };
  if (input_needed_colwise()) {
    place(input_.colwise, ".input.fp8_transposed", rule.format_colwise, in_, tokens);
  } else if (adapter_keeps_input_codes()) {
    place(input_.rowwise, ".input.fp8", rule.format_rowwise, tokens, in_);
  }
}

void LinearOperands::attach_adapter(BufferPlanner& planner, int64_t tokens, DType dtype, Lifetime lifetime,
                                    const AdapterScratch& scratch) {
  if (!has_adapter()) return;
  planner.add(adapter_.low_rank.hidden(), name_ + ".lora_hidden", dtype, {tokens, adapter_.low_rank.ranks()},
              MemoryCategory::Activations, lifetime);
  adapter_.low_rank.use(&scratch);
}

void LinearOperands::attach_decoding(BufferPlanner& planner, const QuantizedScratch& scratch, int64_t tokens,
                                     DType dtype, const AdapterScratch& adapters) {
  attach_adapter(planner, tokens, dtype, Lifetime::always(), adapters);
  if (has_dense_) return;
  alias_matrix(planner, input_.rowwise, scratch.input_rowwise, scratch.input_rowwise_scales,
               input_.rule().format_rowwise, input_.rule().granularity, tokens, in_);
  input_.colwise = {};
  input_.pass = &kScaleFromValues;
}

void LinearOperands::set_decoding_rows(int64_t rows) {
  if (!has_dense_) input_.rowwise = first_rows(input_.rowwise, rows, false);
}

Operand LinearOperands::input(Tensor dense, bool with_fp8) {
  if (!(with_fp8 || !has_dense_) || !input_needed_fp8()) return {.dense = dense};
  return {
      .dense = dense,
      .fp8 = &input_,
      .keep_dense = !forward8_ || (has_adapter() && !adapter_reads_input_codes()) || input_needed_dense()};
}

Operand LinearOperands::gradient(Tensor dense, bool keep_dense, Tensor bias_gradient) {
  Operand operand{.dense = dense, .column_sum = bias_gradient};
  if (dgrad8_ || input_needed_colwise()) {
    operand.fp8 = &gradient_;
    operand.keep_dense =
        keep_dense || !dgrad8_ || (trains_ && !wgrad8_) || (has_adapter() && !adapter_reads_gradient_codes());
  }
  return operand;
}

}  // namespace octet
