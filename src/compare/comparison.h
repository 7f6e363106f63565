#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/statistics.h"
#include "report/plan_facts.h"
#include "report/run_folder.h"
#include "report/run_parent.h"

namespace octet {

struct ComparedRun {
  RunFolder run;  // with the records of the runs that it continues
  RunLineage lineage = {};
  std::optional<PlanFacts> plan = std::nullopt;
  std::string variant = {};  // the name of its variant; empty: runs that differ only in their seed are one
};

// Reads the runs and their plans. The curve of a run that continues another one has the other's steps up to the fork. A folder without metrics and a run without a step are skipped with a warning, and so
// is a run that is given twice. ConfigError if fewer than two are left.
std::vector<ComparedRun> read_compared_runs(const std::vector<std::string>& paths);

// Figures of a run, over the steps that all runs have.
struct RunFigures {
  double tokens_per_second = 0;       // median, without the first steps
  std::optional<double> speed_noise;  // half of its 95 % interval, as a share of it; absent: too few steps
  double step_ms = 0;                 // median, likewise
  double loss = 0;                    // mean over the last part; of a run that diverged, not finite
  std::optional<double> eval_loss;    // of the last evaluation that all runs have
  std::optional<int64_t> memory_bytes;
  bool memory_is_planned = false;       // the metrics hold none; it is that of the plan
  int64_t tokens = 0;                   // trained on up to the last common step
  double seconds = 0;                   // training up to there, without evaluations and saving
  std::optional<double> energy_joules;  // of the GPUs of all ranks, as the metrics have it
  std::optional<double> joules_per_1000_tokens;
  std::optional<double> cost, cost_per_million_tokens;  // of all devices, with a price per hour
  std::optional<double> fp8_share;                      // absent: not recorded
  std::string precision;
  int64_t bad_steps = 0;                  // logged steps whose loss is not finite
  std::optional<int64_t> first_bad_step;  // the first of them
  std::optional<int64_t>
      diverged_step;  // from which on no loss is finite; single bad steps are no divergence
  int64_t skipped_steps = 0;
};

struct Variant {
  std::string name;   // as in tables
  std::string label;  // in the verdict: the precision where that tells the variants apart, else the name
  std::vector<size_t> runs;  // of Comparison::runs
  RunFigures mean;           // of its runs
};

// Variant minus reference.
struct Difference {
  double mean = 0;     // over the last part and all seeds
  double percent = 0;  // of the reference
  double largest = 0;  // over all common steps, by its absolute value; with its sign
  int64_t largest_step = 0;
  std::optional<ConfidenceInterval> interval;  // of the mean, 95 %; absent: the noise is not known
  std::string basis;  // what the interval follows from, or why there is none: "t interval over 3 seeds"
  std::string unit;   // "step" or "evaluation"
  bool too_few_values = false;  // to know the noise
  bool over_seeds =
      false;  // the interval is over several runs of each variant, else over the steps of one run each
  bool within_noise() const { return interval && interval->holds(0); }
  // Half of the interval, in percent of the reference: smaller differences cannot be seen.
  double noise_percent() const {
    return interval && mean != 0 ? (interval->high - interval->low) / 2 * std::abs(percent / mean) : 0;
  }
};

struct VariantComparison {
  size_t variant = 0;                 // of Comparison::variants, never the reference
  double speed = 1;                   // times the tokens per second of the reference
  std::optional<double> speed_noise;  // half of its 95 % interval, as a share of it; absent: not known
  std::optional<double> memory, energy, cost_per_token;  // times those of the reference
  std::optional<Difference> loss;  // absent if a variant diverged or no common step has finite losses
  std::optional<Difference> evaluation;
  std::string verdict;   // one sentence
  bool is_good = false;  // not slower, finite, and the loss within noise or lower
};

struct SettingRow {
  std::string key;
  std::vector<std::string> values;  // one per variant; several values of one variant are separated by commas
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::vector<RunFigures> figures;  // one per run
  std::vector<Variant> variants;    // the first one is the reference
  std::vector<VariantComparison> comparisons;
  std::vector<int64_t> steps;         // that all runs have records of
  int64_t fork = 0;                   // the last step that a run has from another one; 0: none has
  std::vector<int64_t> last_steps;    // those of them that the mean differences are over
  std::vector<int64_t> eval_steps;    // common evaluations
  std::vector<SettingRow> settings;   // that differ between variants
  std::vector<std::string> notes;     // about the comparison
  std::vector<std::string> warnings;  // why it is not fair
  std::string verdict;
  std::optional<size_t> best;  // of comparisons: the fastest good one; none if speeds were emulated
};

struct CompareOptions {
  double price_per_hour = 0;  // of one device; 0: each run's own key price_per_hour
};

// ConfigError if the runs have no step in common.
Comparison compare_runs(std::vector<ComparedRun> runs, const CompareOptions& options = {});

}  // namespace octet
