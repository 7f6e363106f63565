#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "model/transformer.h"

namespace octet {

// Rates of the three products of a Linear on a GPU, TFLOP/s, measured on layers of Llama-3.1-8B at 8,192 tokens with
// the best cuBLASLt algorithm of each (medians over the layers; bench/RESULTS.md has the table).
struct GpuRates {
  std::string_view gpu;
  double bf16[3];  // indexed by Product
  double fp8[3];   // with exact sums
  // Times that with fast sums: forward as measured in a step of Llama-3.1-8B, dgrad derived from the time of the whole
  // step, wgrad as measured in two steps of Qwen2.5-14B, on two GPUs.
  double fast_sums[3];
  // For estimates of whole steps.
  double attention;  // TFLOP/s over forward and backward together
  double bandwidth;  // TB/s, read and written
  double sustained;  // share of the rates above that products reach in a whole step, when the GPU is hot
  int64_t memory;    // bytes that a program finds free
  int multiprocessors;
};

// By name ("h200", "NVIDIA H200, 132 SMs"); empty when nothing was measured on such a GPU.
std::optional<GpuRates> gpu_rates(std::string_view name);

// FLOP/s of a product in its chosen precision, or in BF16.
double rate_of(const Linear& linear, Product product, const GpuRates& rates, bool all_bf16 = false);

// Time that the forward, dgrad and wgrad products of all Linears and the head take for one micro-batch at these rates,
// each once and in its chosen precision (FP8 or BF16). Attention and everything else is not counted.
double matrix_seconds(const Transformer& transformer, const GpuRates& rates);

// The same time with every product in BF16, over the time as chosen.
double expected_matrix_ratio(const Transformer& transformer, const GpuRates& rates);

// Where the time of a training step of a model with adapters goes, in seconds: products at the sustained rates; adapters,
// norms, activations and transposed weights by the bytes that they move. Recomputed products count as well.
// bench/RESULTS.md compares estimates with measured steps.
struct StepEstimate {
  double base = 0, head = 0, adapters = 0, attention = 0, other = 0;
  double total() const { return base + head + adapters + attention + other; }
};
// As planned, or with every product in BF16.
StepEstimate estimate_step(const Transformer& transformer, const GpuRates& rates, bool all_bf16);

// In plain words: how much faster FP8 is expected to be than BF16, and why not more. `bf16_fits`: the run would fit the
// memory in BF16, too.
std::string expected_gain_text(const Transformer& transformer, const GpuRates& rates, bool bf16_fits);

}  // namespace octet
