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
  EXPECT_NEAR(seconds({.precision = Precision::Fp8}, shape, rates), fp8, 1e-9 * fp8);
}

TEST(GpuRates, AreOfTheGpuThatWasMeasuredAlone) {
  EXPECT_TRUE(gpu_rates("h200"));
  for (const char* other : {"NVIDIA H20", "NVIDIA H2000", "NVIDIA B200", "2 threads, OpenBLAS", ""})
    EXPECT_FALSE(gpu_rates(other)) << other;
}

}  // namespace
}  // namespace octet::test
