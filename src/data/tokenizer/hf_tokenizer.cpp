#include "data/tokenizer/hf_tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "data/tokenizer/tokenizer_parts.h"

namespace octet {
namespace {

using nlohmann::json;

constexpr const char* kReads = "octet reads byte-level BPE as GPT-2, Llama 3 and Qwen2.5 define it";

// Fills a spec from the parsed file; every method takes the value of one key.
class JsonReader {
 public:
  explicit JsonReader(ByteLevelSpec& spec) : spec_(spec), vocab_(spec) {}

  void read(const json& root) {
    if (!root.is_object() || !root.contains("model"))
      fail("[{}] has no `model`; expected a tokenizer.json of Hugging Face", spec_.place);
    read_model(object(root["model"], "model"));
    read_normalizer(value(root, "normalizer"));
    read_pre_tokenizer(value(root, "pre_tokenizer"));
    read_decoder(value(root, "decoder"));
    const json& added = value(root, "added_tokens");
    if (!added.is_null() && !added.is_array()) fail("[{}] `added_tokens` is not an array", spec_.place);
    for (const json& entry : added) {
      object(entry, "added_tokens");
      const int32_t id = checked_token_id(value(entry, "id"), spec_.place, "an added token");
      vocab_.add_added(id, entry);
    }
    read_post_processor(value(root, "post_processor"));
    for (const char* key : {"truncation", "padding"}) {
      if (!value(root, key).is_null())
        log_warning("[{}] `{}` is ignored: octet does not truncate or pad", spec_.place, key);
    }
  }

 private:
  // The member or null.
  static const json& value(const json& parent, const char* key) {
    static const json null;
    const auto found = parent.find(key);
    return found == parent.end() ? null : *found;
  }
  const json& object(const json& item, const char* name) const {
    if (!item.is_object()) fail("[{}] `{}` is not an object", spec_.place, name);
    return item;
  }
  bool flag(const json& parent, const char* key, bool otherwise) const {
    const json& item = value(parent, key);
    if (item.is_null()) return otherwise;
    if (!item.is_boolean()) fail("[{}] `{}` is {}, expected true or false", spec_.place, key, item.dump());
    return item.get<bool>();
  }
  std::string type(const json& component, const char* name) const {
    const json& item = value(object(component, name), "type");
    if (!item.is_string()) fail("[{}] `{}` has no `type`", spec_.place, name);
    return item.get<std::string>();
  }
  [[noreturn]] void unknown(const char* name, const std::string& what) const {
    fail("[{}] {} '{}' is not supported; {}", spec_.place, name, what, kReads);
  }
  // The elements of a component of type Sequence, or the component itself.
  std::vector<const json*> sequence(const json& component, const char* name, const char* elements) const {
    if (type(component, name) != "Sequence") return {&component};
    const json& items = value(component, elements);
    if (!items.is_array()) fail("[{}] `{}` is a Sequence without an array `{}`", spec_.place, name, elements);
    std::vector<const json*> parts;
    for (const json& item : items) parts.push_back(&item);
    return parts;
  }

  void read_model(const json& model) {
    // Files written before `type` existed have only BPE's members.
    const json& kind = value(model, "type");
    if (!kind.is_null() && kind != "BPE")
      unknown("model", kind.is_string() ? kind.get<std::string>() : kind.dump());
    const json& dropout = value(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) unknown("model option", "dropout " + dropout.dump());
    if (flag(model, "byte_fallback", false)) unknown("model option", "byte_fallback true");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& text = value(model, key);
      if (!text.is_null() && text != "") unknown("model option", fmt::format("{} {}", key, text.dump()));
    }
    spec_.ignore_merges = flag(model, "ignore_merges", false);
    if (!model.contains("vocab")) fail("[{}] `model` has no `vocab`", spec_.place);
    if (!model.contains("merges")) fail("[{}] `model` has no `merges`", spec_.place);
    vocab_.read(model["vocab"]);
    const json& merges = model["merges"];
    if (!merges.is_array()) fail("[{}] `merges` is not an array", spec_.place);
    spec_.merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) read_merge(merges[i], i);
  }

  void read_merge(const json& merge, size_t number) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      vocab_.add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(),
                       number);
      return;
    }
    if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        vocab_.add_merge(std::string_view(text).substr(0, space), std::string_view(text).substr(space + 1),
                         number);
        return;
      }
    }
    fail("[{}] merge {} is {}, expected \"left right\" or [\"left\", \"right\"]", spec_.place, number,
         merge.dump());
  }

  void read_normalizer(const json& normalizer) {
    if (normalizer.is_null()) return;
    for (const json* part : sequence(normalizer, "normalizer", "normalizers")) {
      const std::string kind = type(*part, "normalizer");
      if (kind != "NFC") unknown("normalizer", kind);
      spec_.nfc = true;
    }
  }

  void read_pre_tokenizer(const json& pre_tokenizer) {
    if (pre_tokenizer.is_null()) unknown("pre_tokenizer", "null");
    std::optional<SplitPattern> pattern;
    bool byte_level = false;
    for (const json* part : sequence(pre_tokenizer, "pre_tokenizer", "pretokenizers")) {
      const std::string kind = type(*part, "pre_tokenizer");
      if (byte_level) unknown("pre_tokenizer", kind + " after ByteLevel");
      if (kind == "Split") {
        if (pattern) unknown("pre_tokenizer", "a second Split");
        pattern = read_split(*part);
      } else if (kind == "ByteLevel") {
        byte_level = true;
        spec_.add_prefix_space = flag(*part, "add_prefix_space", true);
        const bool use_regex = flag(*part, "use_regex", true);
        if (pattern && use_regex) unknown("pre_tokenizer", "Split and ByteLevel with use_regex");
        if (pattern && spec_.add_prefix_space)
          unknown("pre_tokenizer", "Split and ByteLevel with add_prefix_space");
        if (!pattern) pattern = use_regex ? SplitPattern::Gpt2 : SplitPattern::None;
      } else {
        unknown("pre_tokenizer", kind);
      }
    }
    if (!byte_level) unknown("pre_tokenizer", type(pre_tokenizer, "pre_tokenizer") + " without ByteLevel");
    spec_.pattern = *pattern;
  }

  SplitPattern read_split(const json& split) {
    const json& pattern = value(split, "pattern");
    const json& regex = pattern.is_object() ? value(pattern, "Regex") : pattern;
    if (!regex.is_string()) unknown("Split pattern", pattern.dump());
    // The patterns match every character, so keeping only the matches is the same as isolating them.
    const json& behavior = value(split, "behavior");
    const bool invert = flag(split, "invert", false);
    if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert))
      unknown("Split behavior", fmt::format("{} with invert {}", behavior.dump(), invert));
    const std::string text = regex.get<std::string>();
    const std::optional<SplitPattern> known = find_split_pattern(text);
    if (!known) unknown("Split pattern", text);
    return *known;
  }

  void read_decoder(const json& decoder) {
    if (decoder.is_null()) return;  // the pre-tokenizer has said that tokens are bytes
    for (const json* part : sequence(decoder, "decoder", "decoders")) {
      const std::string kind = type(*part, "decoder");
      if (kind != "ByteLevel") unknown("decoder", kind);
    }
  }

  void read_post_processor(const json& processor) {
    if (processor.is_null()) return;
    for (const json* part : sequence(processor, "post_processor", "processors")) {
      const std::string kind = type(*part, "post_processor");
      if (kind == "ByteLevel") continue;  // changes offsets only
      if (kind != "TemplateProcessing") unknown("post_processor", kind);
      read_template(*part);
    }
  }

  void read_template(const json& processor) {
    const json& single = value(processor, "single");
    if (!single.is_array()) fail("[{}] TemplateProcessing has no array `single`", spec_.place);
    bool behind = false;
    std::vector<int32_t> before_text, after_text;
    for (const json& piece : single) {
      if (piece.is_object() && piece.contains("Sequence")) {
        if (behind) unknown("post_processor", "TemplateProcessing with two sequences in `single`");
        behind = true;
      } else if (piece.is_object() && piece.contains("SpecialToken")) {
        for (const int32_t id : special_ids(processor, piece["SpecialToken"]))
          (behind ? after_text : before_text).push_back(id);
      } else {
        fail("[{}] TemplateProcessing has the piece {}, expected Sequence or SpecialToken", spec_.place,
             piece.dump());
      }
    }
    if (!behind)
      fail("[{}] TemplateProcessing has no place for the text, expected a Sequence in `single`", spec_.place);
    // A second template goes around the first.
    spec_.prefix.insert(spec_.prefix.begin(), before_text.begin(), before_text.end());
    spec_.suffix.insert(spec_.suffix.end(), after_text.begin(), after_text.end());
    if (!spec_.prefix.empty()) spec_.bos = spec_.prefix.front();
  }

  std::vector<int32_t> special_ids(const json& processor, const json& token) const {
    const json& name = value(object(token, "SpecialToken"), "id");
    const json& entries = value(processor, "special_tokens");
    if (!name.is_string() || !entries.is_object() || !entries.contains(name.get<std::string>()))
      fail("[{}] TemplateProcessing uses the token {}, which is not in `special_tokens`", spec_.place,
           name.dump());
    const json& ids = value(object(entries[name.get<std::string>()], "special_tokens"), "ids");
    if (!ids.is_array()) fail("[{}] special token {} has no array `ids`", spec_.place, name.dump());
    std::vector<int32_t> result;
    for (const json& item : ids) {
      const int32_t id = checked_token_id(item, spec_.place, fmt::format("special token {}", name.dump()));
      if (!is_known(id))
        fail("[{}] special token {} has id {}, which no token has", spec_.place, name.dump(), id);
      result.push_back(id);
    }
    return result;
  }

  bool is_known(int32_t id) const {
    for (const AddedToken& token : spec_.added) {
      if (token.id == id) return true;
    }
    const auto index = static_cast<size_t>(id);
    return index < spec_.tokens.size() && !spec_.tokens[index].empty();
  }

  ByteLevelSpec& spec_;
  VocabReader vocab_;
};

}  // namespace

ByteLevelSpec parse_tokenizer_json(std::string_view text, const std::string& place) {
  ByteLevelSpec spec;
  spec.place = place;
  JsonReader(spec).read(parse_json(text, place, {.refuse_duplicate_keys = true}));
  return spec;
}

ByteLevelSpec read_tokenizer_json(const std::string& path) {
  ByteLevelSpec spec = parse_tokenizer_json(read_text_file(path), path);
  const std::filesystem::path file(path);
  if (file.filename() == "tokenizer.json") apply_tokenizer_config(spec, nullptr, file.parent_path().string());
  guess_eos(spec);
  return spec;
}

}  // namespace octet
