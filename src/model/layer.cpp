#include "model/layer.h"

namespace octet {

Norm Norm::find(ParameterSet& parameters, const std::string& name, const ModelConfig& config) {
  return {&parameters[name + ".gain"],
          config.norm == NormKind::LayerNorm ? &parameters[name + ".bias"] : nullptr};
}

void Norm::forward(const LayerPass& pass, const Operand& y, Tensor residual, Tensor mean, Tensor inv,
                   Tensor x, Tensor delta) const {
  pass.ops.norm_forward(pass.config.norm, y, residual, mean, inv, x, delta, gain->weight,
                        bias ? bias->weight : Tensor{}, pass.config.norm_epsilon);
}

void Norm::backward(const LayerPass& pass, const Operand& dresidual, Tensor dy, Tensor residual, Tensor mean,
                    Tensor inv) const {
  pass.ops.norm_backward(pass.config.norm, dresidual, gain->gradient, bias ? bias->gradient : Tensor{}, dy,
                         residual, mean, inv, gain->weight);
}

}  // namespace octet
