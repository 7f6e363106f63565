#include "data/tokenizer/stream_decoder.h"

#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Appends the repaired text and returns how many bytes it covers. That is less than all bytes only if `more` may come
// and the text ends inside a character.
size_t repair(std::string_view text, bool more, std::string& out) {
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Char c = decode_utf8(text.data() + i, text.size() - i);
    if (c.valid) {
      out.append(text.substr(i, c.length));
      i += c.length;
      continue;
    }
    const IllFormed bad = ill_formed_prefix(text.substr(i));
    if (bad.incomplete && more) break;
    out.append(kReplacement);
    i += bad.length;
  }
  return i;
}

}  // namespace

std::string StreamDecoder::push(int32_t id) {
  if (!skip_special_ || !tokenizer_->is_special(id)) {
    held_ += started_ ? tokenizer_->decode_continued({&id, 1}) : tokenizer_->decode({&id, 1});
    started_ = true;
  }
  std::string out;
  held_.erase(0, repair(held_, true, out));
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  repair(held_, false, out);
  held_.clear();
  started_ = continues_;
  return out;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  repair(text, false, out);
  return out;
}

}  // namespace octet
