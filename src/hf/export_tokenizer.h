#pragma once

#include <optional>
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

// How a model is talked to, for tokenizer_config.json.
struct ExportedChat {
  std::string jinja;  // the chat template
  std::string end;    // the token that ends an answer; "": none
};

// Writes the files by which Transformers knows the tokenizer `name` (as for make_tokenizer) into `folder`, and says
// in words what they are. With `chat`, its template and its end token replace those of the tokenizer.
std::string export_tokenizer(Env& env, const std::string& name, const std::string& folder,
                             int64_t max_positions, const std::optional<ExportedChat>& chat = std::nullopt);

}  // namespace octet
