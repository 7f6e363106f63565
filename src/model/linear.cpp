#include "model/linear.h"

namespace octet {

Shape scales_shape(Granularity granularity, int64_t rows, int64_t depth) {
  switch (granularity) {
    case Granularity::Tensor:
      return {};
    case Granularity::Block128:
      return {div_up(rows, 128), div_up(depth, 128)};
    case Granularity::Row128:
    case Granularity::Row32:
      return {rows, div_up(depth, block_depth(granularity))};
  }
  return {};
}

DType scales_dtype(Granularity granularity) {
  return granularity == Granularity::Row32 ? DType::E8M0 : DType::F32;
}

namespace {

// Plans one copy of a quantised tensor in its own memory.
void plan_matrix(BufferPlanner& planner, QuantizedMatrix& matrix, const std::string& name, DType format,
                 Granularity granularity, int64_t rows, int64_t depth, MemoryCategory category,
                 Lifetime lifetime) {
  matrix.granularity = granularity;
  planner.add(matrix.codes, name, format, {rows, depth}, category, lifetime);
  const Shape scales = scales_shape(granularity, rows, depth);
  if (scales.rank() > 0) {
    planner.add(matrix.scales, name + ".scales", scales_dtype(granularity), scales, category, lifetime);
  }
}

// Places one copy of a quantised tensor in shared memory.
void alias_matrix(BufferPlanner& planner, QuantizedMatrix& matrix, const Tensor& codes,
                  const Tensor& scales_base, DType format, Granularity granularity, int64_t rows,
                  int64_t depth) {
  matrix.granularity = granularity;
  planner.alias(matrix.codes, codes, format, {rows, depth});
  const Shape scales = scales_shape(granularity, rows, depth);
  if (scales.rank() > 0) planner.alias(matrix.scales, scales_base, scales_dtype(granularity), scales);
}

QuantizedMatrix first_rows(const QuantizedMatrix& matrix, int64_t rows, bool rows_are_depth) {
  QuantizedMatrix result = matrix;
  if (!matrix) return result;
  const int64_t r = rows_are_depth ? matrix.codes.rows() : rows;
  const int64_t depth = rows_are_depth ? rows : matrix.codes.cols();
  result.codes.shape = {r, depth};
  if (matrix.scales) result.scales.shape = scales_shape(matrix.granularity, r, depth);
  return result;
}

}  // namespace

Quantized with_rows(const Quantized& quantized, int64_t rows) {
  Quantized result = quantized;
  result.rowwise = first_rows(quantized.rowwise, rows, false);
  result.colwise = first_rows(quantized.colwise, rows, true);
  return result;
}

Linear::Linear(LinearSite site, LinearChoice choice, Parameter& weight, Parameter* bias)
    : site_(std::move(site)), choice_(std::move(choice)), weight_(&weight), bias_(bias) {}

void Linear::plan(BufferPlanner& planner, ScaleTable& scales, bool training) {
  require(has_dense() || (fp8(Product::Forward) && (fp8(Product::Dgrad) || !training)),
          "[model] {} has no dense weight and cannot run in FP8 alone", site_.name);
  if (!choice_.any_fp8()) return;
  input_slot_ = scales.add(site_.name + ".input", Role::Input);
  weight_slot_ = scales.add(site_.name + ".weight", Role::Weight);
  gradient_slot_ = scales.add(site_.name + ".gradient", Role::Gradient);
  input8_.rule = quantize_rule(scales.config(), Role::Input);
  weight8_.rule = quantize_rule(scales.config(), Role::Weight);
  gradient8_.rule = quantize_rule(scales.config(), Role::Gradient);

  const QuantizeRule& rule = weight8_.rule;
  const std::string name = weight_->spec.name + ".fp8";
  if (fp8(Product::Forward)) {
    plan_matrix(planner, weight8_.rowwise, name, rule.format_rowwise, rule.granularity, site_.out, site_.in,
                MemoryCategory::Weights, Lifetime::always());
  }
  if (fp8(Product::Dgrad) && training) {
    plan_matrix(planner, weight8_.colwise, name + "_transposed", rule.format_colwise, rule.granularity,
                site_.in, site_.out, MemoryCategory::Weights, Lifetime::always());
  }
}

void Linear::attach_scratch(BufferPlanner& planner, QuantizedScratch& scratch, int64_t tokens) {
  if (fp8(Product::Forward)) {
    alias_matrix(planner, input8_.rowwise, scratch.input_rowwise, scratch.input_rowwise_scales,
                 input8_.rule.format_rowwise, input8_.rule.granularity, tokens, site_.in);
  }
  if (fp8(Product::Dgrad) && scratch.gradient_rowwise.numel() > 0) {
    alias_matrix(planner, gradient8_.rowwise, scratch.gradient_rowwise, scratch.gradient_rowwise_scales,
                 gradient8_.rule.format_rowwise, gradient8_.rule.granularity, tokens, site_.out);
  }
  if (input_needed_colwise() && scratch.gradient_colwise.numel() > 0) {
    alias_matrix(planner, gradient8_.colwise, scratch.gradient_colwise, scratch.gradient_colwise_scales,
                 gradient8_.rule.format_colwise, gradient8_.rule.granularity, site_.out, tokens);
  }
}

void Linear::attach_input(BufferPlanner& planner, int64_t tokens, Lifetime lifetime, ColwiseBuffers* shared) {
  if (!input_needed_colwise()) return;
  const QuantizeRule& rule = input8_.rule;
  if (shared) {
    alias_matrix(planner, input8_.colwise, shared->codes, shared->scales, rule.format_colwise,
                 rule.granularity, site_.in, tokens);
  } else {
    plan_matrix(planner, input8_.colwise, site_.name + ".input.fp8_transposed", rule.format_colwise,
                rule.granularity, site_.in, tokens, MemoryCategory::Activations, lifetime);
  }
}

void Linear::bind(const ScaleTable& scales) {
  if (!choice_.any_fp8()) return;
  const auto set = [&](Quantized& quantized, int index) {
    quantized.slot = scales.slot(index);
    quantized.rowwise.tensor_scale = &quantized.slot->inverse_rowwise;
    quantized.colwise.tensor_scale = &quantized.slot->inverse_colwise;
  };
  set(input8_, input_slot_);
  set(weight8_, weight_slot_);
  set(gradient8_, gradient_slot_);
}

Operand Linear::input(Tensor dense, bool with_fp8) {
  if (!(with_fp8 || !has_dense()) || !input_needed_fp8()) return {.dense = dense};
  return {.dense = dense, .fp8 = &input8_, .keep_dense = !fp8(Product::Forward) || input_needed_dense()};
}

Operand Linear::gradient(Tensor dense, bool keep_dense) {
  Operand operand{.dense = dense};
  if (bias_) operand.column_sum = bias_->gradient;
  if (fp8(Product::Dgrad) || input_needed_colwise()) {
    operand.fp8 = &gradient8_;
    operand.keep_dense = keep_dense || !fp8(Product::Dgrad) || (trains() && !fp8(Product::Wgrad));
  }
  return operand;
}

void Linear::forward(Ops& ops, Matrix y, const Operand& x) const {
  GemmOptions options{.transpose_b = true};
  if (bias_) options.bias = bias_->weight;
  if (x.fp8 && fp8(Product::Forward)) {
    ops.gemm_fp8(y, x.fp8->rowwise, weight8_.rowwise, options);
  } else {
    ops.gemm(y, x.dense, weight_->weight, options);
  }
}

void Linear::backward(Ops& ops, Matrix dx, const Operand& x, const Operand& dy, bool overwrite) const {
  if (input_needed_colwise()) {
    ops.gemm_fp8(weight_->gradient, dy.fp8->colwise, x.fp8->colwise,
                 {.accumulate = !overwrite, .part = GemmPart::Wgrad});
  } else if (trains()) {
    ops.gemm(weight_->gradient, dy.dense, x.dense,
             {.transpose_a = true, .accumulate = !overwrite, .part = GemmPart::Wgrad});
  }
  if (!dx) return;
  if (fp8(Product::Dgrad)) {
    ops.gemm_fp8(dx, dy.fp8->rowwise, weight8_.colwise, {.part = GemmPart::Dgrad});
  } else {
    ops.gemm(dx, dy.dense, weight_->weight, {.part = GemmPart::Dgrad});
  }
}

void Linear::quantize_weight(Ops& ops) {
  if (has_dense()) quantize_weight(ops, weight_->weight);
}

void Linear::quantize_weight(Ops& ops, Tensor dense) {
  if (weight_fp8()) ops.quantize({.dense = dense, .fp8 = &weight8_});
}

void Linear::set_pass(const ScaleTable& scales, bool stats) {
  if (!choice_.any_fp8()) return;
  const bool delayed = scales.config().recipe == Fp8Recipe::Delayed && !scales.calibrating();
  input8_.rule.delayed = weight8_.rule.delayed = gradient8_.rule.delayed = delayed;
  input8_.stats = stats ? scales.stats(input_slot_) : nullptr;
  weight8_.stats = stats ? scales.stats(weight_slot_) : nullptr;
  gradient8_.stats = stats ? scales.stats(gradient_slot_) : nullptr;
}

}  // namespace octet
