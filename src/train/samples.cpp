#include "train/samples.h"

#include <fmt/format.h>

#include "base/log.h"
#include "plan/memory_fit.h"
#include "train/interval.h"

namespace octet {

Generator& Samples::generator() {
  if (!generator_) {
    generator_ = std::make_unique<Generator>(model_, *stages_.device, *stages_.data.tokenizer, rows(),
                                             sampling_length(stages_.config), stages_.data.data.chat());
  }
  return *generator_;
}

void Samples::reserve() {
  if (rows() == 0) return;
  try {
    generator();
  } catch (const Error& error) {
    // Samples at evaluations are a default: nobody has asked for them.
    if (!stages_.config.samples_at_evaluations() || takes_exam()) throw;
    give_up(error);
  }
}

bool Samples::is_due(int64_t step, bool is_evaluated) const {
  const TrainConfig& config = stages_.config;
  if (failed_ || rows() == 0) return false;
  if (config.samples_at_evaluations()) return is_evaluated;
  // The last one is shown at the end.
  return Interval{.steps = config.sample_steps}.is_due(step) && step + 1 < stages_.schedule.max_steps;
}

std::optional<std::string> Samples::make() {
  const TrainConfig& config = stages_.config;
  const SampleOptions options{.max_tokens = config.sample_tokens,
                              .temperature = config.sample_temperature,
                              .seed = static_cast<uint64_t>(config.seed),
                              .stop = config.is_demo() ? "\n" : ""};
  try {
    // A model of conversations is asked; others continue the text.
    return fmt::format("{}{}{}", config.sample_prompt, stages_.data.data.chat() ? " -> " : "",
                       generator().continue_prompt(config.sample_prompt, options));
  } catch (const Error& error) {
    give_up(error);
    return std::nullopt;
  }
}

void Samples::give_up(const Error& error) {
  failed_ = true;
  log_warning("no samples from here on, because one could not be made: {}", error.what());
}

void Samples::before() {
  if (takes_exam()) exam_.before(generator());
  if (shows_last()) before_ = make();
}

std::optional<double> Samples::after(Console& console) {
  if (const auto text = shows_last() && !failed_ ? make() : std::nullopt) {
    if (before_) console.print(fmt::format("\nbefore: {}", *before_));
    console.print(fmt::format("after:  {}", *text));
  }
  if (!takes_exam()) return std::nullopt;
  console.print(exam_.after(generator()));
  return exam_.score();
}

}  // namespace octet
