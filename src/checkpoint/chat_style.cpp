#include "checkpoint/chat_style.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/json_values.h"
#include "base/log.h"

namespace octet {
namespace {

using nlohmann::json;

void add_once(std::vector<int32_t>& ids, int32_t id) {
  if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
}

// An id or a list of ids.
std::vector<int32_t> ids_in(const json& value) {
  std::vector<int32_t> ids;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX)
      ids.push_back(id.get<int32_t>());
  }
  return ids;
}

json read_json(const std::string& path) {
  return parse_json(posix_env().read_text(path), path);
}

// The template of a folder and the file that holds it; empty: none. Transformers prefers the file of its own.
std::pair<std::string, std::string> template_in(const std::string& folder) {
  Env& env = posix_env();
  if (const std::string path = join_path(folder, "chat_template.jinja"); env.exists(path))
    return {env.read_text(path), path};
  const std::string path = join_path(folder, "tokenizer_config.json");
  if (!env.exists(path)) return {};
  const json config = read_json(path);
  if (!config.is_object() || !config.contains("chat_template")) return {};
  const json& found = config["chat_template"];
  if (found.is_string()) return {found.get<std::string>(), path};
  // Several, each with a name.
  if (found.is_array()) {
    for (const json& entry : found) {
      if (text_in(entry, "name") == "default") return {text_in(entry, "template").value_or(""), path};
    }
  }
  return {};
}

}  // namespace

std::string to_chat_json(const ChatStyle& style) {
  nlohmann::ordered_json file = {{"chat_template", name_of(style.chat_template)}};
  file["default_system"] = style.default_system ? json(*style.default_system) : json(nullptr);
  return file.dump(2) + "\n";
}

ChatStyle chat_style_from_json(std::string_view text, std::string_view place) {
  const json file = parse_json(text, place);
  require(file.is_object() && file.contains("chat_template") && file["chat_template"].is_string(),
          "[{}] has no chat_template", place);
  ChatStyle style{.chat_template = parse_chat_template(file["chat_template"].get<std::string>())};
  if (file.contains("default_system") && file["default_system"].is_string())
    style.default_system = file["default_system"].get<std::string>();
  return style;
}

namespace {

// The folders that may have a template, the most telling first.
std::vector<std::string> template_folders(const ModelFolder& model) {
  std::vector<std::string> folders;
  for (const std::string& folder :
       {model.adapter ? model.adapter->folder : std::string(), model.tokenizer, model.folder}) {
    if (!folder.empty() && posix_env().is_directory(folder)) folders.push_back(folder);
  }
  return folders;
}

}  // namespace

std::string find_chat_jinja(const ModelFolder& model) {
  for (const std::string& folder : template_folders(model)) {
    if (std::string jinja = template_in(folder).first; !jinja.empty()) return jinja;
  }
  return "";
}

ModelChat chat_style_in(const std::string& folder) {
  ModelChat chat;
  const auto [jinja, path] = template_in(folder);
  if (jinja.empty()) return chat;
  chat.style = recognise_chat_template(jinja);
  (chat.style ? chat.source : chat.unknown) = path;
  return chat;
}

ModelChat find_chat_style(const ModelFolder& model) {
  if (model.checkpoint && model.checkpoint->has_file(checkpoint_file::kChat)) {
    const std::string path = model.checkpoint->file_path(checkpoint_file::kChat);
    return {.style = chat_style_from_json(posix_env().read_text(path), path), .source = path};
  }
  for (const std::string& folder : template_folders(model)) {
    if (ModelChat chat = chat_style_in(folder); chat.style || !chat.unknown.empty()) return chat;
  }
  ModelChat chat;
  if (model.run && model.run->chat_template != ChatTemplate::Auto) {
    chat.style = ChatStyle{.chat_template = model.run->chat_template};
    if (model.run->default_system != "auto") chat.style->default_system = model.run->default_system;
    chat.source = "the run's chat_template";
  }
  return chat;
}

std::vector<int32_t> end_ids_of(const ModelFolder& model, const Tokenizer* tokenizer,
                                const ChatRenderer* renderer) {
  std::vector<int32_t> ids;
  if (renderer && tokenizer && !renderer->end_token().empty()) {
    if (const auto id = tokenizer->find_token(renderer->end_token())) ids.push_back(*id);
  }
  for (const int32_t id : model.config.eos_ids) add_once(ids, id);
  if (const std::string path = join_path(model.folder, "generation_config.json"); posix_env().exists(path)) {
    const json config = read_json(path);
    if (config.is_object() && config.contains("eos_token_id")) {
      for (const int32_t id : ids_in(config["eos_token_id"])) {
        if (id < model.config.vocab) add_once(ids, id);
      }
    }
  }
  if ((ids.empty() || renderer) && tokenizer && tokenizer->eos()) add_once(ids, *tokenizer->eos());
  return ids;
}

std::optional<ChatRenderer> renderer_for(const std::optional<ChatStyle>& style, const Tokenizer& tokenizer) {
  if (!style) return std::nullopt;
  try {
    return ChatRenderer(*style, tokenizer, parse_loss_roles("completion"));
  } catch (const Error& error) {
    log_warning("{}", error.what());
    return std::nullopt;
  }
}

}  // namespace octet
