#include "data/tokenizer/tokenizer_parts.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/unicode.h"
#include "io/env.h"

namespace octet {
namespace {

using nlohmann::json;

constexpr int64_t kMaxId = (int64_t{1} << 22) - 1;

// Code point of the byte alphabet -> byte, or -1: printable bytes stand for themselves, the others follow U+0100.
std::array<int, 512> make_alphabet() {
  std::array<int, 512> bytes;
  bytes.fill(-1);
  size_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    bytes[printable ? static_cast<size_t>(byte) : next++] = byte;
  }
  return bytes;
}

// A token in tokenizer_config.json is a string or an object with a `content`.
std::optional<std::string> token_text(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
    return (*found)["content"].get<std::string>();
  return std::nullopt;
}

std::optional<int32_t> added_id(const VocabularySpec& spec, std::string_view content) {
  for (const AddedToken& token : spec.added) {
    if (token.content == content) return token.id;
  }
  return std::nullopt;
}

}  // namespace

std::string read_text_file(const std::string& path) {
  return posix_env().read_text(path, kLargestTokenizerFile);
}

json read_json_file(const std::string& path) {
  return parse_json(read_text_file(path), path, {.refuse_duplicate_keys = true});
}

std::optional<std::string> bytes_of_alphabet(std::string_view token) {
  static const std::array<int, 512> alphabet = make_alphabet();
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Char c = decode_utf8(token.data() + i, token.size() - i);
    if (!c.valid || c.point >= alphabet.size() || alphabet[c.point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet[c.point]));
    i += c.length;
  }
  return bytes;
}

int32_t checked_token_id(const json& value, const std::string& place, std::string_view what) {
  if (!value.is_number_integer())
    fail("[{}] the id of {} is {}, expected an integer", place, what, value.dump());
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{kMaxId}
                                               : value.get<int64_t>() >= 0 && value.get<int64_t>() <= kMaxId;
  if (!fits) fail("[{}] the id of {} is {}, expected 0 to {}", place, what, value.dump(), kMaxId);
  return value.get<int32_t>();
}

void VocabReader::read(const json& vocab) {
  require(vocab.is_object() && !vocab.empty(), "[{}] the vocabulary is not an object of tokens and ids",
          spec_->place);
  ids_.reserve(vocab.size());
  std::vector<const std::string*> owners;
  for (const auto& item : vocab.items()) {
    const std::string& token = item.key();
    const int32_t id = checked_token_id(item.value(), spec_->place, fmt::format("token '{}'", token));
    const auto index = static_cast<size_t>(id);
    if (index >= owners.size()) owners.resize(index + 1, nullptr);
    if (owners[index])
      fail("[{}] tokens '{}' and '{}' have the same id {}", spec_->place, *owners[index], token, id);
    owners[index] = &ids_.emplace(token, id).first->first;
    if (std::optional<std::string> bytes = token_bytes_(token)) {
      if (index >= spec_->tokens.size()) spec_->tokens.resize(index + 1);
      spec_->tokens[index] = std::move(*bytes);
    } else {
      spec_->decode_only.emplace_back(id, token);
    }
  }
}

std::optional<int32_t> VocabReader::find(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

int32_t VocabReader::merge_part(std::string_view token, std::string_view left, std::string_view right,
                                size_t number) const {
  const std::optional<int32_t> id = find(token);
  if (!id)
    fail("[{}] merge {} ('{}' '{}') names '{}', which is not in the vocabulary", spec_->place, number, left,
         right, token);
  return *id;
}

void VocabReader::add_merge(std::string_view left, std::string_view right, size_t number) {
  const int32_t left_id = merge_part(left, left, right, number);
  const int32_t right_id = merge_part(right, left, right, number);
  const int32_t result = merge_part(std::string(left).append(right), left, right, number);
  spec_->merges.push_back({left_id, right_id, result, static_cast<uint32_t>(spec_->merges.size())});
}

void VocabReader::add_added(int32_t id, const json& entry) {
  const std::string& place = spec_->place;
  AddedToken token;
  token.id = id;
  const auto content = entry.find("content");
  if (content == entry.end() || !content->is_string())
    fail("[{}] added token {} has no string `content`", place, id);
  token.content = content->get<std::string>();
  if (token.content.empty()) fail("[{}] added token {} has an empty content", place, id);
  const auto flag = [&](const char* key, bool otherwise) {
    const auto found = entry.find(key);
    if (found == entry.end()) return otherwise;
    if (!found->is_boolean())
      fail("[{}] added token '{}': `{}` is {}, expected true or false", place, token.content, key,
           found->dump());
    return found->get<bool>();
  };
  token.special = flag("special", false);
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.normalized = flag("normalized", !token.special);

  const std::optional<int32_t> known = find(token.content);
  if (known && *known != id)
    fail("[{}] added token '{}' has id {}, but {} in the vocabulary", place, token.content, id, *known);
  const auto index = static_cast<size_t>(id);
  if (!known && index < spec_->tokens.size() && !spec_->tokens[index].empty())
    fail("[{}] added token '{}' has id {}, which is another token in the vocabulary", place, token.content,
         id);
  if (const auto [other, fresh] = added_by_content_.emplace(token.content, id); !fresh)
    fail("[{}] added token '{}' appears twice, with the ids {} and {}", place, token.content, other->second,
         id);
  if (const auto [other, fresh] = added_by_id_.emplace(id, token.content); !fresh)
    fail("[{}] added tokens '{}' and '{}' have the same id {}", place, other->second, token.content, id);
  spec_->added.push_back(std::move(token));
}

std::string apply_tokenizer_config(VocabularySpec& spec, VocabReader* vocab, const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "tokenizer_config.json").string();
  if (!std::filesystem::exists(path)) return "";
  const json config = read_json_file(path);
  if (!config.is_object()) fail("[{}] is not a JSON object", path);
  if (vocab && config.contains("added_tokens_decoder")) {
    const json& decoder = config["added_tokens_decoder"];
    if (!decoder.is_object()) fail("[{}] `added_tokens_decoder` is not an object", path);
    for (const auto& item : decoder.items()) {
      const std::string& key = item.key();
      int32_t id = -1;
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
      if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0 || id > kMaxId)
        fail("[{}] `added_tokens_decoder` has the key '{}', expected an id", path, key);
      if (!item.value().is_object()) fail("[{}] added token {} is not an object", path, id);
      vocab->add_added(id, item.value());
    }
  }
  if (const auto text = token_text(config, "bos_token")) {
    if (const auto id = added_id(spec, *text)) spec.bos = id;
  }
  if (const auto text = token_text(config, "eos_token")) spec.eos = added_id(spec, *text);
  if (const auto text = token_text(config, "pad_token")) spec.pad = added_id(spec, *text);
  const auto name = config.find("tokenizer_class");
  return name != config.end() && name->is_string() ? name->get<std::string>() : "";
}

void guess_eos(VocabularySpec& spec) {
  for (const char* text : {"<|end_of_text|>", "<|endoftext|>", "</s>"}) {
    if (!spec.eos) spec.eos = added_id(spec, text);
  }
}

}  // namespace octet
