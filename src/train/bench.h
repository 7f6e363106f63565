#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "train/config.h"

namespace octet {

struct BenchOptions {
  int64_t warmup = 3;
  int64_t steps = 10;
  bool profile = false;  // one more step, with the device time of every op taken
  std::function<void(const std::string&)>
      progress;  // told what is being done, since starting may take a while
};

// One variant as measured: whole optimizer steps (forward, backward, clipping, AdamW) on random tokens.
struct BenchResult {
  std::string precision;  // the label of the run
  std::string recipe;     // empty unless FP8
  std::string device;
  int64_t rows = 0;  // of a micro-batch, found where auto_batch_size was asked for
  int64_t accumulation = 0;
  double step_ms = 0;  // median
  double tokens_per_second = 0;
  double model_tflops = 0;
  // Time of the matrix products alone, at the rates measured on this GPU, over the step's; empty where there are no
  // such rates: another device, fp32, emulated FP8.
  std::optional<double> gemm_ceiling_share;
  int64_t memory_bytes = 0;
  double loss = 0;
  std::vector<OpTime> profile;  // by op, those of a kind together
};

// Throws ConfigError before anything is measured where the device cannot do what is asked for.
BenchResult bench(TrainConfig config, const BenchOptions& options);

}  // namespace octet
