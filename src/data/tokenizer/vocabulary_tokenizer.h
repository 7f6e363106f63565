#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer.h"

namespace octet {

// The common content of the files of all kinds of tokenizers.
struct VocabularySpec {
  std::string place;                // names the file in errors
  std::vector<std::string> tokens;  // bytes per id of the model; empty if there is none
  std::vector<std::pair<int32_t, std::string>> decode_only;  // entries that encoding never produces
  std::vector<BpeModel::Merge> merges;
  bool ignore_merges = false;
  std::vector<AddedToken> added;  // an id here may also be one of `tokens`; the added content counts
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> bos, eos;
  std::optional<int32_t> pad;  // for other programs: octet pads with any id
};

// For fingerprints: the vocabulary with its merges; the tokens that are added to it or around a text.
class Hash64;
void hash_model(Hash64& hash, const VocabularySpec& spec);
void hash_added(Hash64& hash, const VocabularySpec& spec);

// A vocabulary, added tokens and what surrounds a text. The text between added tokens is left to the derived class.
// decode: the bytes of the tokens one after another. They need not be UTF-8; StreamDecoder repairs that.
class VocabularyTokenizer : public Tokenizer {
 public:
  ~VocabularyTokenizer() override;

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<int32_t> encode_after(Before before, std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::vector<int32_t> add_special(std::vector<int32_t> ids) const override;
  std::optional<int32_t> find_token(std::string_view text) const override;
  bool is_special(int32_t id) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(kinds_.size()); }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eos() const override { return eos_; }
  uint64_t fingerprint() const override { return fingerprint_; }

 protected:
  VocabularyTokenizer(VocabularySpec spec, uint64_t fingerprint);

  // Appends the ids of a text without added tokens. `before` says what stands in front of it.
  virtual void encode_section(std::string_view text, Before before, BpeScratch& scratch,
                              std::vector<int32_t>& out) const = 0;
  // The token of the model with exactly these bytes.
  virtual std::optional<int32_t> find_in_model(std::string_view text) const = 0;

  // Encodes a text in chunks: a large one with several threads, any other as one chunk. `cut` gives the first place at
  // or after a position where the text can be cut without changing ids.
  using CutText = std::function<size_t(size_t from)>;
  using EncodeChunk = std::function<void(std::string_view chunk, BpeScratch&, std::vector<int32_t>&)>;
  void encode_chunks(std::string_view text, const CutText& cut, const EncodeChunk& encode_chunk,
                     BpeScratch& scratch, std::vector<int32_t>& out) const;

  std::string place_;

 private:
  enum class Kind : uint8_t { None, Model, Added, Special };
  class Lease;  // of a BpeScratch

  uint64_t fingerprint_;
  AddedTokenMatcher plain_added_;
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
