#include "data/tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"

namespace octet {

void TokenizerJsonReader::read(const Json& root) {
  if (!root.is_object() || !root.contains("model"))
    fail("[{}] has no `model`; expected a tokenizer.json of Hugging Face", spec_.place);
  read_model(object(root["model"], "model"));
  read_normalizer(value(root, "normalizer"));
  read_pre_tokenizer(value(root, "pre_tokenizer"));
  read_decoder(value(root, "decoder"));
  const Json& added = value(root, "added_tokens");
  if (!added.is_null() && !added.is_array()) fail("[{}] `added_tokens` is not an array", spec_.place);
  for (const Json& entry : added) {
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

const TokenizerJsonReader::Json& TokenizerJsonReader::value(const Json& parent, const char* key) {
  static const Json null;
  const auto found = parent.find(key);
  return found == parent.end() ? null : *found;
}

const TokenizerJsonReader::Json& TokenizerJsonReader::object(const Json& item, const char* name) const {
  if (!item.is_object()) fail("[{}] `{}` is not an object", spec_.place, name);
  return item;
}

bool TokenizerJsonReader::flag(const Json& parent, const char* key, bool otherwise) const {
  const Json& item = value(parent, key);
  if (item.is_null()) return otherwise;
  if (!item.is_boolean()) fail("[{}] `{}` is {}, expected true or false", spec_.place, key, item.dump());
  return item.get<bool>();
}

std::string TokenizerJsonReader::type(const Json& component, const char* name) const {
  const Json& item = value(object(component, name), "type");
  if (!item.is_string()) fail("[{}] `{}` has no `type`", spec_.place, name);
  return item.get<std::string>();
}

void TokenizerJsonReader::unknown(const char* name, const std::string& what) const {
  fail("[{}] {} '{}' is not supported; {}", spec_.place, name, what, reads_);
}

std::vector<const TokenizerJsonReader::Json*> TokenizerJsonReader::sequence(const Json& component,
                                                                            const char* name,
                                                                            const char* elements) const {
  if (component.is_null()) return {};
  if (type(component, name) != "Sequence") return {&component};
  const Json& items = value(component, elements);
  if (!items.is_array()) fail("[{}] `{}` is a Sequence without an array `{}`", spec_.place, name, elements);
  std::vector<const Json*> parts;
  for (const Json& item : items) parts.push_back(&item);
  return parts;
}

void TokenizerJsonReader::read_model(const Json& model) {
  // Files written before `type` existed have only BPE's members.
  const Json& kind = value(model, "type");
  if (!kind.is_null() && kind != "BPE")
    unknown("model", kind.is_string() ? kind.get<std::string>() : kind.dump());
  const Json& dropout = value(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) unknown("model option", "dropout " + dropout.dump());
  read_model_options(model);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& text = value(model, key);
    if (!text.is_null() && text != "") unknown("model option", fmt::format("{} {}", key, text.dump()));
  }
  spec_.ignore_merges = flag(model, "ignore_merges", false);
  if (!model.contains("vocab")) fail("[{}] `model` has no `vocab`", spec_.place);
  if (!model.contains("merges")) fail("[{}] `model` has no `merges`", spec_.place);
  vocab_.read(model["vocab"]);
  const Json& merges = model["merges"];
  if (!merges.is_array()) fail("[{}] `merges` is not an array", spec_.place);
  spec_.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) read_merge(merges[i], i);
}

void TokenizerJsonReader::read_merge(const Json& merge, size_t number) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    vocab_.add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), number);
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

void TokenizerJsonReader::read_post_processor(const Json& processor) {
  if (processor.is_null()) return;
  for (const Json* part : sequence(processor, "post_processor", "processors")) {
    const std::string kind = type(*part, "post_processor");
    if (kind == "ByteLevel") continue;  // changes offsets only
    if (kind != "TemplateProcessing") unknown("post_processor", kind);
    read_template(*part);
  }
}

void TokenizerJsonReader::read_template(const Json& processor) {
  const Json& single = value(processor, "single");
  if (!single.is_array()) fail("[{}] TemplateProcessing has no array `single`", spec_.place);
  bool behind = false;
  std::vector<int32_t> before_text, after_text;
  for (const Json& piece : single) {
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

std::vector<int32_t> TokenizerJsonReader::special_ids(const Json& processor, const Json& token) const {
  const Json& name = value(object(token, "SpecialToken"), "id");
  const Json& entries = value(processor, "special_tokens");
  if (!name.is_string() || !entries.is_object() || !entries.contains(name.get<std::string>()))
    fail("[{}] TemplateProcessing uses the token {}, which is not in `special_tokens`", spec_.place,
         name.dump());
  const Json& ids = value(object(entries[name.get<std::string>()], "special_tokens"), "ids");
  if (!ids.is_array()) fail("[{}] special token {} has no array `ids`", spec_.place, name.dump());
  std::vector<int32_t> result;
  for (const Json& item : ids) {
    const int32_t id = checked_token_id(item, spec_.place, fmt::format("special token {}", name.dump()));
    if (!is_known(id))
      fail("[{}] special token {} has id {}, which no token has", spec_.place, name.dump(), id);
    result.push_back(id);
  }
  return result;
}

bool TokenizerJsonReader::is_known(int32_t id) const {
  for (const AddedToken& token : spec_.added) {
    if (token.id == id) return true;
  }
  const auto index = static_cast<size_t>(id);
  return index < spec_.tokens.size() && !spec_.tokens[index].empty();
}

}  // namespace octet
