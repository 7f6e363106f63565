// Times of matrix products from the rates measured on a GPU.

#include "bench/gpu_rates.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_device.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

double seconds(const Numerics& numerics, const RunShape& shape, const GpuRates& rates) {
  CpuDevice device(1);
  return matrix_seconds(Transformer(two_layers("llama-tiny"), shape, numerics, device), rates);
}

TEST(GpuRates, EveryProductCountsAtTheRateOfItsKindAndPrecision) {
  const GpuRates rates = *gpu_rates("NVIDIA H200, 132 SMs");
  const RunShape shape = {.rows = 2, .length = 64};
  // Multiply-adds of a token in each product: qkv, out, up (gate and up), down of two layers; the padded head.
  const double layers = 2 * (256 * 128 + 128 * 128 + 2 * 384 * 128 + 128 * 384), head = 272 * 128;
  const auto expected = [&](const double* of_layers, const double* of_head) {
    double sum = 0;
    for (int i = 0; i < 3; ++i) sum += layers / of_layers[i] + head / of_head[i];
    return 2 * 128 * sum / 1e12;
  };
  const double bf16 = expected(rates.bf16, rates.bf16);
  EXPECT_NEAR(seconds({.precision = Precision::Bf16}, shape, rates), bf16, 1e-9 * bf16);
  const double fp8 = expected(rates.fp8, rates.bf16);
  const Numerics exact_sums{.precision = Precision::Fp8, .fp8 = {.fast_accumulation = Fp8FastAccum::None}};
  EXPECT_NEAR(seconds(exact_sums, shape, rates), fp8, 1e-9 * fp8);
  const double with_fast_sums[3] = {rates.fp8[0] * rates.fast_sums[0], rates.fp8[1] * rates.fast_sums[1],
                                    rates.fp8[2]};
  const double fast = expected(with_fast_sums, rates.bf16);
  const Numerics fast_sums{.precision = Precision::Fp8,
                           .fp8 = {.fast_accumulation = Fp8FastAccum::ForwardDgrad}};
  EXPECT_NEAR(seconds(fast_sums, shape, rates), fast, 1e-9 * fast);
  const double with_all_fast[3] = {with_fast_sums[0], with_fast_sums[1], rates.fp8[2] * rates.fast_sums[2]};
  const double all_fast = expected(with_all_fast, rates.bf16);
  EXPECT_LT(all_fast, fast);
  const Numerics all_sums{.precision = Precision::Fp8, .fp8 = {.fast_accumulation = Fp8FastAccum::All}};
  EXPECT_NEAR(seconds(all_sums, shape, rates), all_fast, 1e-9 * all_fast);
  const double with_fast_forward[3] = {with_fast_sums[0], rates.fp8[1], rates.fp8[2]};
  const double by_default = expected(with_fast_forward, rates.bf16);
  EXPECT_NEAR(seconds({.precision = Precision::Fp8}, shape, rates), by_default, 1e-9 * by_default);
}

TEST(GpuRates, AreOfTheGpuThatWasMeasuredAlone) {
  EXPECT_TRUE(gpu_rates("h200"));
  for (const char* other : {"NVIDIA H20", "NVIDIA H2000", "NVIDIA B200", "2 threads, AVX2", ""})
    EXPECT_FALSE(gpu_rates(other)) << other;
}

// Measured steps with adapters of rank 16 on all matrices and exact sums (bench/RESULTS.md), in milliseconds.
TEST(GpuRates, EstimatesOfStepsWithAdaptersAreNearWhatWasMeasured) {
  const GpuRates rates = *gpu_rates("h200");
  const std::unique_ptr<Device> device = make_planned_gpu("NVIDIA H200", rates.memory, rates.multiprocessors);
  const auto expect = [&](const char* preset, const RunShape& shape, bool bf16, double measured,
                          int64_t rank = 16) {
    const ModelConfig config = model_preset(preset);
    const Finetuning finetuning{
        .adapters = plan_adapters(config, {.rank = rank}),
        .one_copy_layers = shape.checkpointing == Checkpointing::None ? 0 : kAllLayers};
    const Numerics numerics{.precision = Precision::Fp8,
                            .fp8 = {.head = Fp8Head::None, .fast_accumulation = Fp8FastAccum::None}};
    const Transformer model(config, shape, numerics, *device, finetuning);
    EXPECT_NEAR(1e3 * estimate_step(model, rates, bf16).total() / measured, 1, 0.07) << preset;
  };
  const RunShape eight{.rows = 8, .length = 1024};
  expect("llama-3.1-8b", eight, false, 312.0);
  expect("llama-3.1-8b", eight, true, 455.5);
  expect("llama-3.1-8b", eight, false, 326.4, 64);
  expect("llama-3.2-1b", eight, false, 68.6);
  expect("llama-3.2-1b", eight, true, 85.2);
  expect("llama-3.1-70b", {.rows = 4, .length = 1024, .checkpointing = Checkpointing::Act}, false, 1221);
}

TEST(GpuRates, DropoutCountsWhatItMoves) {
  const GpuRates rates = *gpu_rates("h200");
  const std::unique_ptr<Device> device = make_planned_gpu("NVIDIA H200", rates.memory, rates.multiprocessors);
  const ModelConfig config = model_preset("llama-3.2-1b");
  const auto estimate = [&](double dropout, bool bf16 = false) {
    const Finetuning finetuning{.adapters = plan_adapters(config, {.rank = 16, .dropout = dropout})};
    const Transformer model(config, {.rows = 8, .length = 1024}, {.precision = Precision::Fp8}, *device,
                            finetuning);
    return estimate_step(model, rates, bf16);
  };
  const StepEstimate without = estimate(0), with = estimate(0.1);
  // 16 layers whose four inputs have three times the width and once that of the MLP, 16 bytes per element.
  const double bytes = 16.0 * 8192 * 16 * (3 * 2048 + 8192);
  EXPECT_NEAR(with.total() - without.total(), bytes / (1e12 * rates.bandwidth), 1e-9);
  EXPECT_NEAR(with.adapters - without.adapters, bytes / (1e12 * rates.bandwidth), 1e-9);
  // In BF16 there are no codes that adapters could read instead.
  const double bf16 = estimate(0.1, true).total() - estimate(0, true).total();
  EXPECT_NEAR(bf16, 0.75 * bytes / (1e12 * rates.bandwidth), 1e-9);
}

TEST(GpuRates, ThePlanTellsTheGainInWords) {
  const GpuRates rates = *gpu_rates("h200");
  CpuDevice device(1);
  const ModelConfig config = two_layers("llama-tiny");
  const Transformer model(config, {.rows = 2, .length = 64}, {.precision = Precision::Fp8}, device,
                          {.adapters = plan_adapters(config, {.rank = 4})});
  EXPECT_NE(expected_gain_text(model, rates, true).find("x as fast as BF16, about"), std::string::npos);
  EXPECT_NE(expected_gain_text(model, rates, false).find("in BF16 this run does not fit"), std::string::npos);
}

}  // namespace
}  // namespace octet::test
