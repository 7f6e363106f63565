#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace octet {

// SentencePiece's Unigram model: of all ways to write a text as tokens, the one with the highest sum of scores.
class UnigramModel {
 public:
  // scores[id] belongs to tokens[id]; tokens with an empty text are not used. A character that begins no token of its
  // own length costs `unknown_score`, and becomes the ids of `fallback`.
  UnigramModel(const std::vector<std::string>& tokens, std::vector<float> scores, float unknown_score,
               BpeModel::Fallback fallback);

  // Appends the ids of the whole text. Scores are summed in float from the start of the text on, as in the library, so the
  // text is not encoded in parts. Of two ways with the same sum up to rounding, the library may choose the other.
  void encode(std::string_view text, std::vector<int32_t>& out) const;

  std::optional<int32_t> find(std::string_view text) const;

 private:
  struct Edge {
    uint64_t key = UINT64_MAX;  // node << 8 | byte
    uint32_t node = 0;
  };
  static constexpr uint32_t kNoNode = UINT32_MAX;

  uint32_t child(uint32_t node, char byte) const;
  void add_token(std::string_view text, int32_t id);

  std::vector<Edge> edges_;     // open addressing
  std::vector<int32_t> token_;  // per node of the trie; -1: none
  int edge_shift_ = 0;
  std::vector<float> scores_;
  float unknown_score_;
  BpeModel::Fallback fallback_;
};

}  // namespace octet
