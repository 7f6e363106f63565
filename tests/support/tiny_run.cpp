#include "support/tiny_run.h"

#include "base/philox.h"

namespace octet::test {

RandomBatches::RandomBatches(int64_t rows, int64_t length, int64_t vocab, uint64_t seed, int64_t masked_every)
    : rows_(rows), length_(length), vocab_(vocab), masked_every_(masked_every), seed_(seed) {}

void RandomBatches::next(Batch& batch) {
  batch = {};
  batch.rows = rows_;
  batch.length = length_;
  for (int64_t r = 0; r < rows_; ++r, ++next_row_) {
    batch.document_starts.push_back(static_cast<int32_t>(r * length_));
    const Philox random(seed_, static_cast<uint64_t>(next_row_));
    for (int64_t t = 0; t < length_; ++t) {
      const auto token = [&](int64_t at) {
        return static_cast<int32_t>(random.below(static_cast<uint64_t>(at), static_cast<uint64_t>(vocab_)));
      };
      const bool masked = masked_every_ > 0 && (next_row_ * length_ + t) % masked_every_ == 0;
      batch.tokens.push_back(token(t));
      batch.targets.push_back(masked ? kIgnoreTarget : token(t + 1));
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.target_count += !masked;
    }
  }
  batch.token_count = rows_ * length_;
  batch.document_starts.push_back(static_cast<int32_t>(rows_ * length_));
}

ModelConfig two_layers(const char* preset) {
  ModelConfig config = model_preset(preset);
  config.layers = 2;
  return config;
}

TinyRun::TinyRun(const TinyRunOptions& o)
    : device(o.cuda ? make_cuda_device({.deterministic = true}) : make_cpu_device(o.threads)) {
  const RunShape shape{.rows = o.rows,
                       .length = o.length,
                       .checkpointing = o.checkpointing,
                       .head_chunk_bytes = 32 * 1024,  // several chunks
                       .graphs = o.graphs};
  const Numerics numerics{.precision = o.precision,
                          .fp8 = o.fp8,
                          .moments = o.moments,
                          .stochastic_weights = o.stochastic_weights};
  model = std::make_unique<Transformer>(two_layers(o.preset), shape, numerics, *device);
  model->allocate();
  model->parameters().initialise(*device, 7);
  model->weights_changed();
  batches = std::make_unique<RandomBatches>(o.rows, o.length, model->config().vocab, 11, o.masked_every);
  const OptimizerOptions optimizer{
      .schedule = {.type = ScheduleType::Constant, .peak_lr = 1e-3, .max_steps = 1000, .min_lr_ratio = 1}};
  runner = std::make_unique<StepRunner>(*model, *device, *batches, o.accumulation, optimizer, o.penalty);
}

std::vector<StepResult> TinyRun::steps(int count) {
  std::vector<StepResult> results;
  for (int i = 0; i < count; ++i) results.push_back(step());
  return results;
}

std::vector<float> TinyRun::weights() {
  std::vector<float> all;
  for (const Parameter& parameter : model->parameters().all()) {
    const std::vector<float> values = ParameterSet::weight_values(*device, parameter);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace octet::test
