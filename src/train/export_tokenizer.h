#pragma once

#include <string>

#include "io/env.h"

namespace octet {

// Writes the files by which Transformers knows the tokenizer `name` (as for make_tokenizer) into `folder`, and says
// in words what they are.
std::string export_tokenizer(Env& env, const std::string& name, const std::string& folder,
                             int64_t max_positions);

}  // namespace octet
