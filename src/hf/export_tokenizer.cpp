#include "hf/export_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "data/tokenizer/bytes_tokenizer.h"
#include "data/tokenizer/tokenizer_parts.h"
#include "hf/byte_alphabet.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

// The bytes tokenizer as a byte-level BPE without merges.
Json bytes_tokenizer_json() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[alphabet_character(byte)] = byte;
  const Json end = {{"id", BytesTokenizer::kEndOfText},
                    {"content", "<|endoftext|>"},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", true}};
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", Json::array()}}}};
}

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kSpecialTokensName = "special_tokens_map.json";
constexpr const char* kJinjaName = "chat_template.jinja";

std::string token_name(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? tokenizer.decode(std::vector<int32_t>{*id}) : std::string();
}

// In tokenizer_config.json and in special_tokens_map.json, which has no template.
void set_chat(Json& config, const ExportedChat& chat, bool has_template = true) {
  if (!config.is_object()) return;
  if (has_template) config["chat_template"] = chat.jinja;
  if (!chat.end.empty()) config["eos_token"] = chat.end;
}

// Without it Transformers would take the class of the model's family, whatever the tokenizer is.
Json tokenizer_config(const std::string& bos, const std::string& eos, int64_t max_positions,
                      const char* tokenizer_class = "PreTrainedTokenizerFast") {
  Json config = {{"tokenizer_class", tokenizer_class},
                 {"model_max_length", max_positions},
                 {"clean_up_tokenization_spaces", false}};
  if (!bos.empty()) config["bos_token"] = bos;
  if (!eos.empty()) config["eos_token"] = eos;
  return config;
}

void write_json(Env& env, const std::string& folder, const char* name, const Json& json) {
  env.write_synced(join_path(folder, name), json.dump(2) + "\n");
}

}  // namespace

std::vector<NamedText> read_tokenizer_texts(Env& env, const std::string& name) {
  std::vector<NamedText> texts;
  for (const TokenizerFile& file : tokenizer_files(name))
    texts.push_back({file.name, env.read_text(file.path, kLargestTokenizerFile)});
  return texts;
}

std::string export_tokenizer(Env& env, const std::string& name, const std::string& folder,
                             int64_t max_positions, const std::optional<ExportedChat>& chat) {
  const auto write_config = [&](Json config) {
    if (chat) set_chat(config, *chat);
    write_json(env, folder, kConfigName, config);
  };
  if (name == "bytes") {
    write_json(env, folder, "tokenizer.json", bytes_tokenizer_json());
    write_config(tokenizer_config("<|endoftext|>", "<|endoftext|>", max_positions));
    return "bytes, as tokenizer.json";
  }
  // Checks that octet can read it.
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(name);
  std::vector<std::string> written;
  const std::vector<NamedText> texts = read_tokenizer_texts(env, name);
  bool has_config = false;
  for (const NamedText& file : texts) {
    written.push_back(file.name);
    has_config = has_config || file.name == kConfigName;
    const bool is_json = file.name == kConfigName || file.name == kSpecialTokensName;
    if (chat && is_json) {
      parse_json(file.text, file.name);
      Json json = Json::parse(file.text);  // a second time, to keep the order of the keys
      set_chat(json, *chat, file.name == kConfigName);
      write_json(env, folder, file.name.c_str(), json);
    } else if (chat && file.name == kJinjaName) {
      env.write_synced(join_path(folder, file.name), chat->jinja);  // Transformers prefers it to the config
    } else {
      env.write_synced(join_path(folder, file.name), file.text);
    }
  }
  const bool is_json_alone = written == std::vector<std::string>{"tokenizer.json"};
  if (is_json_alone || (chat && !has_config)) {
    const std::string bos = token_name(*tokenizer, tokenizer->bos());
    const std::string eos = token_name(*tokenizer, tokenizer->eos());
    // PreTrainedTokenizerFast reads tokenizer.json alone.
    const bool has_json = std::ranges::find(written, "tokenizer.json") != written.end();
    const bool has_model = std::ranges::find(written, "tokenizer.model") != written.end();
    write_config(tokenizer_config(bos, eos, max_positions,
                                  has_model && !has_json ? "LlamaTokenizer" : "PreTrainedTokenizerFast"));
    written.emplace_back(kConfigName);
  }
  return fmt::format("{}", fmt::join(written, ", "));
}

}  // namespace octet
