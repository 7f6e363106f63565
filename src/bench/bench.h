#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/step_range.h"
#include "ops/device.h"
#include "plan/run_spec.h"

namespace octet {

struct BenchOptions {
  int64_t warmup = 3;
  int64_t steps = 10;
  std::optional<StepRange> trace_steps;              // counted from 1, warm-up included
  std::string trace_path;                            // where their trace is written
  bool profile = false;                              // one more step, with the device time of every op taken
  std::function<void(const std::string&)> progress;  // gets messages, because the start may take a while
};

// One of the runs that are compared.
struct BenchVariant {
  std::string name;  // of --variants
  TrainConfig config;
};

// The variants before any of them is measured, in their order; nothing is allocated, and the device is free again.
// Automatic settings are the same for all, so that only the precision is compared: the smallest of the automatic batch
// sizes, and the highest of the automatic levels of gradient_checkpointing. If a variant cannot run, a ConfigError or
// Error names it.
std::vector<RunSpec> plan_bench(std::span<const BenchVariant> variants);

// One variant as measured: whole optimizer steps (forward, backward, clipping, AdamW) on random tokens.
struct BenchResult {
  std::string precision;               // the label of the run
  std::string recipe;                  // empty unless FP8
  std::string fp8_format;              // likewise
  bool fp8_head = false;               // some of the head's products are in FP8
  std::string fp8_head_products;       // these: "dgrad, wgrad"
  std::string gradient_checkpointing;  // the level that ran
  std::string adapters;                // with LoRA, in words; otherwise empty
  std::string ranks;                   // if it runs as one of several ranks, in words; otherwise empty
  int64_t transposing_layers = 0;      // that keep one FP8 copy of their weights
  bool cuda_graphs = false;            // micro-steps are recorded and replayed
  GraphCounts graph_counts;            // of all steps, warm-up included; zeros without graphs
  std::string device;
  int64_t rows = 0;  // of a micro-batch, found where auto_batch_size was asked for
  int64_t length = 0;
  int64_t accumulation = 0;
  double step_ms = 0;  // median
  double tokens_per_second = 0;
  double model_tflops = 0;
  // Time of the matrix products alone, at the rates measured on this GPU, over the step's; empty where there are no
  // such rates: another device, fp32, emulated FP8.
  std::optional<double> gemm_ceiling_share;
  std::optional<double> joules_per_1000_tokens;  // of the GPU; empty if the driver does not tell
  int64_t memory_bytes = 0;
  double loss = 0;
  std::vector<OpTime> profile;  // by op, those of a kind together
};

// Measures a variant of plan_bench.
BenchResult bench(const RunSpec& run, const BenchOptions& options);

}  // namespace octet
