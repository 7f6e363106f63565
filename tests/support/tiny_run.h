#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "data/loading/loader.h"
#include "model/transformer.h"
#include "train/step.h"

namespace octet::test {

// Random tokens, the same for the same seed, with every `masked_every`-th target ignored (0: none).
class RandomBatches final : public BatchSource {
 public:
  // Rank r of n gets the rows r, r + n, ...
  RandomBatches(int64_t rows, int64_t length, int64_t vocab, uint64_t seed, int64_t masked_every = 0,
                int64_t rank = 0, int64_t ranks = 1);
  void next(Batch& batch) override;
  LoaderState state() const override { return {0, next_row_}; }
  void set_state(const LoaderState& state) override { next_row_ = state.next_sample; }
  double epoch() const override { return 0; }

 private:
  int64_t rows_, length_, vocab_, masked_every_, rank_, ranks_;
  uint64_t seed_;
  int64_t next_row_ = 0;
};

// Packed documents of random lengths, as in fine-tuning: each row is full of them, and the first part of each document
// has no targets. The number of documents, the longest and the number of targets differ from batch to batch.
class PackedBatches final : public BatchSource {
 public:
  PackedBatches(int64_t rows, int64_t length, int64_t vocab, uint64_t seed);
  void next(Batch& batch) override;
  LoaderState state() const override { return {0, next_row_}; }
  void set_state(const LoaderState& state) override { next_row_ = state.next_sample; }
  double epoch() const override { return 0; }

 private:
  int64_t rows_, length_, vocab_;
  uint64_t seed_;
  int64_t next_row_ = 0;
};

// The same batch for ever.
class OneBatch final : public BatchSource {
 public:
  explicit OneBatch(Batch batch) : batch_(std::move(batch)) {}
  void next(Batch& batch) override { batch = batch_; }
  LoaderState state() const override { return {}; }
  void set_state(const LoaderState&) override {}
  double epoch() const override { return 0; }

 private:
  Batch batch_;
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
  RemainderKind remainder = RemainderKind::Exact;  // of bf16 matrices
  bool packed = false;                             // PackedBatches instead of RandomBatches
  // Of matrices. Absent: as a run on the device would have it, see numerics_from in plan/numerics.cpp.
  std::optional<DType> gradients;
  StoragePolicy storage = {};
  Sharding sharding = {};
  Ranks* ranks = nullptr;  // with an active sharding
  AdapterPlan adapters = {};
  int64_t one_copy_layers = 0;
  float loraplus_ratio = 1;
  float weight_decay = 0.1f;
  bool cuda = false;  // on the GPU, with deterministic kernels
  bool graphs = false;
  bool head_all_rows = false;
  bool untied_head = false;  // presets of tiny models have a head that is tied to the embedding
};

class TinyRun {
 public:
  // On a device of its own, or on `shared`.
  explicit TinyRun(const TinyRunOptions& options, Device* shared = nullptr);

  StepResult step() { return runner->train_step(done++, false); }
  std::vector<StepResult> steps(int count);
  // All weights as exact fp32 values, one after another.
  std::vector<float> weights();

  std::unique_ptr<Device> own_device;
  Device* device;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<RankSync> sync;
  std::unique_ptr<BatchSource> batches;
  std::unique_ptr<StepRunner> runner;
  int64_t done = 0;
};

ModelConfig two_layers(const char* preset);

// Bytes of the planned buffers whose name has this ending, or of this category.
int64_t planned_bytes(const MemoryPlan& plan, std::string_view ending);
int64_t planned_bytes(const MemoryPlan& plan, MemoryCategory category);

}  // namespace octet::test
