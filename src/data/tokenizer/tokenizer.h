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

  // Ids of the text; nothing is added. A special token that is written out in the text becomes its id. Any bytes are
  // accepted.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // The exact inverse for valid ids; an id outside the vocabulary is an Error.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  // The ids with what the model expects around a text (Llama 3: <|begin_of_text|> in front).
  virtual std::vector<int32_t> add_special(std::vector<int32_t> ids) const { return ids; }
  // The token with exactly this text, "<|im_end|>" for example.
  virtual std::optional<int32_t> find_token(std::string_view /*text*/) const { return std::nullopt; }
  virtual bool is_special(int32_t /*id*/) const { return false; }

  virtual int64_t vocab_size() const = 0;  // one more than the largest id
  virtual std::optional<int32_t> bos() const { return std::nullopt; }
  virtual std::optional<int32_t> eos() const { return std::nullopt; }

  // Equal for tokenizers that give the same ids, whatever file they come from; stored with tokens on disk.
  virtual uint64_t fingerprint() const = 0;
};

// `name` is a built-in tokenizer ("bytes") or the path of a tokenizer file or folder.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

// Reads a tokenizer file or a folder that holds one; what is read is listed in data/hf_tokenizer.h.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& file_or_dir);

// The files of a tokenizer, plus files that other programs need with them (a chat template, for example). Copied to
// one folder under these names, they load as the same tokenizer. None for a built-in tokenizer.
struct TokenizerFile {
  std::string name, path;
};
std::vector<TokenizerFile> tokenizer_files(const std::string& name);

}  // namespace octet
