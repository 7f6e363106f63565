#pragma once

#include <optional>
#include <string>

#include "report/step_record.h"
#include "train/setup.h"

namespace octet {

// What a run is about to do: model, data, device, precision, batch, memory.
std::string overview_text(const Setup& setup);

// The memory plan by category; the total is what will be allocated.
std::string memory_text(const MemoryPlan& plan);

// What backward computes again instead of keeping it.
std::string recompute_text(const Setup& setup);

// The learning rate at some telling steps.
std::string schedule_text(const ScheduleConfig& schedule);

struct Outcome {
  int64_t steps = 0;
  int64_t first_step = 0;  // steps that were done before this process
  bool stopped = false;    // by a signal
  double first_loss = 0, last_loss = 0;
  std::optional<double> first_eval, last_eval, best_eval;
  double seconds = 0;        // in training steps
  int64_t tokens = 0;        // since the first step
  int64_t tokens_timed = 0;  // of them in `seconds`
  int64_t allocated_bytes = 0;
  int64_t skipped_steps = 0;
  std::string run_folder;
  std::string checkpoints;             // their folder, where any were saved
  std::optional<CheckpointCost> save;  // of the last one
  std::optional<double> demo_score;    // share of unseen cases answered exactly
};

std::string summary_text(const Setup& setup, const Outcome& outcome);

}  // namespace octet
