#pragma once

#include <string>
#include <vector>

#include "io/env.h"

namespace octet {

// A file of a folder: its name there and what it holds.
struct NamedText {
  std::string name, text;
};

// A copy of the files of the tokenizer `name`, under the names that tokenizer_files() gives them.
std::vector<NamedText> read_tokenizer_texts(Env& env, const std::string& name);

// Writes the files by which Transformers knows the tokenizer `name` (as for make_tokenizer) into `folder`, and says
// in words what they are.
std::string export_tokenizer(Env& env, const std::string& name, const std::string& folder,
                             int64_t max_positions);

}  // namespace octet
