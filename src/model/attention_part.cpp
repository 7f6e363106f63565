#include "model/attention_part.h"

namespace octet {

void AttentionPart::find_norms(ParameterSet& parameters, const std::string& name, const ModelConfig& config) {
  norm = Norm::find(parameters, name + "attention.norm", config);
  if (!config.qk_norm) return;
  q_norm.gain = &parameters[name + "attention.q_norm.gain"];
  k_norm.gain = &parameters[name + "attention.k_norm.gain"];
}

std::vector<LinearEntry<AttentionPart>> AttentionPart::linears(const ModelConfig& config, KeepPolicy keep) {
  const AttentionShape shape = config.attention();
  return {
      {&AttentionPart::qkv, "attention.qkv", shape.qkv_width(), config.width, config.qkv_bias, keep.norm_out},
      {&AttentionPart::out, "attention.out", config.width, shape.out_width(), config.out_bias, keep.attention,
       true}};
}

std::vector<ActivationEntry<AttentionPart>> AttentionPart::activations(const ModelConfig& config,
                                                                       KeepPolicy keep, int64_t tokens,
                                                                       DType dense) {
  const AttentionShape shape = config.attention();
  const int64_t n = tokens;
  std::vector<ActivationEntry<AttentionPart>> entries = {
      {&Activations::inv, "attention.inv", DType::F32, {n}, keep.attention},
      {&Activations::normed,
       "attention.normed",
       dense,
       {n, config.width},
       keep.norm_out,
       &AttentionPart::qkv},
      {&Activations::qkv, "attention.qkv", dense, {n, shape.qkv_width()}, keep.attention},
      {&Activations::attended, "attention.out", dense, {n, shape.out_width()}, keep.attention},
      {&Activations::lse, "attention.lse", DType::F32, {shape.heads, n}, keep.attention},
  };
  if (config.qk_norm) {
    const int64_t heads = shape.heads + shape.kv_heads;
    entries.push_back(
        {&Activations::qk_raw, "attention.qk_raw", dense, {n, heads * shape.head_dim}, keep.attention});
    entries.push_back({&Activations::qk_inv, "attention.qk_inv", DType::F32, {n, heads}, keep.attention});
  }
  if (config.norm == NormKind::LayerNorm)
    entries.push_back({&Activations::mean, "attention.mean", DType::F32, {n}, keep.attention});
  return entries;
}

void AttentionPart::forward(const LayerPass& pass, const Activations& a, Tensor x, Tensor delta,
                            Tensor result, const KvCache* cache) {
  const bool all = !pass.recompute;
  const AttentionShape shape = pass.config.attention();
  const Operand qkv_in = qkv.input(a.normed, pass.fp8);
  if (all || !pass.keep.norm_out) norm.forward(pass, qkv_in, a.residual, a.mean, a.inv, x, delta);
  if (!all && pass.keep.attention) return;

  qkv.forward(pass.ops, a.qkv, qkv_in, pass.recompute);
  if (pass.config.qk_norm) {
    pass.ops.qk_norm_forward(a.qkv, a.qk_raw, a.qk_inv, q_norm.gain->weight, k_norm.gain->weight,
                             pass.config.norm_epsilon, shape);
  }
  if (pass.rope_table) pass.ops.rope_forward(a.qkv, pass.positions, pass.rope_table, shape);
  Operand out_in = out.input(a.attended, pass.fp8);
  if (cache) {
    pass.ops.attention_decode(a.attended, *cache, a.qkv, pass.sequences, pass.positions, pass.longest, shape);
    if (out_in.fp8) pass.ops.quantize(out_in);
  } else {
    out_in.keep_dense = true;  // attention's backward reads its own output
    pass.ops.attention_forward(out_in, a.lse, a.qkv, pass.documents, shape);
  }
  out.forward(pass.ops, result, out_in, pass.recompute);
}

void AttentionPart::backward(const LayerPass& pass, const Activations& a, const GradientBuffers& gradients,
                             Linear* below, bool first) {
  const AttentionShape shape = pass.config.attention();
  out.backward(pass.ops, gradients.dattended, out.input(a.attended, true), gradients.residual_for(&out),
               first);
  pass.ops.attention_backward(gradients.dqkv, gradients.dattended, a.qkv, a.attended, a.lse, pass.documents,
                              shape);
  const Operand dqkv = qkv.gradient(gradients.dqkv, false);
  if (pass.config.qk_norm) {
    if (pass.rope_table)
      pass.ops.rope_backward({.dense = gradients.dqkv}, pass.positions, pass.rope_table, shape);
    pass.ops.qk_norm_backward(dqkv, q_norm.gain->gradient, k_norm.gain->gradient, a.qk_raw, a.qk_inv,
                              q_norm.gain->weight, k_norm.gain->weight, shape);
  } else if (pass.rope_table) {
    pass.ops.rope_backward(dqkv, pass.positions, pass.rope_table, shape);
  } else if (dqkv.fp8) {
    pass.ops.quantize(dqkv);
  } else if (dqkv.column_sum) {
    pass.ops.add_column_sum(dqkv.column_sum, dqkv.dense, {}, 1.0f);
  }
  const bool stops = !below && pass.stops_at_bottom;
  qkv.backward(pass.ops, stops ? Matrix{} : gradients.dnormed, qkv.input(a.normed, true), dqkv, first);
  if (stops) return;
  norm.backward(pass, gradients.residual_for(below), gradients.dnormed, a.residual, a.mean, a.inv);
}

}  // namespace octet
