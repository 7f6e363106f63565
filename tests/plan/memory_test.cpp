// The plan is what is allocated, and the batch size follows from plans.

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "backend/cpu/cpu_device.h"
#include "config/config.h"
#include "plan/run_plan.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

class CountingDevice final : public CpuDevice {
 public:
  CountingDevice() : CpuDevice(1) {}
  std::shared_ptr<void> allocate(int64_t bytes, Place place) override {
    allocated += bytes;
    return CpuDevice::allocate(bytes, place);
  }
  int64_t allocated = 0;
};

TEST(Memory, PlanPeakIsWhatIsAllocated) {
  for (const Checkpointing level : {Checkpointing::None, Checkpointing::Block}) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp8}) {
      CountingDevice device;
      Transformer model(two_layers("llama-tiny"), {.rows = 2, .length = 64, .checkpointing = level},
                        {.precision = precision}, device);
      EXPECT_EQ(device.allocated, 0);
      model.allocate();
      EXPECT_EQ(device.allocated, model.plan().peak_bytes());
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
  const std::unique_ptr<Device> device = make_cpu_device(1);
  for (const Precision precision : {Precision::Bf16, Precision::Fp8}) {
    int64_t previous = std::numeric_limits<int64_t>::max();
    for (const Checkpointing level :
         {Checkpointing::None, Checkpointing::Act, Checkpointing::Mlp, Checkpointing::Block}) {
      const Transformer model(model_preset("llama-tiny"), {.rows = 8, .length = 256, .checkpointing = level},
                              {.precision = precision}, *device);
      const int64_t activations = model.plan().bytes_in_arena()[3];
      EXPECT_LT(activations, previous) << static_cast<int>(level);
      previous = activations;
    }
  }
}

TEST(Memory, Fp8KeepsLessThanBf16) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const RunShape shape{.rows = 8, .length = 512};
  ModelConfig config = model_preset("llama-tiny");
  config.layers = 12;
  const auto activations = [&](Precision precision) {
    return Transformer(config, shape, {.precision = precision}, *device).plan().bytes_in_arena()[3];
  };
  EXPECT_LT(activations(Precision::Fp8), activations(Precision::Bf16));
}

TEST(Memory, LargestBatchFitsAndOneMoreDoesNot) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const ModelConfig config = two_layers("gpt2-tiny");
  const Numerics numerics{.precision = Precision::Bf16};
  RunShape shape{.rows = 1, .length = 128};
  const auto peak = [&](int64_t rows) {
    shape.rows = rows;
    return Transformer(config, shape, numerics, *device).plan().peak_bytes();
  };
  const int64_t limit = peak(13) + 1000;
  EXPECT_EQ(largest_batch(config, shape, numerics, *device, limit), 13);
  EXPECT_EQ(largest_batch(config, shape, numerics, *device, peak(1) - 1), 0);
}

// The state of a weight in bytes: bf16, remainder, moments.
TEST(Memory, OptimizerStateTakesWhatItSays) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const ModelConfig config = model_preset("llama-tiny");
  const auto optimizer_bytes = [&](DType moments, RemainderKind remainder) {
    const Numerics numerics{.precision = Precision::Bf16, .moments = moments, .remainder = remainder};
    const Transformer model(config, {.rows = 1, .length = 64}, numerics, *device);
    return static_cast<double>(model.plan().bytes(MemoryCategory::Optimizer));
  };
  const auto weights = static_cast<double>(config.parameter_count());
  // Vectors keep more, padding rows count too, and buffers are rounded up to 256 bytes.
  EXPECT_NEAR(optimizer_bytes(DType::F32, RemainderKind::Exact) / weights, 10, 0.2);
  EXPECT_NEAR(optimizer_bytes(DType::BF16, RemainderKind::Exact) / weights, 6, 0.2);
  EXPECT_NEAR(optimizer_bytes(DType::E4M3, RemainderKind::Exact) / weights, 4.0625, 0.2);
  EXPECT_NEAR(optimizer_bytes(DType::E4M3, RemainderKind::Compact) / weights, 2.5625, 0.2);
  EXPECT_NEAR(optimizer_bytes(DType::E4M3, RemainderKind::None) / weights, 2.0625, 0.2);
}

TEST(Memory, AutoTakesTheFirstLevelThatFits) {
  TrainConfig config;
  config.max_seq_length = 256;
  config.mixed_precision = Precision::Bf16;
  using Level = CheckpointingKey;
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const auto plan = [&](const TrainConfig& keys) {
    return plan_run(keys, model_preset("llama-tiny"), *device, {.length = keys.max_seq_length});
  };
  const auto gib_needed = [&](Level level) {
    config.gradient_checkpointing = level;
    config.device_memory_limit_gb = 0;
    return static_cast<double>(plan(config).bytes()) / (int64_t{1} << 30);
  };
  for (const Level level : {Level::None, Level::Act, Level::Mlp, Level::Block}) {
    const double limit = gib_needed(level) + 1e-6;
    config.gradient_checkpointing = Level::Auto;
    config.device_memory_limit_gb = limit;
    const RunPlan found = plan(config);
    EXPECT_EQ(key_of(found.shape.checkpointing), level);
    EXPECT_FALSE(found.shortage);
  }
  config.device_memory_limit_gb = gib_needed(Level::Block) / 2;
  config.gradient_checkpointing = Level::Auto;
  EXPECT_TRUE(plan(config).shortage);
}

}  // namespace
}  // namespace octet::test
