#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octet {

// What a checkpoint has cost the run.
struct CheckpointCost {
  int64_t step = 0;
  int64_t bytes = 0;
  double wait_ms = 0;        // how long training waited
  double write_seconds = 0;  // in the background
};

// What is known about one logged optimizer step: the console line, metrics.jsonl and TensorBoard all read this.
struct StepRecord {
  int64_t step = 0;
  int64_t max_steps = 0;  // 0: not known
  double epoch = 0;       // passes over the dataset so far, with its fraction
  double loss = 0;        // mean over the tokens of the step; may be NaN or infinite, and is then shown so
  std::optional<double> penalty;  // added to the cross-entropy loss
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double step_ms = 0;
  double tokens_per_second = 0;  // padding does not count
  int64_t tokens = 0;            // likewise; trained on since the first step, over all ranks and restarts
  std::string precision;         // "FP8", "FP8 (emulated)", "BF16", "BF16 (fallback)", "FP32"

  std::optional<double> eval_loss;
  std::vector<std::pair<std::string, double>> eval_losses = {};  // by dataset, if there are several
  std::vector<std::string> samples;                              // texts generated at this step; any bytes
  std::optional<CheckpointCost> checkpoint;  // of the save that was finished since the last record
  std::optional<double> loss_spike;          // deviations above the losses before it, where that is a spike
  int64_t skipped_steps = 0;                 // since the first step; not written while 0
  // Micro-steps of this process that were replayed as one CUDA graph; absent where graphs are off.
  std::optional<int64_t> graph_replays;
  std::optional<std::string> fp8_json;  // statistics of the FP8 tensors, one JSON value
};

}  // namespace octet
