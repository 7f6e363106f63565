#include "model/linear.h"

namespace octet {

Linear::Linear(LinearSpec linear, Parameter& parameter, Parameter* bias, LinearAdapter adapter)
    : spec(std::move(linear)),
      weight(parameter),
      operands(spec, parameter, std::move(adapter)),
      bias_(bias) {}

void Linear::plan(BufferPlanner& planner, ScaleTable& scales, bool training, WeightCopies copies) {
  const LinearSite& site = spec.site;
  require(weight.has_dense() || (spec.fp8(Product::Forward) && (spec.fp8(Product::Dgrad) || !training)),
          "[model] {} has no dense weight and cannot run in FP8 alone", site.name);
  if (!spec.choice.any_fp8()) return;
  const Fp8Config fp8 = settings_of(site, scales.config());
  operands.plan_input(scales, quantize_rule(fp8, Role::Input));
  weight.plan(planner, scales, site.name, quantize_rule(fp8, Role::Weight), spec.choice, training, copies);
  operands.plan_gradient(scales, quantize_rule(fp8, Role::Gradient));
}

void Linear::forward(Ops& ops, Matrix y, const Operand& x, bool recompute) const {
  GemmOptions options{.transpose_b = true};
  if (bias_) options.bias = bias_->weight;
  const WeightView w = weight.view();
  const LowRank& adapter = operands.adapter();
  const bool runs_fp8 = x.fp8 && spec.fp8(Product::Forward);
  if (adapter && !recompute) {
    adapter.down(ops, x.dense, runs_fp8 && operands.adapter_reads_input_codes() ? &x.fp8->rowwise : nullptr,
                 weight.parameter().stream());
  }
  // The adapters write first where they cover all of y: the large product then adds to it while it computes, and y is
  // written once more instead of read and written.
  options.accumulate = adapter && adapter.covers(y.cols);
  if (options.accumulate) adapter.up(ops, y, false);
  if (runs_fp8) {
    options.fast_accumulation = spec.choice[Product::Forward].fast_accumulation;
    ops.gemm_fp8(y, x.fp8->rowwise, w.codes, options);
  } else {
    ops.gemm(y, x.dense, w.dense, options);
  }
  if (adapter && !options.accumulate) adapter.up(ops, y, true);
}

void Linear::backward(Ops& ops, Matrix dx, const Operand& x, const Operand& dy, bool overwrite) const {
  const LowRank& adapter = operands.adapter();
  overwrite |= weight.gradient_is_stale();
  if (operands.input_needed_colwise()) {
    ops.gemm_fp8(weight.gradient(), dy.fp8->colwise, x.fp8->colwise,
                 {.accumulate = !overwrite,
                  .part = GemmPart::Wgrad,
                  .fast_accumulation = spec.choice[Product::Wgrad].fast_accumulation});
  } else if (weight.trains()) {
    ops.gemm(weight.gradient(), dy.dense, x.dense,
             {.transpose_a = true, .accumulate = !overwrite, .part = GemmPart::Wgrad});
  }
  bool accumulate = false;  // dx holds the adapters' share
  if (adapter) {
    const bool reads_codes = operands.adapter_reads_input_codes();
    // Always, so that the result does not depend on what else is recomputed.
    if (operands.adapter_keeps_input_codes() && !reads_codes) ops.dequantize(x.dense, x.fp8->rowwise);
    adapter.backward(ops, x.dense, reads_codes ? &x.fp8->rowwise : nullptr, dy.dense,
                     dy.fp8 && !dy.keep_dense ? &dy.fp8->rowwise : nullptr, weight.parameter().stream(),
                     overwrite);
    accumulate = dx && !adapter.drops();
    if (accumulate) adapter.write_input_gradient(ops, dx);
  }
  if (!dx) return;
  if (spec.fp8(Product::Dgrad)) {
    weight.make_transpose(ops);
    ops.gemm_fp8(dx, dy.fp8->rowwise, weight.view().transposed,
                 {.accumulate = accumulate,
                  .part = GemmPart::Dgrad,
                  .fast_accumulation = spec.choice[Product::Dgrad].fast_accumulation});
  } else {
    ops.gemm(dx, dy.dense, weight.view().dense, {.accumulate = accumulate, .part = GemmPart::Dgrad});
  }
  if (adapter && adapter.drops()) adapter.add_dropped_input_gradient(ops, dx, weight.parameter().stream());
}

}  // namespace octet
