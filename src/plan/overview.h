#pragma once

#include <optional>
#include <string>

#include "plan/setup.h"

namespace octet {

// What a run is about to do: model, data, device, precision, batch, memory.
std::string overview_text(const Setup& setup);

// The memory plan by category; the total is what will be allocated.
std::string memory_text(const MemoryPlan& plan);

// What backward computes again instead of keeping it.
std::string recompute_text(const Setup& setup);

// The learning rate at some telling steps.
std::string schedule_text(const ScheduleConfig& schedule);

}  // namespace octet
