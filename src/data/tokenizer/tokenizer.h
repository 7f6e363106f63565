#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// The text before a piece, if a text is encoded piece by piece. It matters only to tokenizers that put a space in
// front of a text (SentencePiece): whether they do it in the middle, too, is theirs to say.
enum class Before { Nothing, Token, Text };

// Text to ids and back. Thread-safe: encode and decode may be called from many threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of the text; nothing is added. A special token that is written out in the text becomes its id. Any bytes are
  // accepted.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // The same for a text that follows an added token or another text.
  virtual std::vector<int32_t> encode_after(Before /*before*/, std::string_view text) const {
    return encode(text);
  }
  // The exact inverse for valid ids; an id outside the vocabulary is an Error.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // The same for ids that follow others: a space that encode() puts in front of a text is not removed.
  virtual std::string decode_continued(std::span<const int32_t> ids) const { return decode(ids); }

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

// `name` is a built-in tokenizer ("bytes"), the path of a tokenizer file or folder, or a hub id "org/name", also with a
// branch, tag or commit: "org/name@revision".
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

// Whether the name is a hub id, not a path. The hub is not asked.
bool is_hub_tokenizer(const std::string& name);
// The path itself, or for a hub id the folder in the Hugging Face cache, downloaded if it is not there. ConfigError if
// that fails.
std::string local_tokenizer(const std::string& name);

// Reads a tokenizer file or a folder that holds one; what is read is listed in data/tokenizer/hf_tokenizer.h.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& file_or_dir);

// The files of a tokenizer, plus files that other programs need with them (a chat template, for example). Copied to
// one folder under these names, they load as the same tokenizer. None for a built-in tokenizer.
struct TokenizerFile {
  std::string name, path;
};
std::vector<TokenizerFile> tokenizer_files(const std::string& name);

}  // namespace octet
