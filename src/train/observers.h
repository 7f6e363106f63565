#pragma once

#include <memory>

#include "train/evaluate_tasks.h"
#include "train/run_context.h"
#include "train/run_observer.h"

// What a run does besides its steps. Each observer stands in a file of its own, named as its function.

namespace octet {

// The trace of profile_steps.
std::unique_ptr<RunObserver> make_trace_observer(RunContext& run);
// Ranks tell each other how they are, stop together, and compare their weights.
std::unique_ptr<RunObserver> make_rank_observer(RunContext& run);
// Device time and energy.
std::unique_ptr<RunObserver> make_cost_observer(RunContext& run);
// The outcome so far, and the record of every step.
std::unique_ptr<RunObserver> make_log_observer(RunContext& run);
// The loss on held-out data.
std::unique_ptr<RunObserver> make_evaluation_observer(RunContext& run);
// Scores of multiple-choice tasks.
std::unique_ptr<RunObserver> make_task_observer(RunContext& run, TaskEvaluator tasks);
// Samples of text, and the demo's exam.
std::unique_ptr<RunObserver> make_sample_observer(RunContext& run);
// Checkpoints.
std::unique_ptr<RunObserver> make_saving_observer(RunContext& run);
// Whether a crash is worth another start, and what a launcher wants to know of that.
std::unique_ptr<RunObserver> make_crash_observer(RunContext& run);
// Ends a run that is not worth going on.
std::unique_ptr<RunObserver> make_verdict_observer(RunContext& run);

}  // namespace octet
