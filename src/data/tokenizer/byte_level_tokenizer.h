#pragma once

#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/vocabulary_tokenizer.h"

namespace octet {

// The content of a tokenizer's files, in one form for all file kinds: byte-level BPE with words split by a known
// pattern.
struct ByteLevelSpec : VocabularySpec {
  SplitPattern pattern = SplitPattern::Gpt2;
  DigitSplit digits = DigitSplit::None;
  bool add_prefix_space = false;
  bool nfc = false;
};

// encode: added tokens are found first. The text between them is normalised (NFC, if the tokenizer asks for it),
// split into words and merged. Bytes that are not UTF-8 pass through unchanged, each as its own character. So
// decode(encode(text)) == text for every byte string, except for NFC, add_prefix_space and stripped white space.
class ByteLevelTokenizer : public VocabularyTokenizer {
 public:
  explicit ByteLevelTokenizer(ByteLevelSpec spec);

 private:
  void encode_section(std::string_view text, Before before, BpeScratch& scratch,
                      std::vector<int32_t>& out) const override;
  std::optional<int32_t> find_in_model(std::string_view text) const override { return model_.find(text); }
  void encode_words(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& out) const;

  BpeModel model_;
  SplitPattern pattern_;
  DigitSplit digits_;
  bool add_prefix_space_, nfc_;
  AddedTokenMatcher normalized_added_;
};

}  // namespace octet
