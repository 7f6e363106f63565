#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer_parts.h"

namespace octet {

// Fills a spec from a parsed tokenizer.json. The derived classes read what makes a kind of tokenizer: every method takes
// the value of one key, which may be null.
class TokenizerJsonReader {
 public:
  using Json = nlohmann::json;
  virtual ~TokenizerJsonReader() = default;

  void read(const Json& root);

 protected:
  // `reads` ends the message about a component that is not supported.
  TokenizerJsonReader(VocabularySpec& spec, VocabReader::TokenBytes token_bytes, const char* reads)
      : spec_(spec), vocab_(spec, token_bytes), reads_(reads) {}

  virtual void read_model_options(const Json& model) = 0;  // before the vocabulary
  virtual void read_normalizer(const Json& normalizer) = 0;
  virtual void read_pre_tokenizer(const Json& pre_tokenizer) = 0;
  virtual void read_decoder(const Json& decoder) = 0;

  // The member or null.
  static const Json& value(const Json& parent, const char* key);
  const Json& object(const Json& item, const char* name) const;
  bool flag(const Json& parent, const char* key, bool otherwise) const;
  std::string type(const Json& component, const char* name) const;
  [[noreturn]] void unknown(const char* name, const std::string& what) const;
  // The elements of a component of type Sequence, or the component itself; none for null.
  std::vector<const Json*> sequence(const Json& component, const char* name, const char* elements) const;

  VocabularySpec& spec_;
  VocabReader vocab_;

 private:
  void read_model(const Json& model);
  void read_merge(const Json& merge, size_t number);
  void read_post_processor(const Json& processor);
  void read_template(const Json& processor);
  std::vector<int32_t> special_ids(const Json& processor, const Json& token) const;
  bool is_known(int32_t id) const;

  const char* reads_;
};

}  // namespace octet
