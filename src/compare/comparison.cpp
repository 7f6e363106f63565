#include "compare/comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "compare/settings.h"
#include "compare/verdict.h"
#include "report/text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr double kLastPart = 0.2;        // of the common steps: what mean differences are over
constexpr size_t kLeastLastSteps = 10;   // if there are so many
constexpr double kWarmUp = 0.1;          // of the common steps: not counted for the speed
constexpr size_t kLeastEvaluations = 4;  // whose spread says something

using StepIndex = std::map<int64_t, const StepRecord*>;

StepIndex by_step(const RunFolder& run) {
  StepIndex index;
  for (const StepRecord& record : run.records) index[record.step] = &record;
  return index;
}

// The steps of all runs for which `wanted` holds in each of them.
template <class Predicate>
std::vector<int64_t> common_steps(const std::vector<StepIndex>& runs, const Predicate& wanted) {
  std::vector<int64_t> steps;
  for (const auto& [step, record] : runs.front()) {
    const bool everywhere = std::ranges::all_of(runs, [&, number = step](const StepIndex& run) {
      const auto found = run.find(number);
      return found != run.end() && wanted(*found->second);
    });
    if (everywhere) steps.push_back(step);
  }
  return steps;
}

std::vector<int64_t> last_share(const std::vector<int64_t>& steps, double share, size_t least) {
  const auto wanted = static_cast<size_t>(std::ceil(share * static_cast<double>(steps.size())));
  const size_t count = std::min(steps.size(), std::max(wanted, least));
  return {steps.end() - static_cast<std::ptrdiff_t>(count), steps.end()};
}

// Everything that the parts of a comparison look up again and again.
struct Tables {
  std::vector<StepIndex> runs;
  const Comparison& comparison;

  double loss(size_t run, int64_t step) const { return runs[run].at(step)->loss; }
  double eval(size_t run, int64_t step) const { return *runs[run].at(step)->eval_loss; }
};

void note_energy(RunFigures& figures, const StepIndex& records, int64_t last) {
  const StepRecord* with_gpu = nullptr;
  for (const auto& [step, record] : records) {
    if (step <= last && record->gpu) with_gpu = record;
  }
  if (!with_gpu || with_gpu->tokens <= 0 || !(with_gpu->gpu->energy_joules > 0)) return;
  figures.energy_joules = with_gpu->gpu->energy_joules;
  figures.joules_per_1000_tokens = 1e3 * *figures.energy_joules / static_cast<double>(with_gpu->tokens);
}

void note_memory(RunFigures& figures, const ComparedRun& compared) {
  for (const StepRecord& record : compared.run.records) {
    if (record.memory_bytes)
      figures.memory_bytes = std::max(figures.memory_bytes.value_or(0), *record.memory_bytes);
  }
  if (figures.memory_bytes || !compared.plan) return;
  figures.memory_bytes = compared.plan->memory_bytes;
  figures.memory_is_planned = true;
}

RunFigures figures_of(const Tables& tables, size_t run, const CompareOptions& options) {
  const Comparison& comparison = tables.comparison;
  const ComparedRun& compared = comparison.runs[run];
  const StepIndex& records = tables.runs[run];
  const int64_t last = comparison.steps.back();
  RunFigures figures;
  const auto& steps = comparison.steps;
  const size_t skipped =
      steps.size() < 2
          ? 0
          : std::max<size_t>(1, static_cast<size_t>(kWarmUp * static_cast<double>(steps.size())));
  std::vector<double> speeds, times, losses, all_times;
  for (size_t i = skipped; i < steps.size(); ++i) {
    const StepRecord& record = *records.at(steps[i]);
    if (std::isfinite(record.tokens_per_second)) speeds.push_back(record.tokens_per_second);
    if (std::isfinite(record.step_ms)) times.push_back(record.step_ms);
  }
  for (const int64_t step : comparison.last_steps) losses.push_back(records.at(step)->loss);
  for (const auto& [step, record] : records) {
    if (step > last) break;
    if (std::isfinite(record->step_ms)) all_times.push_back(record->step_ms);
    if (!std::isfinite(record->loss) && !figures.first_bad_step) figures.first_bad_step = step;
    figures.skipped_steps = std::max(figures.skipped_steps, record->skipped_steps);
  }
  figures.tokens_per_second = median_of(speeds);
  figures.step_ms = median_of(times);
  figures.loss = mean_of(losses);
  if (!comparison.eval_steps.empty()) figures.eval_loss = tables.eval(run, comparison.eval_steps.back());
  figures.tokens = records.at(last)->tokens;
  // Steps that were not logged took as long as the others.
  figures.seconds = mean_of(all_times) * 1e-3 * static_cast<double>(last);
  figures.precision = records.at(last)->precision;
  if (compared.plan) figures.fp8_share = compared.plan->fp8_share;
  note_memory(figures, compared);
  note_energy(figures, records, last);
  if (options.price_per_hour > 0) {
    figures.cost = options.price_per_hour * figures.seconds / 3600;
    figures.cost_per_million_tokens = options.price_per_hour / 3600 / figures.tokens_per_second * 1e6;
  }
  return figures;
}

template <class T>
std::optional<T> mean_member(const std::vector<RunFigures>& runs, const Variant& variant,
                             std::optional<T> RunFigures::*member) {
  std::vector<double> values;
  for (const size_t run : variant.runs) {
    if (!(runs[run].*member)) return std::nullopt;
    values.push_back(static_cast<double>(*(runs[run].*member)));
  }
  return static_cast<T>(mean_of(values));
}

double mean_member(const std::vector<RunFigures>& runs, const Variant& variant, double RunFigures::*member) {
  std::vector<double> values;
  for (const size_t run : variant.runs) values.push_back(runs[run].*member);
  return mean_of(values);
}

RunFigures mean_figures(const std::vector<RunFigures>& all, const Variant& variant) {
  RunFigures mean = all[variant.runs.front()];
  for (const auto member :
       {&RunFigures::tokens_per_second, &RunFigures::step_ms, &RunFigures::loss, &RunFigures::seconds})
    mean.*member = mean_member(all, variant, member);
  for (const auto member :
       {&RunFigures::eval_loss, &RunFigures::energy_joules, &RunFigures::joules_per_1000_tokens,
        &RunFigures::cost, &RunFigures::cost_per_million_tokens, &RunFigures::fp8_share})
    mean.*member = mean_member(all, variant, member);
  mean.memory_bytes = mean_member(all, variant, &RunFigures::memory_bytes);
  for (const size_t run : variant.runs) {
    const RunFigures& one = all[run];
    if (one.first_bad_step)
      mean.first_bad_step = std::min(mean.first_bad_step.value_or(*one.first_bad_step), *one.first_bad_step);
    mean.skipped_steps = std::max(mean.skipped_steps, one.skipped_steps);
  }
  return mean;
}

struct RunPair {
  size_t reference, other;
};

// Runs of the same seed saw the same batches. Without two such pairs: the first run of each.
std::vector<RunPair> pairs_of(const Comparison& comparison, const Variant& reference, const Variant& other) {
  std::vector<RunPair> pairs;
  for (const size_t a : reference.runs) {
    for (const size_t b : other.runs) {
      const std::string seed = comparison.runs[a].run.setting("seed");
      if (!seed.empty() && seed == comparison.runs[b].run.setting("seed")) {
        pairs.push_back({a, b});
        break;
      }
    }
  }
  if (pairs.empty()) pairs.push_back({reference.runs.front(), other.runs.front()});
  return pairs;
}

// One of the two losses that are compared.
struct Curve {
  double (Tables::*value)(size_t, int64_t) const;
  const std::vector<int64_t>* all;  // steps
  std::vector<int64_t> last;
};

std::vector<double> paired(const Tables& tables, const Curve& curve, RunPair pair,
                           const std::vector<int64_t>& steps) {
  std::vector<double> differences;
  for (const int64_t step : steps)
    differences.push_back((tables.*curve.value)(pair.other, step) -
                          (tables.*curve.value)(pair.reference, step));
  return differences;
}

double mean_over(const Tables& tables, const Curve& curve, size_t run) {
  std::vector<double> values;
  for (const int64_t step : curve.last) values.push_back((tables.*curve.value)(run, step));
  return mean_of(values);
}

// Over seeds, where both variants have several runs.
std::optional<MeanEstimate> seed_estimate(const Tables& tables, const Curve& curve, const Variant& reference,
                                          const Variant& other, const std::vector<RunPair>& pairs,
                                          std::string& basis) {
  if (reference.runs.size() < 2 || other.runs.size() < 2) return std::nullopt;
  if (pairs.size() >= 2) {
    std::vector<double> differences;
    for (const RunPair& pair : pairs) differences.push_back(mean_of(paired(tables, curve, pair, curve.last)));
    basis = fmt::format("t interval over {} pairs of runs with the same seed", pairs.size());
    return estimate_mean(differences);
  }
  std::vector<double> a, b;
  for (const size_t run : reference.runs) a.push_back(mean_over(tables, curve, run));
  for (const size_t run : other.runs) b.push_back(mean_over(tables, curve, run));
  basis = fmt::format("t interval over {} and {} runs", a.size(), b.size());
  return estimate_difference(a, b);
}

Difference difference_of(const Tables& tables, const Curve& curve, const Variant& reference,
                         const Variant& other, const char* what) {
  const std::vector<RunPair> pairs = pairs_of(tables.comparison, reference, other);
  Difference difference;
  for (const RunPair& pair : pairs) {
    const std::vector<double> all = paired(tables, curve, pair, *curve.all);
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::abs(all[i]) > std::abs(difference.largest)) {
        difference.largest = all[i];
        difference.largest_step = (*curve.all)[i];
      }
    }
  }
  std::optional<MeanEstimate> estimate =
      seed_estimate(tables, curve, reference, other, pairs, difference.basis);
  difference.over_seeds = estimate.has_value();
  if (!estimate) {
    const std::vector<double> last = paired(tables, curve, pairs.front(), curve.last);
    estimate = estimate_series_mean(last);
    difference.basis = fmt::format("spread of the paired differences of {}, one run each",
                                   counted(static_cast<int64_t>(last.size()), what));
  }
  std::vector<double> before;
  for (const size_t run : reference.runs) before.push_back(mean_over(tables, curve, run));
  difference.mean = estimate->mean;
  difference.percent = 100 * difference.mean / std::abs(mean_of(before));
  difference.interval = estimate->interval;
  return difference;
}

// Few evaluations say nothing about noise. Their difference is then held against the spread of single training steps.
void use_step_spread(Difference& evaluation, const Tables& tables, const Curve& losses, RunPair pair) {
  const double spread = deviation_of(paired(tables, losses, pair, losses.last));
  if (!std::isfinite(spread)) return;
  evaluation.interval = ConfidenceInterval{evaluation.mean - 2 * spread, evaluation.mean + 2 * spread};
  evaluation.basis = fmt::format("twice the spread of the paired differences of {}, one run each",
                                 counted(static_cast<int64_t>(losses.last.size()), "training step"));
}

bool is_finite_over(const Tables& tables, const Curve& curve, const Variant& variant) {
  return std::ranges::all_of(variant.runs, [&](size_t run) {
    return std::ranges::all_of(*curve.all,
                               [&](int64_t step) { return std::isfinite((tables.*curve.value)(run, step)); });
  });
}

VariantComparison compare_variants(const Tables& tables, size_t index) {
  const Comparison& comparison = tables.comparison;
  const Variant& reference = comparison.variants.front();
  const Variant& other = comparison.variants[index];
  VariantComparison result{.variant = index};
  result.speed = other.mean.tokens_per_second / reference.mean.tokens_per_second;
  const auto ratio = [](const auto& of, const auto& to) -> std::optional<double> {
    if (!of || !to || *to == 0) return std::nullopt;
    return static_cast<double>(*of) / static_cast<double>(*to);
  };
  result.memory = ratio(other.mean.memory_bytes, reference.mean.memory_bytes);
  result.energy = ratio(other.mean.joules_per_1000_tokens, reference.mean.joules_per_1000_tokens);
  result.cost_per_token = ratio(other.mean.cost_per_million_tokens, reference.mean.cost_per_million_tokens);

  const Curve losses{&Tables::loss, &comparison.steps, comparison.last_steps};
  if (is_finite_over(tables, losses, reference) && is_finite_over(tables, losses, other))
    result.loss = difference_of(tables, losses, reference, other, "step");
  const Curve evaluations{&Tables::eval, &comparison.eval_steps, last_share(comparison.eval_steps, 0.5, 1)};
  if (!comparison.eval_steps.empty() && is_finite_over(tables, evaluations, reference) &&
      is_finite_over(tables, evaluations, other)) {
    result.evaluation = difference_of(tables, evaluations, reference, other, "evaluation");
    const bool has_seeds = reference.runs.size() >= 2 && other.runs.size() >= 2;
    if (!has_seeds && evaluations.last.size() < kLeastEvaluations && result.loss)
      use_step_spread(*result.evaluation, tables, losses, pairs_of(comparison, reference, other).front());
  }
  return result;
}

void note_lengths(Comparison& comparison) {
  std::set<int64_t> lengths;
  for (const ComparedRun& run : comparison.runs) lengths.insert(run.run.records.back().step);
  const std::vector<int64_t>& steps = comparison.steps;
  if (lengths.size() > 1) {
    comparison.notes.push_back(fmt::format(
        "The runs have different lengths ({} steps). They are compared over their common steps, {} to {}.",
        fmt::join(lengths, ", "), steps.front(), steps.back()));
  }
  comparison.notes.push_back(fmt::format(
      "Losses are means over the last {} of {} (from step {}).", comparison.last_steps.size(),
      counted(static_cast<int64_t>(steps.size()), "common logged step"), comparison.last_steps.front()));
}

void note_memory_of_plans(Comparison& comparison) {
  if (std::ranges::any_of(comparison.figures, [](const auto& f) { return f.memory_is_planned; }))
    comparison.notes.emplace_back("Memory is what the runs have planned: their metrics do not record it.");
}

}  // namespace

std::vector<ComparedRun> read_compared_runs(const std::vector<std::string>& paths) {
  std::vector<ComparedRun> runs;
  std::vector<std::string> kept;
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored) && !is_run_folder(path)) {
      log_warning("[{}] is skipped: it has no metrics.jsonl, so it is not the folder of a run", path);
      continue;
    }
    ComparedRun compared{.run = read_run_folder(path)};
    fs::path real = fs::weakly_canonical(path, ignored);
    if (real.filename() == "metrics.jsonl") real = real.parent_path();
    if (!seen.insert(real).second) {
      log_warning("[{}] is given twice; it is compared once", path);
      continue;
    }
    if (compared.run.records.empty()) {
      log_warning("[{}] is skipped: it holds no step yet", path);
      continue;
    }
    if (!compared.run.folder.empty()) compared.plan = read_plan_facts(compared.run.folder);
    runs.push_back(std::move(compared));
    kept.push_back(path);
  }
  if (runs.size() < 2) {
    fail_config("a comparison needs two different runs with steps, got {}",
                runs.empty() ? "none" : fmt::format("only {}", kept.front()));
  }
  std::vector<RunFolder> folders;
  for (ComparedRun& run : runs) folders.push_back(std::move(run.run));
  tell_apart(folders, kept);
  for (size_t i = 0; i < runs.size(); ++i) runs[i].run = std::move(folders[i]);
  return runs;
}

Comparison compare_runs(std::vector<ComparedRun> runs, const CompareOptions& options) {
  Comparison comparison{.runs = std::move(runs)};
  std::vector<StepIndex> index;
  for (const ComparedRun& run : comparison.runs) index.push_back(by_step(run.run));
  comparison.steps = common_steps(index, [](const StepRecord&) { return true; });
  if (comparison.steps.empty())
    fail_config("the runs have no logged step in common; expected runs that logged the same steps");
  comparison.last_steps = last_share(comparison.steps, kLastPart, kLeastLastSteps);
  comparison.eval_steps = common_steps(index, [](const StepRecord& r) { return r.eval_loss.has_value(); });

  const Tables tables{std::move(index), comparison};
  for (size_t run = 0; run < comparison.runs.size(); ++run)
    comparison.figures.push_back(figures_of(tables, run, options));
  comparison.variants = group_into_variants(comparison.runs, comparison.figures);
  if (comparison.variants.size() < 2) {
    fail_config(
        "the {} runs differ in their seed only: there is nothing to compare; expected runs of two or more settings",
        comparison.runs.size());
  }
  for (Variant& variant : comparison.variants) variant.mean = mean_figures(comparison.figures, variant);
  for (size_t i = 1; i < comparison.variants.size(); ++i)
    comparison.comparisons.push_back(compare_variants(tables, i));
  note_lengths(comparison);
  note_memory_of_plans(comparison);
  add_settings(comparison);
  add_verdicts(comparison);
  return comparison;
}

}  // namespace octet
