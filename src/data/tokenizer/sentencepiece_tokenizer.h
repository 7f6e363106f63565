#pragma once

#include <array>
#include <optional>
#include <variant>

#include "data/tokenizer/sentencepiece_normalizer.h"
#include "data/tokenizer/unigram.h"
#include "data/tokenizer/vocabulary_tokenizer.h"

namespace octet {

// A SentencePiece model, or a tokenizer.json made from one. Spaces are plain spaces in all texts of the spec.
struct SentencePieceSpec : VocabularySpec {
  // The space in front of a text, which may have several parts with added tokens between them.
  enum class LeadingSpace { None, FirstPart, EveryPart };
  LeadingSpace leading_space = LeadingSpace::None;
  bool unless_space = false;          // only where the part does not begin with a space itself
  bool normalizes_first = true;       // before `searched` are found in the text, not after
  bool strips_decoded_space = false;  // decode() removes one space at the start
  bool split_at_spaces = false;       // every space begins a new word

  SentencePieceNormalizer normalizer;
  std::vector<AddedToken>
      searched;                 // found in the normalised text; the other added tokens in the text as it is
  BpeModel::Fallback fallback;  // for characters that have no token
  bool fuse_unknown = true;     // several unknown characters in a row are one token
  // Set: a Unigram model, with the score of each of `tokens`.
  struct Unigram {
    std::vector<float> scores;
    float unknown_score = 0;
  };
  std::optional<Unigram> unigram;

  SentencePieceSpec() { fallback.bytes.fill(-1); }
};

// encode: added tokens are found first. Spaces are added to and removed from the text between them as the spec says.
// Then it is merged from characters. Bytes that are not UTF-8 become their byte tokens, if there are any.
class SentencePieceTokenizer : public VocabularyTokenizer {
 public:
  explicit SentencePieceTokenizer(SentencePieceSpec spec);

  std::string decode(std::span<const int32_t> ids) const override;
  std::string decode_continued(std::span<const int32_t> ids) const override;

 private:
  using Model = std::variant<BpeModel, UnigramModel>;
  static Model make_model(const SentencePieceSpec& spec);

  void encode_section(std::string_view text, Before before, BpeScratch& scratch,
                      std::vector<int32_t>& out) const override;
  std::optional<int32_t> find_in_model(std::string_view text) const override;
  // The text normalised, with a space in front where the spec says so.
  std::string prepare(std::string_view text, Before before) const;
  void encode_part(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& out) const;
  // The end of the word at `begin`: no token crosses it.
  size_t word_end(std::string_view text, size_t begin) const;

  Model model_;
  SentencePieceNormalizer normalizer_;
  SentencePieceSpec::LeadingSpace leading_space_;
  bool unless_space_, normalizes_first_, strips_decoded_space_, split_at_spaces_, ignore_merges_;
  std::optional<int32_t> fused_;  // the unknown token, where several in a row become one
  AddedTokenMatcher searched_;
  std::array<bool, 256> joins_space_{};  // bytes that stand before a space inside some token
};

}  // namespace octet
