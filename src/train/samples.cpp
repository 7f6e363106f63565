#include "train/samples.h"

#include <fmt/format.h>

#include "base/log.h"

namespace octet {

Generator& Samples::generator() {
  if (!generator_) {
    generator_ = std::make_unique<Generator>(model_, *run_.device, *run_.data.tokenizer, spec().rows,
                                             spec().length, run_.data.data.chat());
  }
  return *generator_;
}

void Samples::reserve() {
  if (spec().rows == 0) return;
  try {
    generator();
  } catch (const Error& error) {
    // Samples at evaluations are a default: nobody has asked for them.
    if (!spec().at_evaluations || spec().takes_exam) throw;
    give_up(error);
  }
}

bool Samples::is_due(int64_t step, bool is_evaluated) const {
  if (failed_ || spec().rows == 0) return false;
  if (spec().at_evaluations) return is_evaluated;
  // The last one is shown at the end.
  return Interval{.steps = spec().steps}.is_due(step) && step + 1 < run_.schedule().max_steps;
}

std::optional<std::string> Samples::make() {
  const SampleOptions options{.max_tokens = spec().tokens,
                              .temperature = spec().temperature,
                              .seed = run_.seed,
                              .stop = run_.is_demo ? "\n" : ""};
  try {
    // A model of conversations is asked; others continue the text.
    return fmt::format("{}{}{}", spec().prompt, run_.data.data.chat() ? " -> " : "",
                       generator().continue_prompt(spec().prompt, options));
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
  if (spec().takes_exam) exam_.before(generator());
  if (shows_last()) before_ = make();
}

std::optional<double> Samples::after(Console& console) {
  if (const auto text = shows_last() && !failed_ ? make() : std::nullopt) {
    if (before_) console.print(fmt::format("\nbefore: {}", *before_));
    console.print(fmt::format("after:  {}", *text));
  }
  if (!spec().takes_exam) return std::nullopt;
  console.print(exam_.after(generator()));
  return exam_.score();
}

}  // namespace octet
