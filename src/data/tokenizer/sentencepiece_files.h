#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "data/tokenizer/sentencepiece_tokenizer.h"

namespace octet {

// Readers of the files of SentencePiece tokenizers. What they cannot do exactly is an Error that names it.

// The library's own file (protobuf): BPE and Unigram, with any normalisation. Control pieces become special tokens,
// which are also found in the text, as Hugging Face does it.
SentencePieceSpec parse_sentencepiece_model(std::string_view file, const std::string& place);
// The same with the tokenizer_config.json (or added_tokens.json) next to the file.
SentencePieceSpec read_sentencepiece_model(const std::string& path);

// The vocabulary of llama2.c: tokens with scores, as `tokenizer.bin`.
SentencePieceSpec read_llama2c_vocabulary(const std::string& path);

// Whether a tokenizer.json is one that was made from a SentencePiece model.
bool is_sentencepiece_json(const nlohmann::json& root);
SentencePieceSpec parse_sentencepiece_json(const nlohmann::json& root, const std::string& place);

// "<0x41>" -> 0x41, or -1: the name of a byte in a vocabulary.
int byte_of_token(std::string_view token);

// Fills `merges`: any two tokens that together form a third may merge, the third with the highest score first.
void add_merges_by_score(SentencePieceSpec& spec, const std::vector<float>& scores);

}  // namespace octet
