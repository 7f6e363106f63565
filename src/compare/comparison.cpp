#include "compare/comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/names.h"
#include "compare/settings.h"
#include "compare/verdict.h"
#include "report/text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr double kLastPart = 0.2;  // of the common steps: what mean differences are over
constexpr size_t kLeastLastSteps =
    10;                          // if there are so many; as many as noise needs if the last half has them
constexpr double kWarmUp = 0.1;  // of the common steps: not counted for the speed

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

std::vector<int64_t> last_of(const std::vector<int64_t>& steps, size_t count) {
  return {steps.end() - static_cast<std::ptrdiff_t>(std::min(count, steps.size())), steps.end()};
}

std::vector<int64_t> last_part(const std::vector<int64_t>& steps) {
  const auto share = static_cast<size_t>(std::ceil(kLastPart * static_cast<double>(steps.size())));
  return last_of(steps, std::max({share, kLeastLastSteps, std::min(kLeastSeries, steps.size() / 2)}));
}

std::vector<int64_t> last_half(const std::vector<int64_t>& steps) {
  return last_of(steps, (steps.size() + 1) / 2);
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

// A run has diverged if its end is not finite. A step that was skipped in the middle is no divergence.
void note_bad_steps(RunFigures& figures, const StepIndex& records, const Comparison& comparison) {
  std::optional<int64_t> since;  // the first of the bad steps that lead to the last one
  for (const auto& [step, record] : records) {
    if (step > comparison.steps.back()) break;
    if (std::isfinite(record->loss)) {
      since.reset();
      continue;
    }
    ++figures.bad_steps;
    if (!figures.first_bad_step) figures.first_bad_step = step;
    if (!since) since = step;
  }
  const auto bad = std::ranges::count_if(
      comparison.last_steps, [&](int64_t step) { return !std::isfinite(records.at(step)->loss); });
  figures.diverged_step = since;
  if (!since && 2 * bad > std::ssize(comparison.last_steps)) figures.diverged_step = figures.first_bad_step;
}

double price_of(const ComparedRun& run, const CompareOptions& options) {
  if (options.price_per_hour > 0) return options.price_per_hour;
  const std::string text = run.run.setting("price_per_hour");
  const double price = std::strtod(text.c_str(), nullptr);
  return std::isfinite(price) ? price : 0;
}

bool has_device_time(const Tables& tables) {
  return std::ranges::all_of(tables.runs, [&](const StepIndex& records) {
    return records.at(tables.comparison.steps.back())->device_seconds.has_value();
  });
}

// From the device time of the metrics, where all runs have it: it counts evaluations and saves as well, so it must not be
// held against mere step times.
void note_cost(RunFigures& figures, const Tables& tables, size_t run, const CompareOptions& options) {
  const ComparedRun& compared = tables.comparison.runs[run];
  const double price = price_of(compared, options);
  if (!(price > 0)) return;
  const auto devices = static_cast<double>(compared.plan ? compared.plan->ranks : 1);
  const double seconds = has_device_time(tables)
                             ? *tables.runs[run].at(tables.comparison.steps.back())->device_seconds
                             : figures.seconds * devices;
  figures.cost = price * seconds / 3600;
  if (figures.tokens > 0)
    figures.cost_per_million_tokens = 1e6 * *figures.cost / static_cast<double>(figures.tokens);
}

// The steps in which every run was on its own. Runs that continue one another have equal steps before that.
std::vector<int64_t> after_fork(const std::vector<int64_t>& steps, int64_t fork) {
  const std::vector<int64_t> own(std::ranges::upper_bound(steps, fork), steps.end());
  return own.empty() ? steps : own;
}

RunFigures figures_of(const Tables& tables, size_t run, const CompareOptions& options) {
  const Comparison& comparison = tables.comparison;
  const ComparedRun& compared = comparison.runs[run];
  const StepIndex& records = tables.runs[run];
  const int64_t last = comparison.steps.back();
  RunFigures figures;
  const std::vector<int64_t> steps = after_fork(comparison.steps, comparison.fork);
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
  note_bad_steps(figures, records, comparison);
  for (const int64_t step : comparison.last_steps) {
    const double loss = records.at(step)->loss;
    if (figures.diverged_step || std::isfinite(loss)) losses.push_back(loss);
  }
  for (const auto& [step, record] : records) {
    if (step > last) break;
    if (std::isfinite(record->step_ms)) all_times.push_back(record->step_ms);
    figures.skipped_steps = std::max(figures.skipped_steps, record->skipped_steps);
  }
  figures.tokens_per_second = median_of(speeds);
  if (const std::optional<double> noise = median_noise(speeds))
    figures.speed_noise = *noise / figures.tokens_per_second;
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
  note_cost(figures, tables, run, options);
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

// The noise of the mean speed of a variant's runs.
std::optional<double> speed_noise_of(const std::vector<RunFigures>& all, const Variant& variant) {
  double squares = 0;
  for (const size_t run : variant.runs) {
    if (!all[run].speed_noise) return std::nullopt;
    squares += *all[run].speed_noise * *all[run].speed_noise;
  }
  return std::sqrt(squares) / static_cast<double>(variant.runs.size());
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
  mean.speed_noise = speed_noise_of(all, variant);
  mean.bad_steps = 0;
  for (const size_t run : variant.runs) {
    const RunFigures& one = all[run];
    mean.bad_steps += one.bad_steps;
    for (const auto member : {&RunFigures::first_bad_step, &RunFigures::diverged_step}) {
      if (one.*member) mean.*member = std::min((mean.*member).value_or(*(one.*member)), *(one.*member));
    }
    mean.skipped_steps = std::max(mean.skipped_steps, one.skipped_steps);
  }
  return mean;
}

struct RunPair {
  size_t reference, other;
};

// Runs of the same seed saw the same batches. Each run is in one pair at most: a second one would count its noise twice.
// Without any such pair: the first run of each.
std::vector<RunPair> pairs_of(const Comparison& comparison, const Variant& reference, const Variant& other) {
  std::vector<RunPair> pairs;
  std::set<size_t> taken;
  for (const size_t a : reference.runs) {
    const std::string seed = comparison.runs[a].run.setting("seed");
    for (const size_t b : other.runs) {
      if (!seed.empty() && seed == comparison.runs[b].run.setting("seed") && taken.insert(b).second) {
        pairs.push_back({a, b});
        break;
      }
    }
  }
  if (pairs.empty()) pairs.push_back({reference.runs.front(), other.runs.front()});
  return pairs;
}

bool is_same_seed(const Comparison& comparison, RunPair pair) {
  const std::string seed = comparison.runs[pair.reference].run.setting("seed");
  return !seed.empty() && seed == comparison.runs[pair.other].run.setting("seed");
}

// One of the two losses that are compared.
struct Curve {
  double (Tables::*value)(size_t, int64_t) const;
  const char* unit;          // what its values are called
  std::vector<int64_t> all;  // steps
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
                         const Variant& other) {
  const std::vector<RunPair> pairs = pairs_of(tables.comparison, reference, other);
  Difference difference{.unit = curve.unit};
  for (const RunPair& pair : pairs) {
    const std::vector<double> all = paired(tables, curve, pair, curve.all);
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::abs(all[i]) > std::abs(difference.largest)) {
        difference.largest = all[i];
        difference.largest_step = curve.all[i];
      }
    }
  }
  std::optional<MeanEstimate> estimate =
      seed_estimate(tables, curve, reference, other, pairs, difference.basis);
  difference.over_seeds = estimate.has_value();
  const bool has_pair = is_same_seed(tables.comparison, pairs.front());
  const bool is_one_each = reference.runs.size() + other.runs.size() == 2;
  const auto means_of = [&](const Variant& variant) {
    std::vector<double> means;
    for (const size_t run : variant.runs) means.push_back(mean_over(tables, curve, run));
    return means;
  };
  if (!estimate && !has_pair && !is_one_each) {
    estimate = MeanEstimate{.mean = mean_of(means_of(other)) - mean_of(means_of(reference)), .interval = {}};
    difference.basis = "not known: the variants have no seed in common, and one of them has a single run";
  } else if (!estimate) {
    const std::vector<double> last = paired(tables, curve, pairs.front(), curve.last);
    estimate = estimate_series_mean(last);
    difference.too_few_values = !estimate->interval;
    const std::string count = counted(static_cast<int64_t>(last.size()), curve.unit);
    const auto name = [&](size_t run) { return tables.comparison.runs[run].run.name; };
    const std::string which =
        is_one_each ? ""
                    : fmt::format(" ({} and {})", name(pairs.front().reference), name(pairs.front().other));
    difference.basis =
        estimate->interval
            ? fmt::format("spread of the paired differences of {}, one run each{}", count, which)
            : fmt::format("not known: one run each{}, {}; at least {} are needed", which, count,
                          kLeastSeries);
  }
  // In percent of the runs that the difference is of.
  std::vector<double> before;
  for (const RunPair& pair : pairs) before.push_back(mean_over(tables, curve, pair.reference));
  if (!has_pair || (difference.over_seeds && pairs.size() < 2)) before = means_of(reference);
  difference.mean = estimate->mean;
  difference.percent = 100 * difference.mean / std::abs(mean_of(before));
  difference.interval = estimate->interval;
  return difference;
}

// The curve without the steps at which a run of either variant has no finite value.
Curve finite_part(const Tables& tables, Curve curve, const Variant& reference, const Variant& other) {
  const auto is_bad = [&](int64_t step) {
    const auto is_bad_in = [&](size_t run) { return !std::isfinite((tables.*curve.value)(run, step)); };
    return std::ranges::any_of(reference.runs, is_bad_in) || std::ranges::any_of(other.runs, is_bad_in);
  };
  std::erase_if(curve.all, is_bad);
  std::erase_if(curve.last, is_bad);
  return curve;
}

VariantComparison compare_variants(const Tables& tables, size_t index) {
  const Comparison& comparison = tables.comparison;
  const Variant& reference = comparison.variants.front();
  const Variant& other = comparison.variants[index];
  VariantComparison result{.variant = index};
  result.speed = other.mean.tokens_per_second / reference.mean.tokens_per_second;
  if (reference.mean.speed_noise && other.mean.speed_noise)
    result.speed_noise = std::hypot(*reference.mean.speed_noise, *other.mean.speed_noise);
  const auto ratio = [](const auto& of, const auto& to) -> std::optional<double> {
    if (!of || !to || *to == 0) return std::nullopt;
    return static_cast<double>(*of) / static_cast<double>(*to);
  };
  result.memory = ratio(other.mean.memory_bytes, reference.mean.memory_bytes);
  result.energy = ratio(other.mean.joules_per_1000_tokens, reference.mean.joules_per_1000_tokens);
  result.cost_per_token = ratio(other.mean.cost_per_million_tokens, reference.mean.cost_per_million_tokens);

  if (reference.mean.diverged_step || other.mean.diverged_step) return result;
  const auto difference = [&](const Curve& curve) -> std::optional<Difference> {
    const Curve finite = finite_part(tables, curve, reference, other);
    if (finite.last.empty()) return std::nullopt;
    return difference_of(tables, finite, reference, other);
  };
  result.loss = difference({&Tables::loss, "step", comparison.steps, comparison.last_steps});
  result.evaluation = difference({&Tables::eval, "evaluation", comparison.eval_steps,
                                  last_half(after_fork(comparison.eval_steps, comparison.fork))});
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

void note_forks(Comparison& comparison) {
  for (const ComparedRun& run : comparison.runs) {
    if (!run.lineage.parents.empty()) {
      comparison.notes.push_back(
          fmt::format("{} continues {} after step {}: the steps before are those of that run.", run.run.name,
                      run.lineage.parents.front(), run.lineage.fork));
    }
    if (!run.lineage.missing.empty()) {
      comparison.warnings.push_back(fmt::format("{} begins after step {}: {} is not found.", run.run.name,
                                                run.run.records.front().step - 1, run.lineage.missing));
    }
  }
  if (comparison.fork > 0 && comparison.steps.back() <= comparison.fork) {
    comparison.warnings.push_back(fmt::format(
        "The runs have no common step after step {}, at which the last of them parted from the run that it "
        "continues: the differences are those of steps before.",
        comparison.fork));
  }
}

void note_bad_losses(Comparison& comparison) {
  for (const Variant& variant : comparison.variants) {
    if (variant.mean.bad_steps == 0 || variant.mean.diverged_step) continue;
    comparison.notes.push_back(fmt::format(
        "{}: the loss of {} was not finite (first at step {}). These steps are left out of the means.",
        variant.name, counted(variant.mean.bad_steps, "logged step"), *variant.mean.first_bad_step));
  }
}

void note_costs(Comparison& comparison, bool from_device_time) {
  if (from_device_time ||
      std::ranges::none_of(comparison.figures, [](const auto& f) { return f.cost.has_value(); }))
    return;
  comparison.notes.emplace_back(
      "Costs follow from step times and the number of devices, without evaluations and saves: not all metrics record "
      "device_seconds.");
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
    compared.lineage = add_parents(compared.run);
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
  for (const ComparedRun& run : comparison.runs)
    comparison.fork = std::max(comparison.fork, run.lineage.fork);
  comparison.last_steps = last_part(after_fork(comparison.steps, comparison.fork));
  comparison.eval_steps = common_steps(index, [](const StepRecord& r) { return r.eval_loss.has_value(); });

  const Tables tables{std::move(index), comparison};
  for (size_t run = 0; run < comparison.runs.size(); ++run)
    comparison.figures.push_back(figures_of(tables, run, options));
  comparison.variants = group_into_variants(comparison.runs, comparison.figures);
  if (comparison.variants.size() < 2) {
    fail_config(
        "the {} runs have the same settings, apart from seeds: there is nothing to compare; expected runs of two or more settings",
        comparison.runs.size());
  }
  for (Variant& variant : comparison.variants) variant.mean = mean_figures(comparison.figures, variant);
  for (size_t i = 1; i < comparison.variants.size(); ++i)
    comparison.comparisons.push_back(compare_variants(tables, i));
  note_lengths(comparison);
  note_forks(comparison);
  note_bad_losses(comparison);
  note_costs(comparison, has_device_time(tables));
  note_memory_of_plans(comparison);
  add_settings(comparison);
  add_verdicts(comparison);
  return comparison;
}

}  // namespace octet
