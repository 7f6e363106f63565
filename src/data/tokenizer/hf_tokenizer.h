#pragma once

#include <memory>
#include <string>
#include <variant>

#include "data/tokenizer/byte_level_tokenizer.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace octet {

// load_tokenizer (data/tokenizer/tokenizer.h) takes
//   tokenizer.json           of Hugging Face: byte-level BPE with the patterns of GPT-2, Llama 3 and Qwen2.5, or
//                            SentencePiece BPE as in Llama 2 and Mistral
//   tokenizer.model          of SentencePiece (BPE or Unigram)
//   vocab.json + merges.txt  the older pair; a tokenizer_config.json next to them names the class and the added tokens
//   a tiktoken rank file     lines of a base64 token and its rank (Llama 3's tokenizer.model, qwen.tiktoken)
//   a .bin file              the vocabulary of llama2.c
//   a folder                 that holds one of these, searched in this order
// A tokenizer_config.json in the same folder gives bos and eos. A component that octet does not know is an Error that
// names it.

// The content of the files, before a tokenizer is made of it.
using TokenizerSpec = std::variant<ByteLevelSpec, SentencePieceSpec>;
// Takes the same as load_tokenizer.
TokenizerSpec read_tokenizer_spec(const std::string& file_or_dir);
TokenizerSpec read_json_spec(std::string_view text, const std::string& place, const std::string& folder = "");
std::unique_ptr<Tokenizer> make_tokenizer_of(TokenizerSpec spec);

// From the text of a tokenizer.json: byte-level BPE; a tokenizer of any kind, with bos and eos of the
// tokenizer_config.json in `folder` (empty: none).
ByteLevelSpec parse_tokenizer_json(std::string_view text, const std::string& place);
std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view text, const std::string& place,
                                               const std::string& folder = "");
ByteLevelSpec read_vocab_and_merges(const std::string& vocab_path, const std::string& merges_path);

// A rank file does not say how text is split. Without `family`, the number of ranks decides the family.
enum class TokenizerFamily { Gpt2, Llama3, Qwen2 };
ByteLevelSpec read_tiktoken(const std::string& path, std::optional<TokenizerFamily> family = std::nullopt);

// Pattern, normalisation, special tokens, bos and eos of a family. The special tokens get ids from `first_id` on,
// unless `spec` already has a token with that text.
void apply_family(ByteLevelSpec& spec, TokenizerFamily family, int32_t first_id);

}  // namespace octet
