#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/tokenizer.h"

namespace octet {

// The content of a tokenizer's files, in one form for all file kinds: byte-level BPE with words split by a known
// pattern.
struct ByteLevelSpec {
  std::string place;                // names the file in errors
  std::vector<std::string> tokens;  // bytes per id of the model; empty if there is none
  std::vector<std::pair<int32_t, std::string>> decode_only;  // entries that encoding never produces
  std::vector<BpeModel::Merge> merges;
  bool ignore_merges = false;
  SplitPattern pattern = SplitPattern::Gpt2;
  bool add_prefix_space = false;
  bool nfc = false;
  std::vector<AddedToken> added;  // an id here may also be one of `tokens`; the added content counts
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> bos, eos;
};

// encode: added tokens are found first. The text between them is normalised (NFC, if the tokenizer asks for it),
// split into words and merged. Bytes that are not UTF-8 pass through unchanged, each as its own character. So
// decode(encode(text)) == text for every byte string, except for NFC, add_prefix_space and stripped white space.
// decode: the bytes of the tokens one after another. They need not be UTF-8; StreamDecoder repairs that.
class ByteLevelTokenizer : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(ByteLevelSpec spec);
  ~ByteLevelTokenizer() override;

  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::vector<int32_t> add_special(std::vector<int32_t> ids) const override;
  std::optional<int32_t> find_token(std::string_view text) const override;
  bool is_special(int32_t id) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(kinds_.size()); }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eos() const override { return eos_; }
  uint64_t fingerprint() const override { return fingerprint_; }

 private:
  enum class Kind : uint8_t { None, Model, Added, Special };
  class Lease;  // of a BpeScratch

  void encode_section(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void encode_words(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void encode_words_parallel(std::string_view text, std::vector<int32_t>& out) const;

  std::string place_;
  uint64_t fingerprint_;
  BpeModel model_;
  SplitPattern pattern_;
  bool add_prefix_space_, nfc_;
  AddedTokenMatcher plain_added_, normalized_added_;
  std::unordered_map<std::string, int32_t> added_ids_;
  std::vector<int32_t> prefix_, suffix_;
  std::optional<int32_t> bos_, eos_;
  std::string bytes_;              // of all tokens
  std::vector<uint32_t> offsets_;  // (ids + 1) into bytes_
  std::vector<Kind> kinds_;        // (ids)

  mutable std::mutex idle_mutex_;
  mutable std::vector<std::unique_ptr<BpeScratch>> idle_;
};

}  // namespace octet
