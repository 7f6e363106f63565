// The older forms of tokenizer files, and the choice between all forms.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "data/tokenizer/sentencepiece_files.h"
#include "data/tokenizer/tokenizer_parts.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

struct Family {
  TokenizerFamily family;
  const char* name;
  size_t ranks;  // entries of the vocabulary without special tokens
};
constexpr Family kFamilies[] = {{TokenizerFamily::Gpt2, "GPT-2", 50256},
                                {TokenizerFamily::Llama3, "Llama 3", 128000},
                                {TokenizerFamily::Qwen2, "Qwen2.5", 151643}};

std::vector<std::string> special_tokens(TokenizerFamily family) {
  switch (family) {
    case TokenizerFamily::Gpt2:
      return {"<|endoftext|>"};
    case TokenizerFamily::Qwen2:
      return {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    case TokenizerFamily::Llama3:
      break;
  }
  // Llama 3.1 and later; 3.0 has reserved names for three of them.
  std::vector<std::string> tokens = {"<|begin_of_text|>",
                                     "<|end_of_text|>",
                                     "<|reserved_special_token_0|>",
                                     "<|reserved_special_token_1|>",
                                     "<|finetune_right_pad_id|>",
                                     "<|reserved_special_token_2|>",
                                     "<|start_header_id|>",
                                     "<|end_header_id|>",
                                     "<|eom_id|>",
                                     "<|eot_id|>",
                                     "<|python_tag|>"};
  for (int i = 3; tokens.size() < 256; ++i) tokens.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  return tokens;
}

void apply_pattern(ByteLevelSpec& spec, TokenizerFamily family) {
  constexpr std::array<SplitPattern, 3> kPatterns = {SplitPattern::Gpt2, SplitPattern::Llama3,
                                                     SplitPattern::Qwen2};
  spec.pattern = kPatterns[static_cast<size_t>(family)];
  spec.nfc = family == TokenizerFamily::Qwen2;
}

// Value of a base64 digit, or -1.
int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && text.back() == '=') {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = base64_value(c);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> count & 0xFF));
    }
  }
  if (bytes.empty() || (bits & ((1u << count) - 1)) != 0) return std::nullopt;
  return bytes;
}

// Calls line(number from 1, text without line end) for each line that is not empty.
template <class Function>
void for_each_line(std::string_view text, Function&& line) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    if (!content.empty()) line(number, content);
  }
}

bool is_flat_vocab(const std::string& path) {
  return fs::path(path).filename().string().ends_with("vocab.json");
}

// The other file of the pair: same folder, same name before the last word.
std::string sibling(const std::string& path, std::string_view from, std::string_view to) {
  return path.substr(0, path.size() - from.size()).append(to);
}

constexpr const char* kJsonName = "tokenizer.json";
constexpr const char* kVocabName = "vocab.json";
constexpr const char* kMergesName = "merges.txt";
constexpr const char* kModelName = "tokenizer.model";

// The files that a tokenizer is read from.
struct Form {
  enum class Kind { Json, Pair, Model } kind;
  std::string path;    // of the JSON, of a pair's vocabulary, of the SentencePiece model or rank file
  std::string merges;  // of a pair
};

Form form_of(const std::string& path) {
  using enum Form::Kind;
  if (fs::is_directory(path)) {
    const auto in_folder = [&](const char* name) { return (fs::path(path) / name).string(); };
    if (fs::exists(in_folder(kJsonName))) return {Json, in_folder(kJsonName), ""};
    if (fs::exists(in_folder(kVocabName))) return {Pair, in_folder(kVocabName), in_folder(kMergesName)};
    if (fs::exists(in_folder(kModelName))) return {Model, in_folder(kModelName), ""};
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".tiktoken") return {Model, entry.path().string(), ""};
    }
    fail("[{}] the folder holds none of tokenizer.json, vocab.json, tokenizer.model, *.tiktoken", path);
  }
  if (!fs::exists(path)) fail("[{}] there is no such file or folder", path);
  if (is_flat_vocab(path)) return {Pair, path, sibling(path, kVocabName, kMergesName)};
  if (path.ends_with(kMergesName)) return {Pair, sibling(path, kMergesName, kVocabName), path};
  return {path.ends_with(".json") ? Json : Model, path, ""};
}

// A rank file is text; a SentencePiece model is not.
bool is_text(std::string_view start) {
  return std::ranges::none_of(start, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 && c != '\n' && c != '\r' && c != '\t';
  });
}

}  // namespace

void apply_family(ByteLevelSpec& spec, TokenizerFamily family, int32_t first_id) {
  apply_pattern(spec, family);
  const std::vector<std::string> names = special_tokens(family);
  std::unordered_map<std::string_view, int32_t> ids;
  for (const std::string& name : names) ids.emplace(name, -1);
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (const auto found = ids.find(spec.tokens[id]); found != ids.end())
      found->second = static_cast<int32_t>(id);
  }
  for (const std::string& name : names) {
    AddedToken token;
    token.id = ids[name] >= 0 ? ids[name] : first_id++;
    token.content = name;
    token.special = true;
    spec.added.push_back(std::move(token));
  }
  if (family == TokenizerFamily::Llama3) {
    spec.bos = spec.added.front().id;
    spec.prefix = {*spec.bos};
  }
  guess_eos(spec);
}

ByteLevelSpec read_vocab_and_merges(const std::string& vocab_path, const std::string& merges_path) {
  ByteLevelSpec spec;
  spec.place = vocab_path;
  VocabReader vocab(spec);
  vocab.read(read_json_file(vocab_path));

  spec.place = merges_path;
  for_each_line(read_text_file(merges_path), [&](size_t number, std::string_view line) {
    if (line.starts_with("#version")) return;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      fail("[{}] line {}: '{}', expected two tokens and a space between them", merges_path, number, line);
    vocab.add_merge(line.substr(0, space), line.substr(space + 1), number);
  });
  spec.place = vocab_path;

  const std::string name = apply_tokenizer_config(spec, &vocab, fs::path(vocab_path).parent_path().string());
  TokenizerFamily family = TokenizerFamily::Gpt2;
  if (name.starts_with("Qwen2")) {
    family = TokenizerFamily::Qwen2;
  } else if (!name.empty() && !name.starts_with("GPT2")) {
    fail(
        "[{}] tokenizer_class '{}' is not supported without a tokenizer.json; expected GPT2Tokenizer or "
        "Qwen2Tokenizer",
        vocab_path, name);
  } else if (name.empty() && vocab.size() == kFamilies[2].ranks) {
    family = TokenizerFamily::Qwen2;
  }
  const auto first_free = static_cast<int32_t>(spec.tokens.size());
  if (spec.added.empty()) {
    apply_family(spec, family, first_free);
  } else {
    apply_pattern(spec, family);
    guess_eos(spec);
  }
  return spec;
}

ByteLevelSpec read_tiktoken(const std::string& path, std::optional<TokenizerFamily> family) {
  ByteLevelSpec spec;
  spec.place = path;
  spec.ignore_merges = true;  // a word that has a rank is that token
  size_t ranks = 0;
  for_each_line(read_text_file(path), [&](size_t number, std::string_view line) {
    const size_t space = line.find(' ');
    std::optional<std::string> bytes;
    uint32_t rank = 0;
    if (space != std::string_view::npos) {
      bytes = decode_base64(line.substr(0, space));
      const char* end = line.data() + line.size();
      const auto parsed = std::from_chars(line.data() + space + 1, end, rank);
      if (parsed.ec != std::errc() || parsed.ptr != end || rank >= uint32_t{1} << 22) bytes.reset();
    }
    if (!bytes)
      fail(
          "[{}] line {} is not a base64 token and its rank; octet reads tiktoken rank files, tokenizer.json, "
          "vocab.json with merges.txt, and SentencePiece models",
          path, number);
    if (rank >= spec.tokens.size()) spec.tokens.resize(std::max<size_t>(rank + 1, spec.tokens.size() * 2));
    if (!spec.tokens[rank].empty()) fail("[{}] line {}: rank {} appears twice", path, number, rank);
    spec.tokens[rank] = std::move(*bytes);
    ++ranks;
  });
  while (!spec.tokens.empty() && spec.tokens.back().empty()) spec.tokens.pop_back();
  require(ranks > 0, "[{}] holds no tokens", path);

  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(ranks);
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.tokens[id].empty()) continue;
    const auto [other, fresh] = ids.emplace(spec.tokens[id], static_cast<int32_t>(id));
    if (!fresh) fail("[{}] ranks {} and {} have the same token", path, other->second, id);
  }
  // Any two tokens that together form a third may merge, with the rank of the third.
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string_view token = spec.tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right == ids.end()) continue;
      spec.merges.push_back(
          {left->second, right->second, static_cast<int32_t>(id), static_cast<uint32_t>(id)});
    }
  }

  if (!family) {
    for (const Family& known : kFamilies) {
      if (known.ranks == ranks) family = known.family;
    }
  }
  if (!family)
    fail(
        "[{}] has {} ranks, expected 50256 (GPT-2), 128000 (Llama 3) or 151643 (Qwen2.5); the file itself "
        "does not say how to split text",
        path, ranks);
  apply_family(spec, *family, static_cast<int32_t>(spec.tokens.size()));
  return spec;
}

TokenizerSpec read_tokenizer_spec(const std::string& file_or_dir) {
  const Form form = form_of(file_or_dir);
  const fs::path file(form.path);
  switch (form.kind) {
    case Form::Kind::Json: {
      const std::string folder = file.filename() == kJsonName ? file.parent_path().string() : "";
      return read_json_spec(read_text_file(form.path), form.path, folder);
    }
    case Form::Kind::Pair:
      return read_vocab_and_merges(form.path, form.merges);
    case Form::Kind::Model:
      break;
  }
  if (file.extension() == ".bin") return read_llama2c_vocabulary(form.path);
  if (!is_text(read_text_file(form.path).substr(0, 4096))) return read_sentencepiece_model(form.path);
  return read_tiktoken(form.path);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& file_or_dir) {
  return make_tokenizer_of(read_tokenizer_spec(file_or_dir));
}

std::vector<TokenizerFile> tokenizer_files(const std::string& name) {
  std::vector<TokenizerFile> files;
  if (name == "bytes") return files;
  const std::string local = local_tokenizer(name);
  const Form form = form_of(local);
  if (form.kind == Form::Kind::Json) files = {{kJsonName, form.path}};
  if (form.kind == Form::Kind::Pair) files = {{kVocabName, form.path}, {kMergesName, form.merges}};
  if (form.kind == Form::Kind::Model) files = {{kModelName, form.path}};
  const fs::path main = form.path;
  // A JSON file with another name is read without tokenizer_config.json. Under the name tokenizer.json, the config
  // would count.
  if (form.kind == Form::Kind::Json && main.filename() != kJsonName) return files;
  std::vector<const char*> others = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                     "chat_template.jinja"};
  // For a folder, also the forms that were not read: other programs may prefer them.
  if (fs::is_directory(local)) others.insert(others.end(), {kVocabName, kMergesName, kModelName});
  for (const char* other : others) {
    const fs::path path = main.parent_path() / other;
    const bool listed = std::ranges::any_of(files, [&](const TokenizerFile& f) { return f.name == other; });
    if (!listed && fs::exists(path)) files.push_back({other, path.string()});
  }
  return files;
}

}  // namespace octet
