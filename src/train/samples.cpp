#include "train/samples.h"

#include <fmt/format.h>

#include "report/text.h"

namespace octet {

Generator& Samples::generator() {
  if (!generator_) {
    generator_ = std::make_unique<Generator>(model_, *stages_.device, *stages_.data.tokenizer, rows(),
                                             stages_.keys.max_seq_length, stages_.data.data.chat());
  }
  return *generator_;
}

std::string Samples::make() {
  const TrainConfig& keys = stages_.keys;
  const SampleOptions options{.max_tokens = keys.sample_tokens,
                              .temperature = keys.sample_temperature,
                              .seed = static_cast<uint64_t>(keys.seed),
                              .stop = keys.is_demo() ? "\n" : ""};
  // A model of conversations is asked; others continue the text.
  return fmt::format("{}{}{}", keys.sample_prompt, stages_.data.data.chat() ? " -> " : "",
                     generator().continue_prompt(keys.sample_prompt, options));
}

void Samples::before() {
  if (takes_exam()) exam_.before(generator());
  if (wanted()) before_ = make();
}

std::optional<double> Samples::after(Console& console) {
  if (wanted()) {
    if (!before_.empty()) console.print(fmt::format("\nbefore: {}", terminal_safe(before_)));
    console.print(fmt::format("after:  {}", terminal_safe(make())));
  }
  if (!takes_exam()) return std::nullopt;
  console.print(exam_.after(generator()));
  return exam_.score();
}

}  // namespace octet
