#include "compare/verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace octet {
namespace {

constexpr double kWideNoise = 2;     // percent: a difference that matters could hide in it
constexpr double kSameSpeed = 0.02;  // less is what two runs of the same settings differ by

bool is_emulated(const Variant& variant) {
  return variant.mean.precision.find("emulated") != std::string::npos;
}

std::string speed_text(const Variant& reference, const Variant& variant, const VariantComparison& compared) {
  const double speed = compared.speed;
  if (!std::isfinite(speed) || speed <= 0) return fmt::format("the speed of {} is not known", variant.label);
  if (std::abs(speed - 1) <= kSameSpeed)
    return fmt::format("{} is as fast as {}", variant.label, reference.label);
  const std::string text =
      speed > 1 ? fmt::format("{} is {:.2f}x faster than {}", variant.label, speed, reference.label)
                : fmt::format("{} is {:.2f}x slower than {}", variant.label, 1 / speed, reference.label);
  if (!compared.speed_noise) return text + " (not certain: too few logged steps)";
  if (std::abs(std::log(speed)) > *compared.speed_noise) return text;
  return fmt::format("{} (not certain: the speed scatters by ±{:.0f} %)", text, 100 * *compared.speed_noise);
}

bool is_identical(const Difference& difference) {
  return difference.largest == 0 && difference.mean == 0;
}

// The evaluations, if their noise is known. A short run has too few of them; then the losses of its steps.
const Difference* judged_by(const VariantComparison& compared) {
  const auto is_known = [](const std::optional<Difference>& difference) {
    return difference && (difference->interval || is_identical(*difference));
  };
  if (is_known(compared.evaluation) || (compared.evaluation && !is_known(compared.loss)))
    return &*compared.evaluation;
  return compared.loss ? &*compared.loss : nullptr;
}

std::string loss_text(const Comparison& comparison, const VariantComparison& compared) {
  const Variant& reference = comparison.variants.front();
  const Variant& variant = comparison.variants[compared.variant];
  for (const Variant* one : {&variant, &reference}) {
    if (one->mean.diverged_step)
      return fmt::format("{} diverged: its loss is not finite from step {} on", one->label,
                         *one->mean.diverged_step);
  }
  std::vector<std::string> texts;
  if (compared.evaluation) texts.push_back("evaluation loss " + difference_text(*compared.evaluation));
  if (compared.loss && judged_by(compared) == &*compared.loss)
    texts.push_back("training loss " + difference_text(*compared.loss));
  return texts.empty() ? "the losses are not comparable" : fmt::format("{}", fmt::join(texts, "; "));
}

bool is_good(const Comparison& comparison, const VariantComparison& compared) {
  if (comparison.variants[compared.variant].mean.diverged_step || !(compared.speed >= 1 - kSameSpeed))
    return false;
  const Difference* difference = judged_by(compared);
  if (!difference) return false;
  if (compared.evaluation && compared.evaluation->percent > kWideNoise) return false;
  return difference->mean <= 0 || (difference->within_noise() && difference->noise_percent() <= kWideNoise);
}

}  // namespace

std::string difference_text(const Difference& difference) {
  if (is_identical(difference)) return "is identical";
  const double size = std::abs(difference.percent);
  const std::string by = size < 0.00005
                             ? "differs by less than 0.0001 %"
                             : fmt::format("differs by {:+.{}f} %", difference.percent, size < 0.005 ? 4 : 2);
  if (!difference.interval) return fmt::format("{} (noise not known: too few {}s)", by, difference.unit);
  if (!difference.within_noise())
    return by + (difference.over_seeds ? ", more than noise" : ", more than the noise between steps");
  const double noise = difference.noise_percent();
  return noise <= kWideNoise ? by + ", within noise"
                             : fmt::format("{}, within noise, but the noise is large (±{:.2g} %)", by, noise);
}

void add_verdicts(Comparison& comparison) {
  const Variant& reference = comparison.variants.front();
  const auto faster = [&](const VariantComparison& compared) {
    return !comparison.best || compared.speed > comparison.comparisons[*comparison.best].speed;
  };
  bool all_emulated = true;
  for (size_t i = 0; i < comparison.comparisons.size(); ++i) {
    VariantComparison& compared = comparison.comparisons[i];
    const Variant& variant = comparison.variants[compared.variant];
    const bool emulated = is_emulated(variant) || is_emulated(reference);
    all_emulated = all_emulated && emulated;
    compared.verdict =
        fmt::format("{}; {}", speed_text(reference, variant, compared), loss_text(comparison, compared));
    compared.is_good = is_good(comparison, compared);
    if (compared.is_good && !emulated && faster(compared)) comparison.best = i;
    if (emulated) {
      const std::string note =
          "FP8 is emulated on this device. Its speed says nothing about a GPU; its losses should be close to those of real "
          "FP8.";
      if (std::ranges::find(comparison.notes, note) == comparison.notes.end())
        comparison.notes.push_back(note);
    }
  }
  if (std::ranges::any_of(comparison.comparisons, [](const VariantComparison& c) {
        return c.evaluation && c.evaluation->too_few_values && !is_identical(*c.evaluation);
      }))
    comparison.notes.emplace_back(
        "There are too few evaluations to judge their difference. Several seeds per variant (--seeds 3) or more evaluations "
        "(a smaller eval_steps) would show the noise.");
  if (std::ranges::any_of(comparison.comparisons,
                          [](const VariantComparison& c) { return c.loss && !c.loss->over_seeds; }))
    comparison.notes.emplace_back(
        "With one run per variant, noise is that between steps. Runs also differ by their seed; several seeds measure "
        "that.");
  if (comparison.comparisons.size() == 1) {
    comparison.verdict = comparison.comparisons.front().verdict;
  } else if (comparison.best) {
    comparison.verdict = fmt::format("best of {}: {}", comparison.variants.size(),
                                     comparison.comparisons[*comparison.best].verdict);
  } else if (all_emulated) {
    comparison.verdict = "no variant is called the best, because FP8 is emulated and its speed says nothing";
  } else {
    comparison.verdict = fmt::format("no variant is as fast and as good as {}", reference.label);
  }
}

}  // namespace octet
