#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octet {

// The cost of a checkpoint for the run.
struct CheckpointCost {
  int64_t step = 0;
  int64_t bytes = 0;
  double wait_ms = 0;        // how long training waited
  double write_seconds = 0;  // in the background
};

// NVML's figures of the GPU of the first rank. Power, use and clock are means since the last record. Only the energy
// is that of all ranks.
struct GpuFigures {
  double power_watts = 0;
  double energy_joules = 0;  // of the GPUs of all ranks, since the first step of the run, over restarts
  double utilization = 0;    // 0 to 1: share of the time in which a kernel ran
  double sm_clock_mhz = 0;
  double temperature_c = 0;
  std::string throttled = {};  // why the clock was lowered since the last record; empty: it was not
};

// A sign that a run does not go as it should. Each kind is reported once per run.
struct RedFlag {
  std::string kind;  // "loss_not_falling", ...
  std::string text;  // what was seen and what to do
};

// Everything known about one logged optimizer step: the console line, metrics.jsonl and TensorBoard all read this.
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
  std::vector<std::pair<std::string, double>> task_scores = {};  // "hellaswag/acc_norm"
  std::vector<std::string> samples;                              // texts generated at this step; any bytes
  std::optional<CheckpointCost> checkpoint;  // of the save that was finished since the last record
  std::optional<double> loss_spike;          // deviations above the losses before it, where that is a spike
  std::optional<double> grad_norm_spike;     // multiple of the recent norms, where that is a spike
  int64_t skipped_steps = 0;                 // since the first step; not written while 0
  // Parts of micro-steps that this process replayed as CUDA graphs; absent where graphs are off.
  std::optional<int64_t> graph_replays;
  std::optional<std::string> fp8_json;  // statistics of the FP8 tensors, one JSON value
  // Medians over all layers of the scales of inputs and weights, and of gradients.
  std::optional<double> fp8_fwd_scale, fp8_bwd_scale;
  std::optional<double> time;           // seconds since 1970, when the step was over
  // Seconds of all devices together since the first step, over restarts, with evaluations, saves and repeated steps.
  std::optional<double> device_seconds = {};
  std::optional<double> data_wait_ms;   // of step_ms: how long the step waited for its data
  std::optional<int64_t> memory_bytes;  // that this process has allocated on its device
  std::optional<GpuFigures> gpu;
  std::vector<RedFlag> red_flags = {};  // raised at this step
};

}  // namespace octet
