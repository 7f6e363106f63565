#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Text to ids and back. Thread-safe: encode and decode may be called from many threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of the text without special tokens; any bytes are accepted.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // The exact inverse for valid ids; an id outside the vocabulary is an Error.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  virtual int64_t vocab_size() const = 0;  // one more than the largest id
  virtual std::optional<int32_t> bos() const { return std::nullopt; }
  virtual std::optional<int32_t> eos() const { return std::nullopt; }
};

// `name` is a built-in tokenizer ("bytes") or the path of a tokenizer file or folder.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

}  // namespace octet
