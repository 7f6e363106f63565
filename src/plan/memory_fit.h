#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/step_keys.h"
#include "model/transformer.h"

// Whether a run fits the memory, and what to change where it does not. All of it follows from plans: nothing is
// allocated.

namespace octet {

// What a run may take.
struct MemoryLimit {
  int64_t bytes = 0;
  bool by_key = false;  // device_memory_limit_gb is less than the device has
};
// Warns where device_memory_limit_gb is more than the device has.
MemoryLimit memory_limit(const StepKeys& keys, const Device& device);

// The samples that a run makes, as far as their memory goes.
struct SampleNeeds {
  int64_t rows = 0;  // prompts that are continued together; 0: none
  bool at_evaluations = false;  // a default: short samples, made only if the step leaves enough memory
};

// What plans are made for, whatever the settings of the run are.
struct PlanTarget {
  const ModelConfig& model;
  Device& device;
  MemoryLimit limit;
  SampleNeeds samples = {};   // for which the memory must be enough, too
  AdapterPlan adapters = {};  // of the run; empty: all weights are trained
  Sharding sharding = {};     // how ranks share the run; all plans are for one rank
};

// How many layers keep one FP8 copy of their weights (Finetuning::one_copy_layers): what fp8_weight_copies leaves open. A
// run takes as few as fit.
struct OneCopyRange {
  int64_t fewest = 0, most = 0;
};
OneCopyRange one_copy_range(const StepKeys& keys, const ModelConfig& model);

// Prompts that are continued together in this run; 0 when it makes no samples. Ranks that share the weights of layers
// make none: generating needs the whole model.
int64_t sampling_rows(const SampleNeeds& samples, const Sharding& sharding);
// The longest context of a sample of a run with sequences of `length`.
int64_t sampling_length(const SampleNeeds& samples, int64_t length);
// What generating them allocates in addition to the plan of the training step.
int64_t sampling_bytes(const PlanTarget& target, Transformer& transformer);

// The levels that gradient_checkpointing leaves open, the cheapest first.
std::span<const Checkpointing> levels_of(CheckpointingKey key);
CheckpointingKey key_of(Checkpointing level);
std::string key_text(Checkpointing level);  // as users write it

// The training step with the first level of recomputation that fits; with the last level if none fits. Transposing
// weights and more chunks of the head cost less than recomputing more, so they come first. Of these two ways, the one that
// moves fewer bytes is taken.
struct StepPlan {
  std::unique_ptr<Transformer> transformer;
  int64_t sampling_bytes = 0;
  // Of the first level with all copies, and with the smallest chunks that do not fit.
  std::optional<int64_t> first_need;
  int64_t need() const { return transformer->plan().peak_bytes() + sampling_bytes; }
};
StepPlan plan_step(const StepKeys& keys, const PlanTarget& target, RunShape shape, const Numerics& numerics);

// The largest number of rows whose plan fits `memory` bytes; 0 when not even one fits.
int64_t largest_batch(const ModelConfig& model, RunShape shape, const Numerics& numerics, Device& device,
                      int64_t memory, const Finetuning& finetuning = {});
// The largest number of rows of `length` tokens, at most `most`, with which `ranks` ranks divide target_effective_batch_size. If possible, the tokens of a
// micro-batch are a multiple of 16, because FP8 weight gradients need that.
int64_t dividing_batch(const StepKeys& keys, int64_t length, int64_t most, int64_t ranks = 1);

struct KeyChange {
  std::string key, value;  // as users write them
};
struct MemoryAdvice {
  std::vector<KeyChange> changes;  // to be made together
  int64_t need = 0;                // bytes of the run that has them
};
struct MemoryRemedies {
  std::vector<MemoryAdvice> fitting;  // each alone makes the run fit; empty where nothing does
  MemoryAdvice least;                 // what takes the least memory; only where nothing fits
};

// A run as it is planned, as far as its memory goes.
struct PlannedMemory {
  const StepKeys& keys;  // with the batch size of the plan
  RunShape shape;
  Precision precision;              // of the plan
  bool fell_back = false;           // to that precision, from the one that the configuration asks for
  bool precision_is_given = false;  // the user asks about this precision: advice must not change it
  int64_t step_bytes = 0;           // of the training step
  int64_t sampling_bytes = 0;       // what generating samples takes in addition
  int64_t need() const { return step_bytes + sampling_bytes; }
};

// Tries settings that need less memory, the smallest change first. One FP8 copy of weights (fp8_weight_copies) and
// gradient_checkpointing do not change results. Then come what several ranks share (sharding_mode), the head in BF16,
// optimizer_state and master_weights (compact, then stochastic). The alternative is fewer rows. Combinations are tried only
// if none of these is enough.
MemoryRemedies find_remedies(const PlannedMemory& run, const PlanTarget& target);

// That a run is larger than its memory.
struct MemoryShortage {
  MemoryRemedies remedies;
  std::string text;  // in one sentence, with what to change
};
std::optional<MemoryShortage> memory_shortage(const PlannedMemory& run, const PlanTarget& target);

}  // namespace octet
