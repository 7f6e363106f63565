#pragma once

#include <cstdint>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace octet {

// Decodes ids as they come. Every piece it returns is well-formed UTF-8: bytes that begin a character are
// held back until the character is complete, and bytes that can never be part of one become U+FFFD. All
// pieces together are decode() of the ids with each ill-formed sequence replaced by U+FFFD. With `continues`, the ids
// follow others: the pieces are decode_continued() of them.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false, bool continues = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special), continues_(continues), started_(continues) {}

  std::string push(int32_t id);
  std::string finish();  // what was held back; the decoder can then be used for another text

 private:
  const Tokenizer* tokenizer_;  // must outlive the decoder
  bool skip_special_, continues_;
  bool started_;  // whether a token has been shown
  std::string held_;
};

// `text` with each ill-formed sequence replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

}  // namespace octet
