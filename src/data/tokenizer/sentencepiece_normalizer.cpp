#include "data/tokenizer/sentencepiece_normalizer.h"

#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

// Units of a double-array trie (the layout of the Darts library): a child's label, whether a node ends a key, and where
// its children are.
uint32_t label_of(uint32_t unit) {
  return unit & (uint32_t{1} << 31 | 0xFF);
}
bool ends_key(uint32_t unit) {
  return (unit >> 8 & 1) == 1;
}
uint32_t value_of(uint32_t unit) {
  return unit & ((uint32_t{1} << 31) - 1);
}
uint32_t offset_of(uint32_t unit) {
  return unit >> 10 << ((unit & uint32_t{1} << 9) >> 6);
}

}  // namespace

std::string with_plain_spaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t mark = text.find(kSpaceMark); mark != text.npos; mark = text.find(kSpaceMark)) {
    out.append(text.substr(0, mark)).append(1, ' ');
    text.remove_prefix(mark + kSpaceMark.size());
  }
  return out.append(text);
}

CharsMap::CharsMap(std::string_view blob, const std::string& place) {
  if (blob.empty()) return;
  hash_ = Hash64().add(blob).value();
  uint32_t trie_bytes = 0;
  if (blob.size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  const bool is_whole = blob.size() > sizeof(trie_bytes) && trie_bytes >= sizeof(uint32_t) &&
                        trie_bytes % sizeof(uint32_t) == 0 && trie_bytes < blob.size() - sizeof(trie_bytes);
  if (!is_whole)
    fail("[{}] precompiled_charsmap has {} bytes and a trie of {}: it is broken", place, blob.size(),
         trie_bytes);
  blob.remove_prefix(sizeof(trie_bytes));
  units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), blob.data(), trie_bytes);
  replacements_ = blob.substr(trie_bytes);
}

CharsMap::Match CharsMap::match(std::string_view text) const {
  Match longest;
  uint32_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!ends_key(unit)) continue;
    if (node >= units_.size()) break;
    const uint32_t begin = value_of(units_[node]);
    if (begin >= replacements_.size()) break;
    longest = {i + 1, std::string_view(replacements_.c_str() + begin)};
  }
  return longest;
}

std::string SentencePieceNormalizer::normalize(std::string_view text, bool continues) const {
  if (chars.empty() && !remove_extra_spaces) return with_plain_spaces(text);
  std::string out;
  out.reserve(text.size());
  bool after_space = !continues;
  while (!text.empty()) {
    size_t length = kept.match_length(text, 0);
    std::string_view piece = text.substr(0, length);
    if (length == 0) {
      const CharsMap::Match found = chars.empty() ? CharsMap::Match{} : chars.match(text);
      length = found.length > 0 ? found.length : decode_utf8(text.data(), text.size()).length;
      piece = found.length > 0 ? found.replacement : text.substr(0, length);
    }
    text.remove_prefix(length);
    while (remove_extra_spaces && after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    if (piece.empty()) continue;
    out.append(piece);
    after_space = piece.ends_with(' ');
  }
  out = with_plain_spaces(out);
  while (remove_extra_spaces && out.ends_with(' ')) out.pop_back();
  return out;
}

}  // namespace octet
