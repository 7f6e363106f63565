#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/transformer.h"

namespace octet {

struct SampleOptions {
  int64_t max_tokens = 64;
  double temperature = 0.8;  // 0: always the most likely token
  uint64_t seed = 0;
  std::string stop;  // the text ends after the first occurrence of this; empty: never
};

// What a Generator of this size allocates beside the weights, from its plan alone.
int64_t generator_bytes(Transformer& trained, Backend& backend, int64_t rows, int64_t length);

// Text from the weights of a model in training, several prompts at a time, in the run's dense precision. Each new
// token runs the whole context again: made for short samples.
class Generator {
 public:
  // `rows` prompts are worked on together; contexts longer than `length` lose their oldest tokens.
  Generator(Transformer& trained, Backend& backend, const Tokenizer& tokenizer, int64_t rows, int64_t length);

  // The continuation of every prompt, without the prompt.
  std::vector<std::string> continue_prompts(const std::vector<std::string>& prompts,
                                            const SampleOptions& options);
  std::string continue_prompt(const std::string& prompt, const SampleOptions& options) {
    return continue_prompts({prompt}, options).front();
  }
  int64_t allocated_bytes() const { return model_.allocated_bytes(); }

 private:
  std::vector<std::string> run(std::span<const std::string> prompts, const SampleOptions& options);

  Transformer model_;
  const Tokenizer& tokenizer_;
};

// The index of the chosen logit: the largest at temperature 0 (the lowest index on a tie), else drawn from the
// softmax with the uniform number `u` in [0, 1).
int32_t sample_logits(const std::vector<float>& logits, double temperature, double u);

}  // namespace octet
