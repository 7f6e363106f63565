#include "data/tokenizer/tokenizer.h"

#include <filesystem>

#include "base/error.h"
#include "data/tokenizer/bytes_tokenizer.h"

namespace octet {

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<BytesTokenizer>();
  if (!std::filesystem::exists(name))
    fail_config("[tokenizer] '{}' does not exist: expected bytes, or a tokenizer file or folder", name);
  return load_tokenizer(name);
}

}  // namespace octet
