#pragma once

#include <memory>
#include <string>

#include "checkpoint/model_folder.h"
#include "data/tokenizer/tokenizer.h"
#include "model/transformer.h"

namespace octet {

// fp32, bf16 or fp8, for a model that is only read.
Numerics numerics_for(const std::string& precision);
// ConfigError for a tokenizer with more ids than the model has.
std::unique_ptr<Tokenizer> open_model_tokenizer(const ModelFolder& model);

}  // namespace octet
