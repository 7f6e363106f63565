#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/run_spec.h"
#include "report/plan_facts.h"
#include "report/step_record.h"

namespace octet {

struct Outcome {
  int64_t steps = 0;
  int64_t first_step = 0;    // steps that were done before this process
  bool stopped = false;      // by a signal
  bool save_failed = false;  // it ended for that reason, or its end could not be saved
  double first_loss = 0, last_loss = 0;
  std::optional<double> first_eval, last_eval, best_eval;
  int64_t last_eval_step = -1;
  std::string start;         // how long it took until the first step, and what took long
  double seconds = 0;        // in training steps
  int64_t tokens = 0;        // since the first step
  int64_t tokens_timed = 0;  // of them in `seconds`
  int64_t allocated_bytes = 0;
  int64_t skipped_steps = 0;
  int skipped_in_a_row = 0;             // up to the last step
  double device_seconds = 0;            // of all ranks and restarts, with evaluations and saves
  std::optional<double> energy_joules;  // likewise; empty: not known
  std::vector<std::string> red_flags;   // their kinds
  std::string run_folder;
  std::string checkpoints;             // their folder, where any were saved
  std::optional<CheckpointCost> save;  // of the last one
  std::optional<double> demo_score;    // share of unseen cases answered exactly
};

// What plan.json of the run holds. `model` is planned as the run is.
PlanFacts plan_facts_of(const RunSpec& run, const Transformer& model);
std::string summary_text(const RunSpec& run, const Outcome& outcome);
// Shown after the demo: what takes seconds, and is something else than what was just run. Commands use the program's name
// as it was called.
std::string what_next_text(const RunSpec& run, const Outcome& outcome);
// The configuration, and the plan as comments: the output is a valid configuration file.
std::string dry_run_text(const RunSpec& run);

}  // namespace octet
