#include "support/op_table_fp8.h"

// Ops that write the FP8 form of their result. Their codes must be those of the plain op followed by quantize(), bit for
// bit on the same device; between devices the plain results are compared.
namespace octet::test {
namespace {

// What a case of a fused op runs: `run(device, args, operand, fused)` computes into operand.dense. `fused` tells the two
// runs apart, for results that an op adds to.
using FusedRun = std::function<void(Device&, Args&, const Operand&, bool fused)>;

// Adds the outputs to a case that has its inputs. `before` is the input that an op works on in place, or -1.
void add_fused(OpCase& op, int64_t rows, int64_t cols, const FusedVariant& variant, int before,
               const FusedRun& run) {
  const bool keep = variant.keep_dense;
  const int slot = op.add_input("slot", DType::U8, {sizeof(ScaleSlot)}, bytes_of(used_slot()));
  const int dense = op.add_output("dense", op.dtype, {rows, cols}, keep ? Compare::Near : Compare::Own);
  const int plain = op.add_output("plain", op.dtype, {rows, cols}, Compare::Near);
  const Fp8Outputs fused = add_fp8(op, "fused", rows, cols, variant.rule, Compare::Own);
  const Fp8Outputs apart = add_fp8(op, "separate", rows, cols, variant.rule, Compare::Own);
  const std::vector<int> one = fused.all(), other = apart.all();
  for (size_t i = 0; i < one.size(); ++i) op.equal.emplace_back(one[i], other[i]);
  if (keep) op.equal.emplace_back(dense, plain);
  // The codes in both directions, and the dense form where something reads it.
  op.bytes += 2.0 * static_cast<double>(rows * cols) + (keep ? bytes_for(op.dtype, rows * cols) : 0.0);
  op.prepare = [=, also = op.prepare](Device& device, Args& args) {
    if (also) also(device, args);
    for (const int i : {fused.slot, apart.slot}) device.copy(args.out[at(i)], args.in[at(slot)]);
    for (const int i : {dense, plain}) {
      if (before >= 0) device.copy(args.out[at(i)], args.in[at(before)]);
    }
  };
  op.forward = [=](Device& device, Args& args) {
    Quantized target = fused.of(args);
    run(device, args, {.dense = args.out[at(dense)], .fp8 = &target, .keep_dense = keep}, true);
  };
  op.separate = [=](Device& device, Args& args) {
    Quantized target = apart.of(args);
    run(device, args, operand(args.out[at(plain)]), false);
    device.ops().quantize({.dense = args.out[at(plain)], .fp8 = &target});
  };
}

OpCase start_fused(const std::string& name, DType dtype, int64_t rows, int64_t cols,
                   const FusedVariant& variant) {
  OpCase op =
      start(fmt::format("fused_{}_{}{}", name, name_of(variant.rule), variant.keep_dense ? "_keep" : ""),
            dtype, {rows, cols});
  op.needs.tokens = rows;
  op.needs.width = cols;
  return op;
}

const char* norm_name(NormKind kind) {
  return kind == NormKind::LayerNorm ? "layer_norm" : "rms_norm";
}

}  // namespace

OpCase fused_norm_case(DType dtype, NormKind kind, int64_t rows, int64_t width, const FusedVariant& variant) {
  const bool layer_norm = kind == NormKind::LayerNorm;
  OpCase op = start_fused(norm_name(kind), dtype, rows, width, variant);
  const int64_t count = rows * width;
  const Shape shape{rows, width};
  op.bytes = bytes_for(dtype, 3 * count);
  op.add_input("x", dtype, shape, normal(count, dtype, 1, 1.0, 0.5));
  op.add_input("delta", dtype, shape, normal(count, dtype, 2));
  op.add_input("gain", dtype, {width}, normal(width, dtype, 3, 0.2, 1.0));
  op.add_input("bias", dtype, {width}, normal(width, dtype, 4, 0.2));
  op.add_output("residual", dtype, shape, Compare::Near);
  op.add_output("mean", DType::F32, {rows}, Compare::Near);
  op.add_output("inv", DType::F32, {rows}, Compare::Near);
  op.prepare = [](Device& device, Args& args) { device.zero(args.out[1]); };
  add_fused(op, rows, width, variant, -1, [=](Device& device, Args& args, const Operand& y, bool) {
    device.ops().norm_forward(kind, y, args.out[0], layer_norm ? args.out[1] : Tensor{}, args.out[2],
                              args.in[0], args.in[1], args.in[2], layer_norm ? args.in[3] : Tensor{}, 1e-5f);
  });
  return op;
}

OpCase fused_norm_backward_case(DType dtype, NormKind kind, int64_t rows, int64_t width,
                                const FusedVariant& variant) {
  const bool layer_norm = kind == NormKind::LayerNorm;
  OpCase op = start_fused(std::string(norm_name(kind)) + "_backward", dtype, rows, width, variant);
  const int64_t count = rows * width;
  const Shape shape{rows, width};
  op.bytes = bytes_for(dtype, 3 * count);
  op.add_input("before", dtype, shape, normal(count, dtype, 1));
  op.add_input("dy", dtype, shape, normal(count, dtype, 2));
  op.add_input("residual", dtype, shape, normal(count, dtype, 3));
  op.add_input("mean", DType::F32, {rows}, normal(rows, DType::F32, 4, 0.1));
  op.add_input("inv", DType::F32, {rows}, normal(rows, DType::F32, 5, 0.1, 1.0));
  op.add_input("gain", dtype, {width}, normal(width, dtype, 6, 0.2, 1.0));
  for (const char* name : {"dgain", "dbias", "dgain of the plain op", "dbias of the plain op"})
    op.add_output(name, DType::F32, {width}, Compare::Near);
  op.prepare = [](Device& device, Args& args) {
    for (size_t i = 0; i < 4; ++i) device.zero(args.out[i]);
  };
  add_fused(op, rows, width, variant, 0, [=](Device& device, Args& args, const Operand& dx, bool fused) {
    device.ops().norm_backward(kind, dx, args.out[fused ? 0 : 2],
                               layer_norm ? args.out[fused ? 1 : 3] : Tensor{}, args.in[1], args.in[2],
                               layer_norm ? args.in[3] : Tensor{}, args.in[4], args.in[5]);
  });
  return op;
}

OpCase fused_activation_case(DType dtype, Activation activation, int64_t rows, int64_t width,
                             const FusedVariant& variant) {
  const bool gated = activation == Activation::SwiGlu;
  OpCase op = start_fused(gated ? "swiglu" : "gelu", dtype, rows, width, variant);
  const int64_t in_width = gated ? 2 * width : width;
  op.needs.width = in_width;
  op.bytes = bytes_for(dtype, rows * in_width);
  op.add_input("x", dtype, {rows, in_width}, normal(rows * in_width, dtype, 1, 2.0));
  add_fused(op, rows, width, variant, -1, [=](Device& device, Args& args, const Operand& h, bool) {
    device.ops().activation_forward(activation, h, args.in[0]);
  });
  return op;
}

OpCase fused_activation_backward_case(DType dtype, Activation activation, int64_t rows, int64_t width,
                                      const FusedVariant& variant) {
  const bool gated = activation == Activation::SwiGlu;
  OpCase op = start_fused(gated ? "swiglu_backward" : "gelu_backward", dtype, rows, width, variant);
  const int64_t in_width = gated ? 2 * width : width;
  op.needs.width = in_width;
  op.bytes = bytes_for(dtype, rows * (in_width + width));
  op.add_input("x", dtype, {rows, in_width}, normal(rows * in_width, dtype, 1, 2.0));
  op.add_input("dh", dtype, {rows, width}, normal(rows * width, dtype, 2));
  add_fused(op, rows, in_width, variant, -1, [=](Device& device, Args& args, const Operand& dx, bool) {
    device.ops().activation_backward(activation, dx, args.in[1], args.in[0]);
  });
  return op;
}

OpCase fused_rope_case(DType dtype, int64_t rows, AttentionShape shape, const FusedVariant& variant) {
  constexpr int64_t kPositions = 7;
  const int64_t width = shape.qkv_width();
  OpCase op = start_fused("rope_backward", dtype, rows, width, variant);
  op.bytes = bytes_for(dtype, rows * width);
  op.add_input("dqkv", dtype, {rows, width}, normal(rows * width, dtype, 1));
  op.add_input("positions", DType::I32, {rows}, fixed(ids(rows, kPositions, 2)));
  op.add_input("table", DType::F32, {kPositions, shape.head_dim},
               normal(kPositions * shape.head_dim, DType::F32, 3));
  add_fused(op, rows, width, variant, 0, [=](Device& device, Args& args, const Operand& dqkv, bool) {
    device.ops().rope_backward(dqkv, args.in[1], args.in[2], shape);
  });
  return op;
}

OpCase fused_qk_norm_backward_case(DType dtype, int64_t rows, AttentionShape shape,
                                   const FusedVariant& variant) {
  const int64_t width = shape.qkv_width(), depth = shape.head_dim, heads = shape.heads + shape.kv_heads;
  OpCase op = start_fused("qk_norm_backward", dtype, rows, width, variant);
  op.needs.attention = shape;
  op.bytes = bytes_for(dtype, 2 * rows * width);
  op.add_input("dqkv", dtype, {rows, width}, normal(rows * width, dtype, 1));
  op.add_input("raw", dtype, {rows, heads * depth}, normal(rows * heads * depth, dtype, 2));
  op.add_input("inv", DType::F32, {rows, heads}, normal(rows * heads, DType::F32, 3, 0.1, 1.0));
  op.add_input("gain_q", dtype, {depth}, normal(depth, dtype, 4, 0.2, 1.0));
  op.add_input("gain_k", dtype, {depth}, normal(depth, dtype, 5, 0.2, 1.0));
  for (const char* name : {"dgain_q", "dgain_k", "dgain_q of the plain op", "dgain_k of the plain op"})
    op.add_output(name, DType::F32, {depth}, Compare::Near);
  op.prepare = [](Device& device, Args& args) {
    for (size_t i = 0; i < 4; ++i) device.zero(args.out[i]);
  };
  add_fused(op, rows, width, variant, 0, [=](Device& device, Args& args, const Operand& dqkv, bool fused) {
    device.ops().qk_norm_backward(dqkv, args.out[fused ? 0 : 2], args.out[fused ? 1 : 3], args.in[1],
                                  args.in[2], args.in[3], args.in[4], shape);
  });
  return op;
}

// In place: the gradient takes the place of the logits.
OpCase fused_cross_entropy_case(DType dtype, int64_t rows, int64_t vocab, int64_t width,
                                const FusedVariant& variant, bool weighted) {
  OpCase op = start_fused(weighted ? "cross_entropy_weighted" : "cross_entropy", dtype, rows, width, variant);
  op.bytes = bytes_for(dtype, 2 * rows * width);  // a row must be known before its gradient: read twice
  std::vector<double> targets = ids(rows, vocab + 1, 2);
  for (double& target : targets) target -= 1.0;  // some are -1
  op.add_input("logits", dtype, {rows, width}, normal(rows * width, dtype, 1, 3.0));
  op.add_input("targets", DType::I32, {rows}, fixed(targets));
  op.add_input("gradient_scale", DType::F32, {1}, fixed({0.25}));
  op.add_input("row_factors", DType::F32, {rows}, normal(rows, DType::F32, 3));
  op.add_output("loss", DType::F32, {rows}, Compare::Near);
  op.add_output("penalty", DType::F32, {rows}, Compare::Near);
  add_fused(op, rows, width, variant, 0, [=](Device& device, Args& args, const Operand& gradient, bool) {
    const LossOptions options{.vocab = vocab,
                              .gradient_scale = args.in[2],
                              .row_factors = weighted ? args.in[3] : Tensor{},
                              .penalty = PenaltyKind::ZLoss,
                              .penalty_weight = 0.3f};
    device.ops().cross_entropy(gradient, {}, args.out[0], args.out[1], {}, gradient.dense, args.in[1],
                               options);
  });
  return op;
}

// ---- which cases there are ----

namespace {

// The rules that training uses, as the ops meet them.
std::vector<FusedVariant> fused_variants() {
  return {{.rule = {.delayed = true}},
          {.rule = {.format_rowwise = DType::E5M2, .format_colwise = DType::E5M2, .delayed = true},
           .keep_dense = true},
          {.rule = {}},
          {.rule = {.granularity = Granularity::Row128}},
          {.rule = {.granularity = Granularity::Row128}, .keep_dense = true},
          {.rule = {.format_colwise = DType::E5M2, .granularity = Granularity::Row32}}};
}

}  // namespace

void add_fused(std::vector<OpCase>& table) {
  for (const FusedVariant& variant : fused_variants()) {
    const DType bf16 = DType::BF16, fp32 = DType::F32;
    for (const NormKind kind : {NormKind::LayerNorm, NormKind::RmsNorm}) {
      table.push_back(fused_norm_case(bf16, kind, 80, 768, variant));
      table.push_back(fused_norm_case(fp32, kind, 37, 52, variant));
      table.push_back(fused_norm_backward_case(bf16, kind, 80, 768, variant));
      table.push_back(fused_norm_backward_case(fp32, kind, 37, 52, variant));
    }
    for (const Activation activation : {Activation::Gelu, Activation::SwiGlu}) {
      table.push_back(fused_activation_case(bf16, activation, 144, 264, variant));
      table.push_back(fused_activation_case(fp32, activation, 37, 52, variant));
      table.push_back(fused_activation_backward_case(bf16, activation, 144, 264, variant));
      table.push_back(fused_activation_backward_case(bf16, activation, 144, 256, variant));
      table.push_back(fused_activation_backward_case(fp32, activation, 37, 52, variant));
    }
    table.push_back(fused_rope_case(bf16, 80, {.heads = 3, .kv_heads = 1, .head_dim = 64}, variant));
    table.push_back(fused_rope_case(bf16, 150, {.heads = 2, .kv_heads = 1, .head_dim = 96}, variant));
    table.push_back(fused_rope_case(fp32, 37, {.heads = 2, .kv_heads = 2, .head_dim = 6}, variant));
    table.push_back(
        fused_qk_norm_backward_case(bf16, 80, {.heads = 3, .kv_heads = 1, .head_dim = 64}, variant));
    table.push_back(
        fused_qk_norm_backward_case(fp32, 37, {.heads = 2, .kv_heads = 2, .head_dim = 6}, variant));
    table.push_back(fused_cross_entropy_case(bf16, 128, 1000, 1024, variant));
    table.push_back(fused_cross_entropy_case(bf16, 128, 1000, 1024, variant, true));
    table.push_back(fused_cross_entropy_case(fp32, 37, 101, 101, variant));
  }
}

}  // namespace octet::test
