#include "model/mlp_part.h"

namespace octet {

std::vector<LinearEntry<MlpPart>> MlpPart::linears(const ModelConfig& config, KeepPolicy keep) {
  return {{&MlpPart::up, "mlp.up", config.up_width(), config.width, config.out_bias, keep.norm_out},
          {&MlpPart::down, "mlp.down", config.width, config.ffn, config.out_bias, keep.act_out}};
}

std::vector<ActivationEntry<MlpPart>> MlpPart::activations(const ModelConfig& config, KeepPolicy keep,
                                                           int64_t tokens, DType dense) {
  const int64_t n = tokens;
  std::vector<ActivationEntry<MlpPart>> entries = {
      {&Activations::residual, "residual_mid", dense, {n, config.width}, keep.attention},
      {&Activations::inv, "mlp.inv", DType::F32, {n}, keep.attention},
      {&Activations::normed, "mlp.normed", dense, {n, config.width}, keep.norm_out, &MlpPart::up},
      {&Activations::up, "mlp.up", dense, {n, config.up_width()}, keep.up_out},
      {&Activations::act, "mlp.act", dense, {n, config.ffn}, keep.act_out, &MlpPart::down},
  };
  if (config.norm == NormKind::LayerNorm)
    entries.push_back({&Activations::mean, "mlp.mean", DType::F32, {n}, keep.attention});
  return entries;
}

void MlpPart::forward(const LayerPass& pass, const Activations& a, Tensor x, Tensor delta, Tensor result) {
  const bool all = !pass.recompute;
  const Operand up_in = up.input(a.normed, pass.fp8);
  if (all || !pass.keep.attention) {
    norm.forward(pass, up_in, a.residual, a.mean, a.inv, x, delta);
  } else if (!pass.keep.norm_out) {
    norm.forward(pass, up_in, a.residual, a.mean, a.inv, a.residual, {});
  }
  if (all || !pass.keep.up_out) up.forward(pass.ops, a.up, up_in, pass.recompute);
  const Operand down_in = down.input(a.act, pass.fp8);
  if (all || !pass.keep.act_out) pass.ops.activation_forward(pass.config.activation, down_in, a.up);
  if (all) down.forward(pass.ops, result, down_in);
}

void MlpPart::backward(const LayerPass& pass, const Activations& a, const GradientBuffers& gradients,
                       Linear* below, bool first) {
  down.backward(pass.ops, gradients.dact, down.input(a.act, true), gradients.residual_for(&down), first);
  const Operand dup = up.gradient(gradients.dup, false);
  pass.ops.activation_backward(pass.config.activation, dup, gradients.dact, a.up);
  up.backward(pass.ops, gradients.dnormed, up.input(a.normed, true), dup, first);
  norm.backward(pass, gradients.residual_for(below), gradients.dnormed, a.residual, a.mean, a.inv);
}

}  // namespace octet
