#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet {

// One document of a dataset as text, before the tokenizer: pieces in order. A plain text is one piece; a chat is
// the template's markers and the messages' contents.
struct ExamplePiece {
  std::string text;
  bool is_special = false;  // the name of one of the tokenizer's special tokens ("<|eot_id|>"), not text
  bool is_target = true;    // the loss is taken on the tokens of this piece
  bool operator==(const ExamplePiece&) const = default;
};

struct Example {
  std::vector<ExamplePiece> pieces;
  bool operator==(const Example&) const = default;
};

// The same as ids. is_target[i] says whether predicting tokens[i] (from the tokens before it) counts in the loss.
struct Document {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> is_target;  // as long as tokens
  bool operator==(const Document&) const = default;
};

// Examples in a fixed order: the same files and options give the same sequence. Not for several threads at once.
class ExampleReader {
 public:
  virtual ~ExampleReader() = default;
  // The next example; false at the end. Throws Error naming file and line (or row) for bad input.
  virtual bool next(Example& example) = 0;
  // Share of the input's bytes read so far, 0 to 1, for a progress bar.
  virtual double progress() const = 0;
};

}  // namespace octet
