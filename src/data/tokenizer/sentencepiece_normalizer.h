#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/added_tokens.h"

namespace octet {

// SentencePiece writes a space as U+2581 in its vocabularies. octet uses plain spaces: the same model, shorter words.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// The text with plain spaces instead of marks.
std::string with_plain_spaces(std::string_view text);

// The `precompiled_charsmap` of a SentencePiece model: replacements of character sequences (NFKC, for example) in a
// double-array trie.
class CharsMap {
 public:
  CharsMap() = default;
  // Error if `blob` is not such a map; `place` names its file.
  CharsMap(std::string_view blob, const std::string& place);

  bool empty() const { return units_.empty(); }
  uint64_t hash() const { return hash_; }
  // The longest sequence at the start of `text` that has a replacement. Length 0: there is none.
  struct Match {
    size_t length = 0;
    std::string_view replacement;
  };
  Match match(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a zero byte
  uint64_t hash_ = 0;
};

struct SentencePieceNormalizer {
  CharsMap chars;
  bool remove_extra_spaces = false;  // at both ends, and of several in a row all but one
  AddedTokenMatcher kept;            // is not changed where it stands in the text

  // The text with plain spaces. Bytes that are not UTF-8 stay as they are. A text that `continues` another keeps a
  // space at its start.
  std::string normalize(std::string_view text, bool continues) const;
};

}  // namespace octet
