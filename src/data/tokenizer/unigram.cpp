#include "data/tokenizer/unigram.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

constexpr uint64_t kEdgeMix = 0x9E3779B97F4A7C15;

}  // namespace

UnigramModel::UnigramModel(const std::vector<std::string>& tokens, std::vector<float> scores,
                           float unknown_score, BpeModel::Fallback fallback)
    : scores_(std::move(scores)), unknown_score_(unknown_score), fallback_(fallback) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  const size_t slots = std::bit_ceil(bytes * 2 + 2);
  edges_.assign(slots, Edge{});
  edge_shift_ = 64 - std::countr_zero(slots);
  token_.push_back(-1);
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) add_token(tokens[id], static_cast<int32_t>(id));
  }
}

void UnigramModel::add_token(std::string_view text, int32_t id) {
  uint32_t node = 0;
  for (const char byte : text) {
    uint32_t next = child(node, byte);
    if (next == kNoNode) {
      next = static_cast<uint32_t>(token_.size());
      token_.push_back(-1);
      const uint64_t key = uint64_t{node} << 8 | static_cast<unsigned char>(byte);
      size_t slot = key * kEdgeMix >> edge_shift_;
      while (edges_[slot].key != UINT64_MAX) slot = (slot + 1) & (edges_.size() - 1);
      edges_[slot] = {key, next};
    }
    node = next;
  }
  token_[node] = id;
}

uint32_t UnigramModel::child(uint32_t node, char byte) const {
  const uint64_t key = uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  for (size_t slot = key * kEdgeMix >> edge_shift_;; slot = (slot + 1) & (edges_.size() - 1)) {
    if (edges_[slot].key == key) return edges_[slot].node;
    if (edges_[slot].key == UINT64_MAX) return kNoNode;
  }
}

std::optional<int32_t> UnigramModel::find(std::string_view text) const {
  uint32_t node = 0;
  for (const char byte : text) {
    node = child(node, byte);
    if (node == kNoNode) return std::nullopt;
  }
  return token_[node] >= 0 ? std::optional(token_[node]) : std::nullopt;
}

void UnigramModel::encode(std::string_view text, std::vector<int32_t>& out) const {
  require(text.size() < INT32_MAX, "[tokenizer] a text of {} bytes, at most {} are supported", text.size(),
          INT32_MAX - 1);
  // The best way to write the text up to here: its score, and its last token.
  struct Best {
    float score = 0;
    int32_t begin = -1;  // of the last token; -1: there is no way yet
    int32_t id = -1;     // -1: a character without a token
  };
  std::vector<Best> best(text.size() + 1);
  const auto offer = [&](size_t begin, size_t end, float score, int32_t id) {
    Best& target = best[end];
    if (target.begin >= 0 && !(score > target.score)) return;
    target = {score, static_cast<int32_t>(begin), id};
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t length = decode_utf8(text.data() + begin, text.size() - begin).length;
    const float so_far = best[begin].score;
    bool has_character = false;
    uint32_t node = 0;
    for (size_t end = begin + 1; end <= text.size(); ++end) {
      node = child(node, text[end - 1]);
      if (node == kNoNode) break;
      const int32_t id = token_[node];
      if (id < 0) continue;
      offer(begin, end, scores_[static_cast<size_t>(id)] + so_far, id);
      has_character |= end - begin == length;
    }
    if (!has_character) offer(begin, begin + length, unknown_score_ + so_far, -1);
    begin += length;
  }

  const size_t first = out.size();
  for (size_t end = text.size(); end > 0;) {
    const Best& last = best[end];
    const auto begin = static_cast<size_t>(last.begin);
    if (last.id >= 0) {
      out.push_back(last.id);
    } else {
      const std::string_view character = text.substr(begin, end - begin);
      const auto byte_id = [&](char byte) { return fallback_.bytes[static_cast<unsigned char>(byte)]; };
      if (std::ranges::all_of(character, [&](char byte) { return byte_id(byte) >= 0; })) {
        for (size_t i = end; i > begin; --i) out.push_back(byte_id(text[i - 1]));
      } else {
        if (fallback_.unknown < 0) fail("[tokenizer] the vocabulary has no token for '{}'", character);
        out.push_back(fallback_.unknown);
      }
    }
    end = begin;
  }
  std::reverse(out.begin() + static_cast<ptrdiff_t>(first), out.end());
}

}  // namespace octet
