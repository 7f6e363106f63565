#include "compare/checklist.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "report/text.h"

namespace octet {
namespace {

constexpr int64_t kWantedSteps = 100;
constexpr double kMostLossPercent = 1;
constexpr double kLeastGain = 1.02;         // less cannot be told from the noise of a measurement
constexpr double kMostResumePercent = 0.1;  // kernels that are not deterministic differ by less
constexpr size_t kLeastLetters = 3;         // different bytes of a sample that is no endless repetition

ChecklistItem hardware(const Comparison& comparison, const Variant& variant) {
  const ComparedRun& run = comparison.runs[variant.runs.front()];
  ChecklistItem item{.name = "hardware"};
  const std::string& precision = variant.mean.precision;
  if (!run.plan) {
    item.text = "the run does not record its device";
    return item;
  }
  item.passed = precision == "FP8" && run.plan->fallback.empty();
  item.text = fmt::format("{}, {} runs as {}", run.plan->device, variant.name, precision);
  if (!run.plan->fallback.empty()) item.text += fmt::format(" ({})", run.plan->fallback);
  if (!item.passed)
    item.remedy =
        "octet runs FP8 on the tensor cores of Hopper GPUs (H100, H200); 'octet doctor' says what is missing";
  return item;
}

ChecklistItem steps_done(const Comparison& comparison) {
  int64_t least = comparison.steps.back();
  ChecklistItem item{.name = "100 steps in both precisions", .passed = least >= kWantedSteps};
  std::vector<std::string> names;
  for (const Variant& variant : comparison.variants)
    names.push_back(
        fmt::format("{} {}", variant.name, comparison.runs[variant.runs.front()].run.records.back().step));
  item.text = fmt::format("{} steps", fmt::join(names, ", "));
  if (!item.passed) item.remedy = fmt::format("--steps {}", kWantedSteps);
  return item;
}

ChecklistItem finite(const Comparison& comparison) {
  ChecklistItem item{.name = "no NaN", .passed = true};
  std::vector<std::string> bad;
  for (const Variant& variant : comparison.variants) {
    if (variant.mean.first_bad_step)
      bad.push_back(fmt::format("{}: the loss of {} is not finite, first at step {}", variant.name,
                                counted(variant.mean.bad_steps, "step"), *variant.mean.first_bad_step));
    else if (variant.mean.skipped_steps > 0)
      bad.push_back(fmt::format("{}: {} skipped, their gradient was not finite", variant.name,
                                counted(variant.mean.skipped_steps, "step was", "steps were")));
  }
  item.passed = bad.empty();
  item.text = bad.empty() ? "all losses and gradients are finite" : fmt::format("{}", fmt::join(bad, "; "));
  if (!item.passed) item.remedy = "a lower learning_rate, more warmup_steps, or fp8_recipe current";
  return item;
}

ChecklistItem loss(const VariantComparison& compared) {
  ChecklistItem item{.name = "loss at most 1 % higher"};
  if (!compared.loss) {
    item.text = "the losses are not comparable";
    return item;
  }
  item.passed = compared.loss->percent <= kMostLossPercent;  // a lower loss is no fault
  item.text = fmt::format("training loss {:+.2f} %", compared.loss->percent);
  if (compared.evaluation) {
    item.passed = item.passed && compared.evaluation->percent <= kMostLossPercent;
    item.text += fmt::format(", evaluation loss {:+.2f} %", compared.evaluation->percent);
  }
  if (!item.passed)
    item.remedy = "fp8_recipe current or block, or fp8_skip_layers for the layers that octet plan names";
  return item;
}

ChecklistItem throughput(const Comparison& comparison, const VariantComparison& compared) {
  const Variant& reference = comparison.variants.front();
  const Variant& variant = comparison.variants[compared.variant];
  ChecklistItem item{.name = "throughput gain", .passed = compared.speed >= kLeastGain};
  item.text =
      fmt::format("{:.2f}x: {} tokens/s instead of {}", compared.speed,
                  human_count(variant.mean.tokens_per_second), human_count(reference.mean.tokens_per_second));
  if (!item.passed)
    item.remedy = "larger batches or a larger model; 'octet bench --profile' shows where the time goes";
  return item;
}

ChecklistItem memory(const Comparison& comparison, const VariantComparison& compared) {
  const Variant& reference = comparison.variants.front();
  const Variant& variant = comparison.variants[compared.variant];
  ChecklistItem item{.name = "memory"};
  const ComparedRun& run = comparison.runs[variant.runs.front()];
  if (!variant.mean.memory_bytes || !run.plan || run.plan->memory_limit <= 0) {
    item.text = "not recorded";
    return item;
  }
  // The planner may fill the device up to its limit, so what counts is that the plan fits and is kept.
  const auto used = static_cast<double>(*variant.mean.memory_bytes);
  const auto planned = static_cast<double>(run.plan->memory_bytes);
  const auto limit = static_cast<double>(run.plan->memory_limit);
  item.passed = planned <= limit && used <= planned;
  item.text = fmt::format("{} planned, the limit is {}", human_bytes(planned), human_bytes(limit));
  if (!variant.mean.memory_is_planned) item.text += fmt::format(", {} used", human_bytes(used));
  if (reference.mean.memory_bytes)
    item.text += fmt::format("; {} uses {}", reference.name,
                             human_bytes(static_cast<double>(*reference.mean.memory_bytes)));
  if (!item.passed) item.remedy = "a smaller per_device_train_batch_size, or gradient_checkpointing block";
  return item;
}

ChecklistItem samples_made(const std::vector<SampleCheck>& samples) {
  ChecklistItem item{.name = "samples", .passed = !samples.empty()};
  std::vector<std::string> texts;
  for (const SampleCheck& sample : samples) {
    const std::set<char> letters(sample.text.begin(), sample.text.end());
    if (!sample.error.empty()) {
      item.passed = false;
      texts.push_back(fmt::format("{}: {}", sample.variant, sample.error));
    } else if (letters.size() < kLeastLetters) {
      item.passed = false;
      texts.push_back(fmt::format("{}: the text is empty or repeats itself", sample.variant));
    } else {
      texts.push_back(fmt::format("{} wrote {} bytes", sample.variant, sample.text.size()));
    }
  }
  item.text = texts.empty() ? "none was made" : fmt::format("{}", fmt::join(texts, "; "));
  if (!item.passed)
    item.remedy = "look at the text of 'octet generate' with the run; more steps may be needed";
  return item;
}

ChecklistItem resumed(const ResumeCheck& resume) {
  ChecklistItem item{.name = "resume from a checkpoint"};
  if (!resume.error.empty()) {
    item.text = resume.error;
    return item;
  }
  item.passed = resume.steps > 0 && resume.largest_percent <= kMostResumePercent;
  item.text = fmt::format(
      "continued from step {} for {}; the losses {}", resume.checkpoint_step, counted(resume.steps, "step"),
      std::isnan(resume.largest_percent) ? "are not finite"
      : resume.largest_percent == 0      ? "are those of the run that was not stopped"
                                         : fmt::format("differ by at most {:.3g} %", resume.largest_percent));
  if (!item.passed) item.remedy = "check that the data and the settings did not change";
  return item;
}

}  // namespace

void ResumeCheck::compare(const std::vector<StepRecord>& whole, const std::vector<StepRecord>& resumed) {
  std::map<int64_t, double> losses;
  for (const StepRecord& record : whole) losses[record.step] = record.loss;
  for (const StepRecord& record : resumed) {
    const auto found = losses.find(record.step);
    if (found == losses.end() || record.step <= checkpoint_step) continue;
    ++steps;
    double percent = 100 * std::abs(record.loss - found->second) / std::abs(found->second);
    if (std::isfinite(record.loss) && record.loss == found->second) percent = 0;
    if (!std::isfinite(percent)) percent = std::numeric_limits<double>::quiet_NaN();
    if (!std::isnan(largest_percent) && !(percent <= largest_percent)) largest_percent = percent;
  }
}

bool Checklist::is_ready() const {
  return !items.empty() && std::ranges::all_of(items, [](const ChecklistItem& item) { return item.passed; });
}

Checklist make_checklist(const Comparison& comparison, const std::vector<SampleCheck>& samples,
                         const ResumeCheck& resume) {
  const VariantComparison& compared = comparison.comparisons.front();
  return {{hardware(comparison, comparison.variants[compared.variant]), steps_done(comparison),
           finite(comparison), loss(compared), throughput(comparison, compared), memory(comparison, compared),
           samples_made(samples), resumed(resume)}};
}

std::string checklist_text(const Checklist& checklist, bool colour) {
  std::string text;
  size_t failed = 0;
  for (const ChecklistItem& item : checklist.items) {
    const std::string mark = item.passed ? "ok    " : "FAILED";
    const std::string shown = !colour ? mark : fmt::format("\x1b[{}m{}\x1b[0m", item.passed ? 32 : 31, mark);
    text += fmt::format("{}  {:<28}  {}\n", shown, item.name, terminal_safe(item.text));
    if (!item.passed && !item.remedy.empty()) text += fmt::format("{:38}try: {}\n", "", item.remedy);
    failed += !item.passed;
  }
  text += failed == 0 ? "ready for a long run\n"
                      : fmt::format("not ready: {} of {} failed\n", failed,
                                    counted(static_cast<int64_t>(checklist.items.size()), "check"));
  return text;
}

nlohmann::ordered_json checklist_json(const Checklist& checklist) {
  nlohmann::ordered_json items = nlohmann::ordered_json::array();
  for (const ChecklistItem& item : checklist.items)
    items.push_back(
        {{"name", item.name}, {"passed", item.passed}, {"text", item.text}, {"remedy", item.remedy}});
  return {{"ready", checklist.is_ready()}, {"items", std::move(items)}};
}

}  // namespace octet
