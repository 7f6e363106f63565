#pragma once

#include <string>

namespace octet {

struct TokenizeOptions {
  std::string tokenizer;     // as make_tokenizer takes it
  bool decode = false;       // ids on stdin, text on stdout
  bool add_special = false;  // with what the model expects around a text
  bool jsonl = false;        // one text per line as a JSON string, one line of ids for each
  int bench = 0;  // encode the input so many times and print how long each took, as JSON, and no ids
};

// Text on stdin to one line of ids on stdout, separated by spaces; or back, byte for byte. With `jsonl` line
// by line, and then decoded text is a JSON string with U+FFFD for bytes that are not UTF-8.
int run_tokenize(const TokenizeOptions& options);

}  // namespace octet
