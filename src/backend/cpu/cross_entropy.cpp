#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/element.h"
#include "backend/cpu/vector_math.h"

namespace octet {

using cpu::load;
using cpu::store;

namespace {

struct RowResult {
  float loss = 0.0f, penalty = 0.0f;
  bool correct = false;
};

template <class T>
RowResult cross_entropy_row(T* logits, int64_t padded_vocab, int32_t target, const LossOptions& options) {
  const int64_t vocab = options.vocab;
  const float largest = cpu::lane_max(vocab, [=](int64_t i) { return load(logits[i]); });
  const float total =
      cpu::lane_sum(vocab, [=](int64_t i) { return cpu::fast_exp(load(logits[i]) - largest); });
  const float log_total = std::log(total);
  const float lse = largest + log_total;
  const float inverse = 1.0f / total;
  const float target_logit = load(logits[target]);

  RowResult result;
  result.loss = log_total - (target_logit - largest);
  // The largest logit is the target, and none before it is as large.
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
  if (!options.backward) return result;

  const float scale = options.gradient_scale;
  if (options.penalty == PenaltyKind::Entropy) {
    for (int64_t i = 0; i < vocab; ++i) {
      const float shifted = load(logits[i]) - largest;
      const float p = cpu::fast_exp(shifted) * inverse;
      const float slope = p > 0.0f ? weight * p * (shifted - log_total + entropy) : 0.0f;
      logits[i] = store<T>(scale * (p - (i == target ? 1.0f : 0.0f) + slope));
    }
  } else {
    // The gradient of the others is linear in the probability and the logit.
    const float per_probability = options.penalty == PenaltyKind::ZLoss ? 1.0f + 2.0f * weight * lse : 1.0f;
    const float per_logit =
        options.penalty == PenaltyKind::LogitL2 ? 2.0f * weight / static_cast<float>(vocab) : 0.0f;
    const float factor = per_probability * inverse;
    for (int64_t i = 0; i < vocab; ++i) {
      const float logit = load(logits[i]);
      logits[i] = store<T>(scale * (cpu::fast_exp(logit - largest) * factor + per_logit * logit));
    }
    const float own = cpu::fast_exp(target_logit - largest) * factor - 1.0f + per_logit * target_logit;
    logits[target] = store<T>(scale * own);
  }
  std::fill(logits + vocab, logits + padded_vocab, store<T>(0.0f));
  return result;
}

}  // namespace

void CpuBackend::cross_entropy(Tensor logits, Tensor loss, Tensor penalty, Tensor correct, Tensor targets,
                               const LossOptions& options) {
  constexpr std::string_view op = "cross_entropy";
  const int64_t rows = logits.rows(), width = logits.cols();
  require(options.vocab > 0 && options.vocab <= width, "[{}] the vocabulary is {}, expected 1 to {}", op,
          options.vocab, width);
  require(loss.numel() == rows && targets.numel() == rows && (!penalty || penalty.numel() == rows) &&
              (!correct || correct.numel() == rows),
          "[{}] {} losses, {} targets for {} rows", op, loss.numel(), targets.numel(), rows);
  require(penalty || options.penalty == PenaltyKind::None, "[{}] there is a penalty and nowhere to write it",
          op);
  const int32_t* target = targets.as<int32_t>();
  for (int64_t r = 0; r < rows; ++r) {
    require(target[r] >= -1 && target[r] < options.vocab, "[{}] target {} is {}, expected -1 to {}", op, r,
            target[r], options.vocab - 1);
  }
  cpu::dispatch_real(op, logits.dtype, [&]<class T>(T) {
    const int64_t grain = std::max<int64_t>(1, (1 << 13) / width);
    parallel_.for_range(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* row = logits.as<T>() + r * width;
        RowResult result;
        if (target[r] >= 0) {
          result = cross_entropy_row(row, width, target[r], options);
        } else if (options.backward) {
          std::fill_n(row, width, store<T>(0.0f));
        }
        loss.as<float>()[r] = result.loss;
        if (penalty) penalty.as<float>()[r] = result.penalty;
        if (correct) correct.as<int32_t>()[r] = result.correct ? 1 : 0;
      }
    });
  });
}

}  // namespace octet
