#pragma once

#include <memory>
#include <vector>

#include "data/loading/loader.h"
#include "model/transformer.h"
#include "train/step.h"

namespace octet::test {

// Random tokens, the same for the same seed, with every `masked_every`-th target ignored (0: none).
class RandomBatches final : public BatchSource {
 public:
  RandomBatches(int64_t rows, int64_t length, int64_t vocab, uint64_t seed, int64_t masked_every = 0);
  void next(Batch& batch) override;
  LoaderState state() const override { return {0, next_row_}; }
  void set_state(const LoaderState& state) override { next_row_ = state.next_sample; }
  double epoch() const override { return 0; }

 private:
  int64_t rows_, length_, vocab_, masked_every_;
  uint64_t seed_;
  int64_t next_row_ = 0;
};

// A two-layer model of a family in training, small enough for many runs in a test.
struct TinyRunOptions {
  const char* preset = "llama-tiny";
  Precision precision = Precision::Fp32;
  Fp8Config fp8 = {};
  Checkpointing checkpointing = Checkpointing::None;
  int threads = 2;
  int64_t rows = 2, length = 32, accumulation = 1;
  int64_t masked_every = 0;
  PenaltyOptions penalty = {};
  DType moments = DType::F32;
  bool stochastic_weights = false;
  bool cuda = false;  // on the GPU, with deterministic kernels
  bool graphs = false;
};

class TinyRun {
 public:
  explicit TinyRun(const TinyRunOptions& options);

  StepResult step() { return runner->train_step(done++, false); }
  std::vector<StepResult> steps(int count);
  // All weights as exact fp32 values, one after another.
  std::vector<float> weights();

  std::unique_ptr<Device> device;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<RandomBatches> batches;
  std::unique_ptr<StepRunner> runner;
  int64_t done = 0;
};

ModelConfig two_layers(const char* preset);

}  // namespace octet::test
