#include "data/tokenizer/bytes_tokenizer.h"

#include "base/error.h"

namespace octet {

std::vector<int32_t> BytesTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids(text.size());
  for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
  return ids;
}

std::optional<int32_t> BytesTokenizer::find_token(std::string_view text) const {
  if (text == "<|endoftext|>") return kEndOfText;
  return std::nullopt;
}

std::string BytesTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == kEndOfText) {
      text += "<|endoftext|>";
    } else {
      require(ids[i] >= 0 && ids[i] < 256, "[tokenizer bytes] id {} at place {}, expected 0 to {}", ids[i], i,
              kVocabSize - 1);
      text.push_back(static_cast<char>(ids[i]));
    }
  }
  return text;
}

}  // namespace octet
