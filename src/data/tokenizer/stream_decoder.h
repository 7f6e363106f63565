#pragma once

#include <cstdint>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace octet {

// Decodes ids as they come. Every piece it returns is well-formed UTF-8: bytes that begin a character are
// held back until the character is complete, and bytes that can never be part of one become U+FFFD. All
// pieces together are decode() of the ids with each ill-formed sequence replaced by U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  std::string push(int32_t id);
  std::string finish();  // what was held back; the decoder can then be used for another text

 private:
  const Tokenizer* tokenizer_;  // must outlive the decoder
  bool skip_special_;
  std::string held_;
};

// `text` with each ill-formed sequence replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

}  // namespace octet
