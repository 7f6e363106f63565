#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "model/decoder.h"
#include "model/transformer.h"

namespace octet {

struct SampleOptions {
  int64_t max_tokens = 64;
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 0;         // only the k most likely tokens; 0: all
  double top_p = 1;          // only the most likely tokens that together have this probability; 1: all
  uint64_t seed = 0;
  std::string stop = {};  // the text ends after the first occurrence of this; empty: never
};

struct GenerateCallbacks {
  // Called with each new token of prompt `row`; false ends that row.
  std::function<bool(size_t row, int32_t id)> on_token = {};
  // A row whose sequence is full drops the older half of its context and continues. Otherwise it ends.
  bool slide = false;
  // Tokens that the decoder's first sequence holds from an earlier call. The first prompt's share of them is not read again.
  std::span<const int32_t> cached = {};
};

// Continues the prompts together, at most decoder.shape().sequences of them and none empty. Returns the new ids per
// prompt. A row ends with the first of the `end_ids`, which is included. The same prompts, options and seed give
// the same ids; `options.stop` is for callers that know the text.
std::vector<std::vector<int32_t>> generate_ids(Decoder& decoder,
                                               const std::vector<std::vector<int32_t>>& prompts,
                                               const SampleOptions& options, std::span<const int32_t> end_ids,
                                               const GenerateCallbacks& callbacks);

// Bytes that a Generator of this size allocates in addition to the weights; computed from its plan.
int64_t generator_bytes(Transformer& trained, Device& device, int64_t rows, int64_t length);

// Text from the weights of a model in training, several prompts at a time, in the run's dense precision.
class Generator {
 public:
  // `rows` prompts are worked on together; contexts longer than `length` lose their oldest tokens. With `chat`, a prompt
  // is what a user says, and the text is the answer.
  Generator(Transformer& trained, Device& device, const Tokenizer& tokenizer, int64_t rows, int64_t length,
            const std::optional<ChatStyle>& chat = std::nullopt);

  // The continuation of every prompt, without the prompt.
  std::vector<std::string> continue_prompts(const std::vector<std::string>& prompts,
                                            const SampleOptions& options);
  std::string continue_prompt(const std::string& prompt, const SampleOptions& options) {
    return continue_prompts({prompt}, options).front();
  }
  int64_t allocated_bytes() const { return decoder_.plan().peak_bytes(); }

 private:
  std::vector<std::string> run(std::span<const std::string> prompts, const SampleOptions& options);

  Decoder decoder_;
  const Tokenizer& tokenizer_;
  std::optional<ChatRenderer> chat_;
};

}  // namespace octet
