#pragma once

#include <optional>
#include <string>

#include "io/gguf.h"

namespace octet {

struct GgufTokenizer {
  std::string name;                 // as for make_tokenizer
  int64_t vocab = 0;                // rows of the embedding: ids without a token get a placeholder
  std::optional<int32_t> chat_end;  // ends an answer; counts more than the tokenizer's eos
  std::optional<int32_t> bos, eos;  // of the model, if the tokenizer has none
  std::optional<int32_t> pad;
  std::string chat_jinja = {};  // "": none
};

// Adds the keys tokenizer.*: byte-level BPE as llama.cpp's "gpt2" with the name of its pattern, SentencePiece BPE as
// "llama". ConfigError for a tokenizer that llama.cpp cannot read. Warns of rules that the file cannot express: NFC,
// merges inside words that are tokens, and a space in front of the first part alone. Says in words what was added.
std::string add_gguf_tokenizer(GgufWriter& writer, const GgufTokenizer& tokenizer);

}  // namespace octet
