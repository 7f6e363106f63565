#include "support/tiny_run.h"

#include <algorithm>

#include "base/philox.h"

namespace octet::test {

RandomBatches::RandomBatches(int64_t rows, int64_t length, int64_t vocab, uint64_t seed, int64_t masked_every,
                             int64_t rank, int64_t ranks)
    : rows_(rows),
      length_(length),
      vocab_(vocab),
      masked_every_(masked_every),
      rank_(rank),
      ranks_(ranks),
      seed_(seed) {}

void RandomBatches::next(Batch& batch) {
  batch = {};
  batch.rows = rows_;
  batch.length = length_;
  for (int64_t r = 0; r < rows_; ++r, next_row_ += ranks_) {
    const int64_t row = next_row_ + rank_;
    batch.document_starts.push_back(static_cast<int32_t>(r * length_));
    const Philox random(seed_, static_cast<uint64_t>(row));
    for (int64_t t = 0; t < length_; ++t) {
      const auto token = [&](int64_t at) {
        return static_cast<int32_t>(random.below(static_cast<uint64_t>(at), static_cast<uint64_t>(vocab_)));
      };
      const bool masked = masked_every_ > 0 && (row * length_ + t) % masked_every_ == 0;
      batch.tokens.push_back(token(t));
      batch.targets.push_back(masked ? kIgnoreTarget : token(t + 1));
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.target_count += !masked;
    }
  }
  batch.token_count = rows_ * length_;
  batch.document_starts.push_back(static_cast<int32_t>(rows_ * length_));
}

PackedBatches::PackedBatches(int64_t rows, int64_t length, int64_t vocab, uint64_t seed)
    : rows_(rows), length_(length), vocab_(vocab), seed_(seed) {}

void PackedBatches::next(Batch& batch) {
  batch = {};
  batch.rows = rows_;
  batch.length = length_;
  for (int64_t r = 0; r < rows_; ++r, ++next_row_) {
    const Philox random(seed_, static_cast<uint64_t>(next_row_));
    uint64_t draws = 0;
    const auto below = [&](int64_t bound) {
      return static_cast<int64_t>(random.below(draws++, static_cast<uint64_t>(bound)));
    };
    for (int64_t begin = 0; begin < length_;) {
      const int64_t left = length_ - begin, least = length_ / 8;
      const int64_t size = left < 2 * least ? left : std::min(left, least + below(length_ / 3));
      const int64_t prompt = below(size);
      batch.document_starts.push_back(static_cast<int32_t>(r * length_ + begin));
      for (int64_t t = 0; t < size; ++t) {
        const bool masked = t < prompt || t + 1 == size;
        batch.tokens.push_back(static_cast<int32_t>(below(vocab_)));
        batch.targets.push_back(masked ? kIgnoreTarget : static_cast<int32_t>(below(vocab_)));
        batch.positions.push_back(static_cast<int32_t>(t));
        batch.target_count += !masked;
      }
      begin += size;
    }
  }
  batch.document_starts.push_back(static_cast<int32_t>(rows_ * length_));
}

ModelConfig two_layers(const char* preset) {
  ModelConfig config = model_preset(preset);
  config.layers = 2;
  return config;
}

namespace {

std::unique_ptr<Device> make_device(const TinyRunOptions& o) {
  return o.cuda ? make_cuda_device({.deterministic = true}) : make_cpu_device(o.threads);
}

Numerics numerics_of(const TinyRunOptions& o, const Device& device) {
  Numerics numerics{.precision = o.precision, .fp8 = o.fp8, .moments = o.moments, .remainder = o.remainder};
  const bool rounded = device.capabilities().fast_bf16 && o.accumulation == 1;
  numerics.gradients = o.gradients.value_or(rounded ? numerics.dense() : DType::F32);
  return numerics;
}

int64_t bytes_of(const PlannedBuffer& buffer) {
  return buffer.shape.numel() * static_cast<int64_t>(size_of(buffer.dtype));
}

}  // namespace

TinyRun::TinyRun(const TinyRunOptions& o, Device* shared)
    : own_device(shared ? nullptr : make_device(o)), device(shared ? shared : own_device.get()) {
  const RunShape shape{.rows = o.rows,
                       .length = o.length,
                       .checkpointing = o.checkpointing,
                       .head_chunk_bytes = 32 * 1024,  // several chunks
                       .graphs = o.graphs,
                       .head_all_rows = o.head_all_rows};
  const Numerics numerics = numerics_of(o, *device);
  ModelConfig config = two_layers(o.preset);
  if (o.untied_head) config.tied_head = false;
  model = std::make_unique<Transformer>(config, shape, numerics, *device,
                                        Finetuning{.adapters = o.adapters,
                                                   .one_copy_layers = o.one_copy_layers,
                                                   .storage = o.storage,
                                                   .sharding = o.sharding});
  model->allocate();
  if (o.ranks) sync = std::make_unique<RankSync>(*model, *device, *o.ranks);
  model->initialise(7);
  model->weights_changed();
  const int64_t vocab = model->config().vocab;
  if (o.packed) {
    batches = std::make_unique<PackedBatches>(o.rows, o.length, vocab, 11);
  } else {
    batches = std::make_unique<RandomBatches>(o.rows, o.length, vocab, 11, o.masked_every, o.sharding.rank,
                                              o.sharding.ranks);
  }
  const OptimizerOptions optimizer{
      .schedule = {.type = ScheduleType::Constant, .peak_lr = 1e-3, .max_steps = 1000, .min_lr_ratio = 1},
      .weight_decay = o.weight_decay,
      .loraplus_ratio = o.loraplus_ratio};
  runner = std::make_unique<StepRunner>(*model, *device, *batches, o.accumulation, optimizer, o.penalty,
                                        sync.get());
}

std::vector<StepResult> TinyRun::steps(int count) {
  std::vector<StepResult> results;
  for (int i = 0; i < count; ++i) results.push_back(step());
  return results;
}

std::vector<float> TinyRun::weights() {
  std::vector<float> all;
  for (const Parameter& parameter : model->parameters().all()) {
    if (!parameter.storage.has_dense_rows()) continue;  // frozen
    const std::vector<float> values = ParameterSet::weight_values(*device, parameter);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

int64_t planned_bytes(const MemoryPlan& plan, std::string_view ending) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers()) {
    if (buffer.name.ends_with(ending)) bytes += bytes_of(buffer);
  }
  return bytes;
}

int64_t planned_bytes(const MemoryPlan& plan, MemoryCategory category) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers()) {
    if (buffer.category == category) bytes += bytes_of(buffer);
  }
  return bytes;
}

}  // namespace octet::test
