#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/transformer.h"

// Whether a run fits the memory, and what to change where it does not. All of it follows from plans: nothing is
// allocated.

namespace octet {

struct Setup;

// What a run may take.
struct MemoryLimit {
  int64_t bytes = 0;
  bool by_key = false;  // device_memory_limit_gb is less than the device has
};
// Warns where device_memory_limit_gb is more than the device has.
MemoryLimit memory_limit(const TrainConfig& config, const Device& device);

// Prompts that are continued together in this run; 0 when it makes no samples.
int64_t sampling_rows(const TrainConfig& config);
// What generating them allocates beside the plan of the training step.
int64_t sampling_bytes(const TrainConfig& config, Transformer& transformer, Device& device);

// The levels that gradient_checkpointing leaves open, the cheapest first.
std::span<const Checkpointing> levels_of(TrainConfig::Checkpointing key);
TrainConfig::Checkpointing key_of(Checkpointing level);

// The largest number of rows whose plan fits `memory` bytes; 0 when not even one fits.
int64_t largest_batch(const ModelConfig& model, RunShape shape, const Numerics& numerics, Device& device,
                      int64_t memory);
// The most rows, `most` at the highest, with which target_effective_batch_size comes out exactly and, where that can be, the
// tokens of a micro-batch in sixteens: FP8 has no gradient of weights for others.
int64_t dividing_batch(const TrainConfig& config, int64_t most);

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
// Tries what takes less memory, the mildest first: gradient_checkpointing, which leaves results alone, then the head in
// BF16, optimizer_state and master_weights. Fewer rows alone are another choice; more than that is tried where it must.
MemoryRemedies find_remedies(const Setup& setup);

// Empty, or that the run is larger than its memory, with what to change.
std::string memory_shortage(const Setup& setup);
// Throws ConfigError where memory_shortage has something to say.
void check_memory(const Setup& setup);

}  // namespace octet
