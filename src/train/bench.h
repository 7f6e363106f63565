#pragma once

#include <functional>
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
  double step_ms = 0;     // median
  double tokens_per_second = 0;
  double model_tflops = 0;
  int64_t memory_bytes = 0;
  double loss = 0;
  std::vector<OpTime> profile;  // by op, those of a kind together
};

BenchResult bench(TrainConfig config, const BenchOptions& options);

}  // namespace octet
