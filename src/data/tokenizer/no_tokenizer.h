#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

namespace octet {

// Stands for a tokenizer that is not at hand, in runs on data that are tokens already. It has no ids.
class NoTokenizer final : public Tokenizer {
 public:
  explicit NoTokenizer(std::string name) : name_(std::move(name)) {}

  std::vector<int32_t> encode(std::string_view) const override { refuse(); }
  std::string decode(std::span<const int32_t>) const override { refuse(); }
  int64_t vocab_size() const override { return 0; }
  uint64_t fingerprint() const override { return 0; }

 private:
  [[noreturn]] void refuse() const { fail("[tokenizer] {} is not at hand", name_); }

  std::string name_;
};

}  // namespace octet
