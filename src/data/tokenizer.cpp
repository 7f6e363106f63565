#include "data/tokenizer.h"

#include "base/error.h"
#include "data/bytes_tokenizer.h"

namespace octet {

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<BytesTokenizer>();
  fail_config("[tokenizer] '{}' is not known; known: bytes", name);
}

}  // namespace octet
