// The plan is what is allocated, and the batch size follows from plans.

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "support/tiny_run.h"
#include "train/setup.h"

namespace octet::test {
namespace {

class CountingBackend final : public CpuBackend {
 public:
  CountingBackend() : CpuBackend(1) {}
  std::shared_ptr<void> allocate(int64_t bytes) override {
    allocated += bytes;
    return CpuBackend::allocate(bytes);
  }
  int64_t allocated = 0;
};

TEST(Memory, PlanPeakIsWhatIsAllocated) {
  for (const Checkpointing level : {Checkpointing::None, Checkpointing::Block}) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp8}) {
      CountingBackend backend;
      Transformer model(two_layers("llama-tiny"), {.rows = 2, .length = 64, .checkpointing = level},
                        {.precision = precision}, backend);
      EXPECT_EQ(backend.allocated, 0);
      model.allocate();
      EXPECT_EQ(backend.allocated, model.plan().peak_bytes());
      EXPECT_EQ(model.allocated_bytes(), model.plan().peak_bytes());
      const auto parts = model.plan().bytes_in_arena();
      EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), model.plan().peak_bytes());
      for (const PlannedBuffer& buffer : model.plan().buffers()) {
        EXPECT_LE(buffer.offset + buffer.shape.numel() * static_cast<int64_t>(size_of(buffer.dtype)),
                  model.plan().peak_bytes())
            << buffer.name;
      }
    }
  }
}

TEST(Memory, CheckpointingSavesMemoryLevelByLevel) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  for (const Precision precision : {Precision::Bf16, Precision::Fp8}) {
    int64_t previous = std::numeric_limits<int64_t>::max();
    for (const Checkpointing level :
         {Checkpointing::None, Checkpointing::Act, Checkpointing::Mlp, Checkpointing::Block}) {
      const Transformer model(model_preset("llama-tiny"), {.rows = 8, .length = 256, .checkpointing = level},
                              {.precision = precision}, *backend);
      const int64_t activations = model.plan().bytes_in_arena()[3];
      EXPECT_LT(activations, previous) << static_cast<int>(level);
      previous = activations;
    }
  }
}

TEST(Memory, Fp8KeepsLessThanBf16) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const RunShape shape{.rows = 8, .length = 512};
  ModelConfig config = model_preset("llama-tiny");
  config.layers = 12;
  const auto activations = [&](Precision precision) {
    return Transformer(config, shape, {.precision = precision}, *backend).plan().bytes_in_arena()[3];
  };
  EXPECT_LT(activations(Precision::Fp8), activations(Precision::Bf16));
}

TEST(Memory, LargestBatchFitsAndOneMoreDoesNot) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const ModelConfig config = two_layers("gpt2-tiny");
  const Numerics numerics{.precision = Precision::Bf16};
  RunShape shape{.rows = 1, .length = 128};
  const auto peak = [&](int64_t rows) {
    shape.rows = rows;
    return Transformer(config, shape, numerics, *backend).plan().peak_bytes();
  };
  const int64_t limit = peak(13) + 1000;
  EXPECT_EQ(largest_batch(config, shape, numerics, *backend, limit), 13);
  EXPECT_EQ(largest_batch(config, shape, numerics, *backend, peak(1) - 1), 0);
}

}  // namespace
}  // namespace octet::test
