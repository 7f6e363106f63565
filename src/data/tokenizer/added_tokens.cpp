#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

size_t spaces_before(std::string_view text, size_t end, size_t limit) {
  while (end > limit && (class_before(text, end) & kSpace)) {
    do --end;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  }
  return end;
}

size_t spaces_behind(std::string_view text, size_t begin) {
  const uint8_t* classes = char_classes();
  while (begin < text.size()) {
    const Utf8Char c = decode_utf8(text.data() + begin, text.size() - begin);
    if (!c.valid || !(classes[c.point] & kSpace)) break;
    begin += c.length;
  }
  return begin;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && (class_before(text, begin) & kWord)) return true;
  if (end == text.size()) return false;
  const Utf8Char c = decode_utf8(text.data() + end, text.size() - end);
  return c.valid && (char_classes()[c.point] & kWord);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  int distinct = 0;
  for (const AddedToken& token : tokens_) {
    const auto first = static_cast<unsigned char>(token.content[0]);
    if (!starts_[first]) ++distinct;
    starts_[first] = true;
    single_start_ = first;
  }
  if (distinct != 1) single_start_ = -1;

  // Breadth first over ranges of the sorted tokens that share a prefix. No recursion, however long they are.
  struct Range {
    uint32_t node;
    size_t begin, end, depth;
  };
  nodes_.emplace_back();
  std::vector<Range> queue = {{0, 0, tokens_.size(), 0}};
  for (size_t head = 0; head < queue.size(); ++head) {
    auto [node, begin, end, depth] = queue[head];
    while (begin < end && tokens_[begin].content.size() == depth)
      nodes_[node].token = static_cast<int32_t>(begin++);
    nodes_[node].first_edge = static_cast<uint32_t>(edges_.size());
    while (begin < end) {
      const char byte = tokens_[begin].content[depth];
      size_t stop = begin;
      while (stop < end && tokens_[stop].content[depth] == byte) ++stop;
      const auto child = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      edges_.push_back({static_cast<unsigned char>(byte), child});
      ++nodes_[node].edge_count;
      queue.push_back({child, begin, stop, depth + 1});
      begin = stop;
    }
  }
}

size_t AddedTokenMatcher::find_start(std::string_view text, size_t from) const {
  if (from >= text.size()) return text.size();
  if (single_start_ >= 0) {
    const void* found = std::memchr(text.data() + from, single_start_, text.size() - from);
    return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : text.size();
  }
  while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

int32_t AddedTokenMatcher::match(std::string_view text, size_t begin) const {
  const Node* node = &nodes_[0];
  int32_t longest = -1;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const Edge* edge = edges_.data() + node->first_edge;
    const Edge* last = edge + node->edge_count;
    while (edge != last && edge->byte != byte) ++edge;
    if (edge == last) break;
    node = &nodes_[edge->node];
    if (node->token >= 0) longest = node->token;
  }
  return longest;
}

size_t AddedTokenMatcher::match_length(std::string_view text, size_t begin) const {
  if (tokens_.empty()) return 0;
  const int32_t index = match(text, begin);
  return index < 0 ? 0 : tokens_[static_cast<size_t>(index)].content.size();
}

void AddedTokenMatcher::split(std::string_view text, const std::function<void(std::string_view)>& on_text,
                              const std::function<void(int32_t)>& on_token) const {
  size_t done = 0;  // everything before this is handed out
  if (!tokens_.empty()) {
    for (size_t i = find_start(text, 0); i < text.size(); i = find_start(text, i)) {
      const int32_t index = match(text, i);
      if (index < 0) {
        ++i;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(index)];
      size_t begin = i, end = i + token.content.size();
      i = end;  // the search continues after the token itself, whatever is stripped or refused
      if (token.single_word && touches_word(text, begin, end)) continue;
      if (token.lstrip) begin = std::max(spaces_before(text, begin, done), done);
      if (token.rstrip) end = spaces_behind(text, end);
      if (begin >= end) continue;  // a white-space token that the previous one has stripped
      if (done < begin) on_text(text.substr(done, begin - done));
      on_token(token.id);
      done = end;
    }
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace octet
