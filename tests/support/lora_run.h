#pragma once

#include <span>
#include <vector>

#include "support/tiny_run.h"

namespace octet::test {

inline constexpr const char* kFamilies[] = {"gpt2-tiny", "llama-tiny", "qwen2.5-tiny", "qwen3-tiny",
                                            "mistral-tiny"};

// The adapters of the two-layer model of a preset.
AdapterPlan lora_plan(const char* preset, const LoraConfig& lora = {.rank = 4, .alpha = 8});

// Random values for every A and B. A new adapter has B = 0, which would hide most mistakes.
void fill_adapters(Device& device, ParameterSet& parameters, uint64_t seed = 21);
// Random gains and biases, the same for the same seed whatever else the model has.
void fill_vectors(Device& device, ParameterSet& parameters, uint64_t seed = 22);
// The weights of a full model become those of `lora` with every adapter merged: W + scale * B A, in double precision.
void merge_into(TinyRun& full, TinyRun& lora);

// Forward and backward of one micro-batch, without a step of the optimizer. Returns the mean loss over its targets.
// Gradients are divided by `targets`; 0: those of the batch.
double pass(TinyRun& run, const Batch& batch, bool first = true, uint64_t dropout_seed = 0,
            int64_t targets = 0);
Batch next_batch(TinyRun& run);

std::vector<float> gradient_of(TinyRun& run, const Parameter& parameter);
// The gradients, or the weights, of all adapters, one after another.
std::vector<float> adapter_gradients(TinyRun& run);
std::vector<float> adapter_weights(TinyRun& run);

// The largest |a - b| over the largest |b|.
double largest_difference(std::span<const float> a, std::span<const float> b);
// ||a - b|| / ||b||.
double norm_difference(std::span<const float> a, std::span<const float> b);

}  // namespace octet::test
