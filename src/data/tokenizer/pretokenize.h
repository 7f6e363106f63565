#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace octet {

// How text is split into words before BPE: the model families define patterns as regular expressions; hand-written
// code matches them in linear time.
enum class SplitPattern {
  None,    // the whole text is one word
  Gpt2,    // ByteLevel with use_regex
  Llama3,  // also cl100k_base
  Qwen2,   // like Llama 3, but every digit is its own word
};

// How digits are split off before the pattern splits the text. The pattern sees only the parts between them.
enum class DigitSplit {
  None,
  Each,  // every digit is a part of its own
  Runs,  // digits in a row are a part
};

// The pattern with exactly this text, or nothing.
std::optional<SplitPattern> find_split_pattern(std::string_view regex);

// End of the word that starts at `begin` < text.size(). The words cover the text without gaps. Bytes that are
// not well-formed UTF-8 count as characters that are neither letter, number nor space.
size_t word_end(SplitPattern pattern, std::string_view text, size_t begin);

// End of the part that starts at `begin` < text.size(): some digits, or the text up to the next digit.
size_t digit_part_end(DigitSplit digits, std::string_view text, size_t begin);

// The first position >= `from` where the text can be cut so that the two parts give the same words and the same NFC
// as the whole, however digits are split; text.size() if there is none.
size_t safe_cut(SplitPattern pattern, std::string_view text, size_t from);

}  // namespace octet
