#pragma once

#include <string>

#include "plan/run_spec.h"

namespace octet {

// What a run is about to do: model, data, device, precision, batch, memory.
std::string overview_text(const RunSpec& run);

// The memory plan by category, whose total is what the training step allocates, and what samples take in addition.
std::string memory_text(const RunPlan& plan);

// The ranks of a run: what each keeps, and the memory of what travels.
std::string ranks_text(const RunPlan& plan);

// What backward recomputes instead of keeping it.
std::string recompute_text(Checkpointing level);

// The adapters of a run: ranks, number, and how many parameters are trained and frozen.
std::string adapters_text(const ModelConfig& model, const Finetuning& finetuning);

// The learning rate at some telling steps.
std::string schedule_text(const ScheduleConfig& schedule);

}  // namespace octet
