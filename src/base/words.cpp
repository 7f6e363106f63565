#include "base/words.h"

namespace octet {

std::vector<std::string> lower_words(std::string_view name) {
  std::vector<std::string> words;
  bool inside = false;
  for (char c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool is_part = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (is_part && !inside) words.emplace_back();
    if (is_part) words.back() += c;
    inside = is_part;
  }
  return words;
}

}  // namespace octet
