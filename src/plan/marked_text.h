#pragma once

#include <cstdint>
#include <string>

#include "data/records/example.h"
#include "data/tokenizer/tokenizer.h"

namespace octet {

enum class MarkStyle {
  Brackets,  // what is trained stands in [[ ]]
  Color,     // what is trained is green, the rest dim
};

// The document as text. It shows which tokens the loss is taken on. A first token is shown like the others, although nothing
// predicts it. Special tokens are shown by their names,
// control characters as \xNN. After `most` characters it is cut in the middle, with the end shown as well; 0: never.
std::string marked_text(const Document& document, const Tokenizer& tokenizer, MarkStyle style,
                        size_t most = 0);

// "52 tokens, 17 trained (32.7 %)". The first token does not count as trained.
std::string marked_counts(const Document& document);

}  // namespace octet
