#include "eval_model.h"

#include "base/error.h"

namespace octet {

Numerics numerics_for(const std::string& precision) {
  Numerics numerics;
  numerics.precision = precision == "fp32"   ? Precision::Fp32
                       : precision == "bf16" ? Precision::Bf16
                                             : Precision::Fp8;
  numerics.fp8.recipe = Fp8Recipe::Current;  // needs no history of a run
  numerics.fp8.head = Fp8Head::None;         // would concern gradients alone
  return numerics;
}

std::unique_ptr<Tokenizer> open_model_tokenizer(const ModelFolder& model) {
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(model.tokenizer);
  if (tokenizer->vocab_size() > model.config.vocab) {
    fail_config(
        "tokenizer '{}' has {} ids, but the model has a vocabulary of {}; use the tokenizer of the model",
        model.tokenizer, tokenizer->vocab_size(), model.config.vocab);
  }
  return tokenizer;
}

}  // namespace octet
