#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/vocabulary_tokenizer.h"

namespace octet {

// Shared by the readers of tokenizer files.

// The largest file of a tokenizer that is read.
constexpr int64_t kLargestTokenizerFile = int64_t{256} << 20;
std::string read_text_file(const std::string& path);

nlohmann::json read_json_file(const std::string& path);  // a duplicate key is an error

// The bytes that a string in GPT-2's byte alphabet stands for ("Ġthe" is " the"). Nothing if it has a character
// outside that alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view token);

// A vocabulary under construction: token strings as in the file, each with its own id.
class VocabReader {
 public:
  // The bytes that a token of the file stands for, or nothing if it is a token that encoding never produces.
  using TokenBytes = std::optional<std::string> (*)(std::string_view token);
  explicit VocabReader(VocabularySpec& spec, TokenBytes token_bytes = bytes_of_alphabet)
      : spec_(&spec), token_bytes_(token_bytes) {}

  void read(const nlohmann::json& vocab);
  // Merges get their ranks in the order of the calls.
  void add_merge(std::string_view left, std::string_view right, size_t number);
  // An entry of added_tokens or added_tokens_decoder, checked against the others and the vocabulary.
  void add_added(int32_t id, const nlohmann::json& entry);
  std::optional<int32_t> find(std::string_view token) const;
  size_t size() const { return ids_.size(); }

 private:
  int32_t merge_part(std::string_view token, std::string_view left, std::string_view right,
                     size_t number) const;

  VocabularySpec* spec_;
  TokenBytes token_bytes_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<std::string, int32_t> added_by_content_;
  std::unordered_map<int32_t, std::string> added_by_id_;
};

// Ids are bounded, so that a broken id does not create a table of gigabytes.
int32_t checked_token_id(const nlohmann::json& value, const std::string& place, std::string_view what);

// Reads bos and eos from the tokenizer_config.json in `folder`, if there is one, and the added tokens into `vocab`,
// if given. Returns its tokenizer_class.
std::string apply_tokenizer_config(VocabularySpec& spec, VocabReader* vocab, const std::string& folder);

// eos if no config names it: the special token that ends a document in the known families.
void guess_eos(VocabularySpec& spec);

}  // namespace octet
