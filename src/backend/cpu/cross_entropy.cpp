#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/vector_math.h"
#include "backend/op_checks.h"

namespace octet {

using cpu::load;
using cpu::store;

namespace {

struct RowResult {
  float loss = 0.0f, penalty = 0.0f;
  bool correct = false;
};

// `gradient`, if present, holds the logits and is overwritten with their gradient. It may be `logits`. `row_factor` is used
// only if `weighted`: a multiplication by 1 could change how the compiler fuses operations, and so the bits.
template <class T, bool weighted>
RowResult cross_entropy_row(const T* logits, T* gradient, int64_t padded_vocab, int32_t target,
                            float row_factor, const LossOptions& options) {
  const int64_t vocab = options.vocab;
  const float largest = cpu::lane_max(logits, vocab);
  // In fp32 the share of a large vocabulary's unlikely tokens would be lost next to the likely ones.
  const double total =
      cpu::lane_sum<double>(vocab, [=](int64_t i) { return cpu::fast_exp(load(logits[i]) - largest); });
  const double exact_log = std::log(total);
  const auto log_total = static_cast<float>(exact_log);
  const float lse = largest + log_total;
  const auto inverse = static_cast<float>(1.0 / total);
  const float target_logit = load(logits[target]);

  RowResult result;
  result.loss =
      static_cast<float>(exact_log - (static_cast<double>(target_logit) - static_cast<double>(largest)));
  // The target has the largest logit, and no earlier logit is as large.
  result.correct = target_logit == largest &&
                   std::none_of(logits, logits + target, [=](T x) { return load(x) == largest; });
  const float weight = options.penalty_weight;
  float entropy = 0.0f;
  if (options.penalty == PenaltyKind::ZLoss) {
    result.penalty = weight * lse * lse;
  } else if (options.penalty == PenaltyKind::Entropy) {
    // entropy = -sum p log p with log p = (logit - largest) - log_total
    entropy = log_total - inverse * cpu::lane_sum(vocab, [=](int64_t i) {
                            const float shifted = load(logits[i]) - largest;
                            const float e = cpu::fast_exp(shifted);
                            return e > 0.0f ? e * shifted : 0.0f;
                          });
    result.penalty = -weight * entropy;
  } else if (options.penalty == PenaltyKind::LogitL2) {
    const float squares = cpu::lane_sum(vocab, [=](int64_t i) { return load(logits[i]) * load(logits[i]); });
    result.penalty = weight * squares / static_cast<float>(vocab);
  }
  if (!gradient) return result;

  const float scale = *options.gradient_scale.as<float>();
  const float own = cpu::fast_exp(target_logit - largest) * inverse;  // the probability of the target
  const auto of_loss = [=](float slope) {
    if constexpr (weighted) return row_factor * slope;
    return slope;
  };
  if (options.penalty == PenaltyKind::Entropy) {
    const auto slope = [=](float shifted, float p) {
      return p > 0.0f ? weight * p * (shifted - log_total + entropy) : 0.0f;
    };
    for (int64_t i = 0; i < vocab; ++i) {
      const float shifted = load(gradient[i]) - largest;
      const float p = cpu::fast_exp(shifted) * inverse;
      gradient[i] = store<T>(scale * (of_loss(p) + slope(shifted, p)));
    }
    gradient[target] = store<T>(scale * (of_loss(own - 1.0f) + slope(target_logit - largest, own)));
  } else if (options.penalty == PenaltyKind::LogitL2) {
    const float per_logit = 2.0f * weight / static_cast<float>(vocab);
    for (int64_t i = 0; i < vocab; ++i) {
      const float logit = load(gradient[i]);
      gradient[i] = store<T>(scale * (of_loss(cpu::fast_exp(logit - largest) * inverse) + per_logit * logit));
    }
    gradient[target] = store<T>(scale * (of_loss(own - 1.0f) + per_logit * target_logit));
  } else {
    const float per_target = of_loss(1.0f);
    const float per_probability =
        options.penalty == PenaltyKind::ZLoss ? per_target + 2.0f * weight * lse : per_target;
    const float factor = per_probability * inverse;
    for (int64_t i = 0; i < vocab; ++i)
      gradient[i] = store<T>(scale * (cpu::fast_exp(load(gradient[i]) - largest) * factor));
    gradient[target] = store<T>(scale * (cpu::fast_exp(target_logit - largest) * factor - per_target));
  }
  std::fill(gradient + vocab, gradient + padded_vocab, store<T>(0.0f));
  return result;
}

}  // namespace

void CpuOps::cross_entropy(const Operand& gradient, Tensor correction, Tensor loss, Tensor penalty,
                           Tensor correct, Tensor logits, Tensor targets, const LossOptions& options) {
  const cpu::HostScope scope = timed({.kind = OpKind::Loss, .op = "cross_entropy"});
  constexpr std::string_view op = "cross_entropy";
  check_cross_entropy(gradient, correction, loss, penalty, correct, logits, targets, options);
  const int64_t rows = logits.rows(), width = logits.cols();
  const Tensor& dlogits = gradient.dense;
  const int32_t* target = targets.as<int32_t>();
  for (int64_t r = 0; r < rows; ++r) {
    require(target[r] >= -1 && target[r] < options.vocab, "[{}] target {} is {}, expected -1 to {}", op, r,
            target[r], options.vocab - 1);
  }
  cpu::dispatch_real(op, logits.dtype, [&]<class T>(T) {
    const int64_t grain = std::max<int64_t>(1, (1 << 13) / width);
    parallel_.for_range(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = logits.as<T>() + r * width;
        T* row_gradient = dlogits ? dlogits.as<T>() + r * width : nullptr;
        RowResult result;
        if (target[r] >= 0) {
          if (row_gradient && row_gradient != row) std::copy_n(row, width, row_gradient);
          const Tensor& factors = options.row_factors;
          result = factors ? cross_entropy_row<T, true>(row, row_gradient, width, target[r],
                                                        factors.as<float>()[r], options)
                           : cross_entropy_row<T, false>(row, row_gradient, width, target[r], 1, options);
        } else if (row_gradient) {
          std::fill_n(row_gradient, width, store<T>(0.0f));
        }
        loss.as<float>()[r] = result.loss;
        if (penalty) penalty.as<float>()[r] = result.penalty;
        if (correct) correct.as<int32_t>()[r] = result.correct ? 1 : 0;
      }
    });
  });
  if (dlogits) finish(gradient);
  if (!correction) return;
  const bool rowwise = static_cast<bool>(gradient.fp8->rowwise.codes);
  const QuantizedMatrix& rounded = rowwise ? gradient.fp8->rowwise : gradient.fp8->colwise;
  const int64_t row_step = rowwise ? rounded.row_stride() : 1, step = rowwise ? 1 : rounded.row_stride();
  const float factor = *rounded.tensor_scale;
  const float* values = fp8_values(rounded.codes.dtype);
  cpu::dispatch_real(op, dlogits.dtype, [&]<class T>(T) {
    parallel_.for_range(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = dlogits.as<T>() + r * width;
        const uint8_t* codes = rounded.codes.as<uint8_t>() + r * row_step;
        correction.as<float>()[r] =
            cpu::lane_sum(width, [=](int64_t i) { return load(row[i]) - values[codes[i * step]] * factor; });
      }
    });
  });
}

}  // namespace octet
