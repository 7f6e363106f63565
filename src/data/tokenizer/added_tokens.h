#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// A token that is searched for in the text itself, before the text is split into words.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  std::string shown = {};    // what it decodes to; empty: the content
  bool single_word = false;  // matches only where no word character touches it
  bool lstrip = false;       // also takes the white space before it
  bool rstrip = false;       // also takes the white space after it
  bool normalized = false;   // is searched for in the normalised text
  bool special = false;
};

// Finds added tokens like the `tokenizers` library: leftmost first, then longest, without overlaps.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Length of the longest token that stands at `begin`, whatever its flags; 0: none.
  size_t match_length(std::string_view text, size_t begin) const;

  // Calls text(piece) and token(id) in the order of the text; the pieces are not empty.
  void split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;

 private:
  // A trie with its edges in one array; children of a node are sorted by byte.
  struct Node {
    uint32_t first_edge = 0, edge_count = 0;
    int32_t token = -1;  // index into tokens_
  };
  struct Edge {
    unsigned char byte;
    uint32_t node;
  };
  size_t find_start(std::string_view text, size_t from) const;
  // The longest token at `begin`, or -1.
  int32_t match(std::string_view text, size_t begin) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::array<bool, 256> starts_{};
  int single_start_ = -1;  // the first byte where all tokens share it
};

}  // namespace octet
