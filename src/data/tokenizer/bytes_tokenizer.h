#pragma once

#include "data/tokenizer/tokenizer.h"

namespace octet {

// One id per byte (0-255) and one special token, kEndOfText (256), so vocab_size() is 257. As in GPT-2 the same token
// ends a document and begins one when a model generates without a prompt: bos() == eos(). There is no padding token:
// padded places carry kIgnoreTarget and may hold any id. decode() gives back every byte exactly; kEndOfText is shown
// as "<|endoftext|>", which encode() never produces.
class BytesTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEndOfText = 256;
  static constexpr int64_t kVocabSize = 257;

  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  bool is_special(int32_t id) const override { return id == kEndOfText; }
  int64_t vocab_size() const override { return kVocabSize; }
  std::optional<int32_t> bos() const override { return kEndOfText; }
  std::optional<int32_t> eos() const override { return kEndOfText; }
  std::optional<int32_t> find_token(std::string_view text) const override;
  uint64_t fingerprint() const override { return 0x6279746573000001; }  // "bytes", version 1
};

}  // namespace octet
