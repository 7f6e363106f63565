#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/datasets/tokenize_pipeline.h"

namespace octet {

// Chooses the documents that are held out for validation, so that they have `share` of all tokens. Documents come in
// blocks. The choice in a block depends only on the seed, on the block, and on the number of tokens before it: not on
// threads, and it can be made again from there.
class HoldOut {
 public:
  // `seen`, `held_out`: tokens of all earlier blocks.
  HoldOut(double share, uint64_t seed, int64_t seen, int64_t held_out)
      : share_(share), seed_(seed), seen_(seen), held_out_(held_out) {}

  // For each document, how many of its last tokens are held out: none or all. In the last block, the end of one document
  // may be held out, too: of a text, if whole documents miss the share by more than a quarter of a percent of all
  // tokens; of the only document, whatever it is. Nothing is held out of a share of 0. Otherwise something is, if there
  // are two documents; and something is always left for training. `are_texts`: the documents are not conversations.
  std::vector<int64_t> choose(std::span<const TokenizePipeline::Item> block, bool is_last, bool are_texts);

 private:
  double share_;
  uint64_t seed_;
  int64_t seen_, held_out_;
};

// Whether the document can be cut `tail` tokens before its end, so that both parts have a token to predict.
bool can_cut(const Document& document, int64_t tail);
Document part_of(const Document& document, int64_t begin, int64_t end);

}  // namespace octet
