#pragma once

#include <optional>
#include <string>

#include "config/schedule_keys.h"
#include "config/step_keys.h"
#include "plan/memory_fit.h"

// The third stage of a run: batch, recomputation, precision, memory, graphs and schedule. The results are plain values,
// computed from plans: nothing is allocated, and nothing points at the device.

namespace octet {

struct RunPlan {
  // The batch size that auto_batch_size found, the level of recomputation that fits, and whether graphs are recorded.
  RunShape shape;
  int64_t accumulation = 1;     // micro-batches of an optimizer step, on each rank
  Numerics numerics;            // after any fallback
  Finetuning finetuning;        // the adapters, how many layers keep one FP8 copy, and what ranks share
  std::string precision_label;  // "FP8 (emulated)", "BF16 (fallback)", ...
  std::string fallback_reason;  // empty when there was none
  MemoryLimit limit;
  MemoryPlan memory;                       // of the training step: what a Transformer of this plan allocates
  int64_t sampling_bytes = 0;              // what generating samples allocates in addition
  int64_t checkpoint_bytes = 0;            // of the tensors of a checkpoint, of all ranks together
  bool evaluates_in_fp8 = false;           // whatever fp8_eval says: no rank has the whole weights in BF16
  int64_t transposing_layers = 0;          // see Transformer
  double fp8_share = 0;                    // of all FLOPs, 0 to 1
  std::optional<MemoryShortage> shortage;  // the run does not fit

  bool is_fp8() const { return numerics.precision == Precision::Fp8; }
  int64_t bytes() const { return memory.peak_bytes() + sampling_bytes; }
  int64_t ranks() const { return finetuning.sharding.ranks; }
  int64_t sequences_per_step() const { return shape.rows * accumulation * ranks(); }  // of all ranks
};

// Limits of auto_batch_size, unless target_effective_batch_size is set.
constexpr int64_t kAutoStepsPerEpoch = 50;             // at least, if there is enough data
constexpr int64_t kAutoStepTokens = int64_t{1} << 20;  // at most

struct PlanOptions {
  int64_t length = 0;        // of a sequence
  SampleNeeds samples = {};  // that the run makes; a benchmark makes none
  // Of one pass over the training data: a batch is not larger. Empty where the data is not known.
  std::optional<int64_t> sequences = std::nullopt;
  bool precision_is_given = false;  // advice on memory must not change mixed_precision
  AdapterPlan adapters = {};        // of the run; empty: all weights are trained
  Sharding sharding = {};           // of the run, see sharding_of; all memory is that of one rank
};

// Throws ConfigError or Error that names what is wrong. A run that does not fit is none of these: see
// RunPlan::shortage.
RunPlan plan_run(const StepKeys& given, const ModelConfig& model, Device& device, const PlanOptions& options);

// The learning rates of the run and its steps: max_steps, or num_train_epochs passes over `sequences` sequences.
// ConfigError where the parts of the schedule do not fit together.
ScheduleConfig plan_schedule(const ScheduleKeys& keys, int64_t sequences, int64_t sequences_per_step);

}  // namespace octet
