#include "data/chat/conversation.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/json_values.h"
#include "base/text.h"
#include "data/records/record_reader.h"

namespace octet {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// The column's value; null when it is absent and optional.
template <class Json>
const Json& field(const Json& record, const std::string& name, bool is_needed, const std::string& place) {
  static const Json kNull;
  const auto found = record.find(name);
  if (found != record.end()) return *found;
  if (is_needed) {
    std::vector<std::string> columns;
    for (const auto& [column, value] : record.items()) columns.push_back(column);
    fail_record(SkipReason::MissingColumn, "[{}: no column {}; the columns are: {}", place, printable(name),
                list_columns(columns));
  }
  return kNull;
}

template <class Json>
std::string string_of(const Json& value, const std::string& name, const std::string& place) {
  if (value.is_string()) return value.template get<std::string>();
  fail_record(SkipReason::BadValue, "[{}: column {} is {}, expected text", place, printable(name),
              value.type_name());
}

template <class Json>
std::string optional_string(const Json& record, const std::string& name, const std::string& place) {
  if (name.empty()) return {};
  const Json& value = field(record, name, false, place);
  return value.is_null() ? std::string() : string_of(value, name, place);
}

// Null, "", [], {}, or a list of such.
template <class Json>
bool is_blank(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_string()) return value.template get_ref<const std::string&>().empty();
  return value.is_structured() && std::all_of(value.begin(), value.end(), is_blank<Json>);
}

// The value of a key that is there and says something; otherwise null.
template <class Json>
const Json* given(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || is_blank(*found) ? nullptr : &*found;
}

[[noreturn]] void refuse_media(const std::string& what, const std::string& place) {
  fail_record(
      SkipReason::Unsupported,
      "[{}: {}, and octet trains on text alone; remove such records, or skip them with on_error: skip", place,
      what);
}

template <class Json>
void refuse_media_in(const Json& object, const char* what, const std::string& place) {
  for (const auto& [name, value] : object.items()) {
    if (is_media_name(name) && !is_blank(value))
      refuse_media(fmt::format("{} {} holds pictures or sound", what, name), place);
  }
}

struct KnownRole {
  const char* name;
  ChatRole role;
};
constexpr KnownRole kKnownRoles[] = {
    {"user", ChatRole::User},           {"human", ChatRole::User},
    {"assistant", ChatRole::Assistant}, {"gpt", ChatRole::Assistant},
    {"chatgpt", ChatRole::Assistant},   {"model", ChatRole::Assistant},
    {"bot", ChatRole::Assistant},       {"function_call", ChatRole::Assistant},
    {"system", ChatRole::System},       {"developer", ChatRole::System},
    {"tool", ChatRole::Tool},           {"function", ChatRole::Tool},
    {"observation", ChatRole::Tool},    {"ipython", ChatRole::Tool},
    {"tool_response", ChatRole::Tool},
};
constexpr std::string_view kCallRole = "function_call";  // LLaMA-Factory: the text is the call itself

ChatRole role_of(const std::string& name, const std::string& place) {
  for (const KnownRole& known : kKnownRoles) {
    if (name == known.name) return known.role;
  }
  fail_record(SkipReason::BadValue,
              "[{}: role {}, expected system, user, assistant or tool (or human, gpt, function_call, "
              "observation)",
              place, printable(name));
}

// A text, or a list of parts as chat services write them: [{"type": "text", "text": "..."}].
template <class Json>
void read_content(Message& message, const Json& content, const std::string& place) {
  if (content.is_string()) {
    message.content = content.template get<std::string>();
    return;
  }
  if (!content.is_array()) {
    fail_record(SkipReason::BadValue, "[{}: a message's content is {}, expected text", place,
                content.type_name());
  }
  for (const Json& part : content) {
    const bool has_type = part.is_object() && part.contains("type") && !part["type"].is_null();
    if (has_type && !part["type"].is_string()) {
      fail_record(SkipReason::BadValue, "[{}: a message's content has a part whose type is {}, expected text",
                  place, part["type"].type_name());
    }
    const std::string type = part.is_object() ? text_in(part, "type").value_or("text") : "";
    const bool is_reasoning = type == "thinking" || type == "reasoning";
    const char* const key = is_reasoning && part.contains(type) ? type.c_str() : "text";
    if (!type.empty() && !is_reasoning && type != "text" && type != "input_text" && type != "output_text") {
      if (type.find("image") != type.npos || type.find("audio") != type.npos ||
          type.find("video") != type.npos) {
        refuse_media(fmt::format("a message's content has a part of type {}", printable(type)), place);
      }
      fail_record(SkipReason::Unsupported,
                  "[{}: a message's content has a part of type {}, which octet does not know; expected text",
                  place, printable(type));
    }
    if (!part.is_object() || !part.contains(key) || !part[key].is_string()) {
      fail_record(SkipReason::BadValue, "[{}: a message's content has a part that is not text", place);
    }
    (is_reasoning ? message.reasoning : message.content) += part[key].template get_ref<const std::string&>();
  }
}

// OpenAI's `weight` (0 or 1) and Axolotl's `train` or `training`.
template <class Json>
std::optional<bool> target_flag(const Json& item, const std::string& place) {
  std::optional<bool> flag;
  for (const char* key : {"weight", "train", "training"}) {
    const auto found = item.find(key);
    if (found == item.end() || found->is_null()) continue;
    const bool is_flag = found->is_boolean() || (found->is_number() && (*found == 0 || *found == 1));
    if (!is_flag) {
      fail_record(
          SkipReason::BadValue,
          "[{}: {} of a message is {}, expected 0 or 1: octet counts a message in the loss or does not",
          place, key, printable(found->dump(-1, ' ', true)));
    }
    flag = found->is_boolean() ? found->template get<bool>() : *found == 1;
  }
  return flag;
}

// Data for models that see pictures marks their places so. In the middle of a text it may be HTML.
bool has_media_placeholder(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  while (!text.empty() && (text.front() == ' ' || text.front() == '\n')) text.remove_prefix(1);
  constexpr std::string_view kPlaceholders[] = {"<image>", "<video>", "<audio>"};
  return std::ranges::any_of(kPlaceholders, [&](std::string_view placeholder) {
    const bool is_element = text.find(fmt::format("</{}", placeholder.substr(1))) != text.npos;
    return !is_element && (text.starts_with(placeholder) || text.ends_with(placeholder));
  });
}

template <class Json>
Message message_of(const Json& item, const std::string& place) {
  if (!item.is_object()) {
    fail_record(SkipReason::BadValue, "[{}: a message is {}, expected an object", place, item.type_name());
  }
  const bool is_sharegpt = item.contains("from") && !item["from"].is_null();
  const auto role = item.find(is_sharegpt ? "from" : "role");
  const auto content = item.find(is_sharegpt ? "value" : "content");
  const Json* calls = given(item, "tool_calls");
  if (!calls) calls = given(item, kCallRole.data());
  if (role == item.end() || (content == item.end() && !calls)) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : item.items()) keys.push_back(key);
    fail_record(SkipReason::BadValue,
                "[{}: a message has the keys {}, expected role and content (or from and value)", place,
                list_columns(keys));
  }
  if (!role->is_string()) {
    fail_record(SkipReason::BadValue, "[{}: the {} of a message is {}, expected a string", place,
                is_sharegpt ? "from" : "role", role->type_name());
  }
  refuse_media_in(item, "a message's", place);
  const auto& role_name = role->template get_ref<const std::string&>();
  Message message{role_of(role_name, place), ""};
  message.is_target = target_flag(item, place);
  if (content != item.end() && !(calls && content->is_null())) read_content(message, *content, place);
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    if (const Json* reasoning = given(item, key); reasoning && message.reasoning.empty())
      message.reasoning = string_of(*reasoning, key, place);
  }
  if (calls) message.tool_calls = tool_calls_from(ordered_json(*calls), place);
  if (role_name == kCallRole) {
    message.tool_calls = tool_calls_from(ordered_json(std::exchange(message.content, "")), place);
  }
  if (message.role != ChatRole::Assistant && (!message.tool_calls.empty() || !message.reasoning.empty())) {
    fail_record(SkipReason::BadValue, "[{}: a message of role {} has {}; expected it in the assistant's",
                place, name_of(message.role), message.tool_calls.empty() ? "reasoning" : "tool calls");
  }
  return message;
}

template <class Json>
void append_messages(Conversation& conversation, const Json& value, const std::string& name,
                     const std::string& place) {
  // CSV, and some Parquet files, carry the list as JSON text.
  if (value.is_string()) {
    ordered_json parsed;
    try {
      parsed = parse_ordered(value.template get_ref<const std::string&>(), name);
    } catch (const Error& error) {
      fail_record(SkipReason::BadValue, "[{}: column {} is text but not a JSON list: {}", place,
                  printable(name), error.what());
    }
    if (!parsed.is_string()) return append_messages(conversation, parsed, name, place);
  }
  if (!value.is_array()) {
    fail_record(SkipReason::BadValue, "[{}: column {} is {}, expected a list of messages", place,
                printable(name), value.type_name());
  }
  for (const Json& item : value) conversation.messages.push_back(message_of(item, place));
}

// LLaMA-Factory's format: [[user, assistant], ...], the turns before this one.
template <class Json>
void append_history(Conversation& conversation, const Json& history, const std::string& place) {
  if (history.is_null()) return;
  const auto is_turn = [](const Json& turn) {
    return turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
  };
  if (!history.is_array() || !std::all_of(history.begin(), history.end(), is_turn)) {
    fail_record(SkipReason::BadValue, "[{}: column history, expected a list of pairs of texts", place);
  }
  for (const Json& turn : history) {
    conversation.messages.push_back({ChatRole::User, turn[0].template get<std::string>()});
    conversation.messages.push_back({ChatRole::Assistant, turn[1].template get<std::string>()});
  }
}

template <class Json>
Conversation read_conversation(const Json& record, const FormatColumns& columns, const std::string& place) {
  refuse_media_in(record, "column", place);
  Conversation conversation;
  if (!columns.messages.empty()) {
    append_messages(conversation, field(record, columns.messages, true, place), columns.messages, place);
  } else {
    const Json& prompt = field(record, columns.prompt, true, place);
    const Json& completion = field(record, columns.completion, true, place);
    if (!columns.history.empty())
      append_history(conversation, field(record, columns.history, false, place), place);
    if (prompt.is_array()) {
      append_messages(conversation, prompt, columns.prompt, place);
    } else {
      Message message{ChatRole::User, string_of(prompt, columns.prompt, place)};
      message.input = optional_string(record, columns.input, place);
      conversation.messages.push_back(std::move(message));
    }
    if (completion.is_array()) {
      append_messages(conversation, completion, columns.completion, place);
    } else {
      conversation.messages.push_back(
          {ChatRole::Assistant, string_of(completion, columns.completion, place)});
    }
  }
  if (conversation.messages.empty())
    fail_record(SkipReason::BadValue, "[{}: a conversation without messages", place);
  for (const Message& message : conversation.messages) {
    if (message.role == ChatRole::User && has_media_placeholder(message.content))
      refuse_media("a message has a place for a picture or sound (such as <image>)", place);
  }
  std::string system;
  for (const char* name : kSystemColumns) {
    if (system.empty()) system = optional_string(record, name, place);
  }
  if (!system.empty() && !conversation.has_system())
    conversation.messages.insert(conversation.messages.begin(), {ChatRole::System, system});
  if (const Json* tools = given(record, kToolsColumn))
    conversation.tools = tools_from(ordered_json(*tools), place);
  return conversation;
}

// Whether the order of keys matters: the record has tools or calls them.
bool has_tools(const json& record, const FormatColumns& columns) {
  if (given(record, kToolsColumn)) return true;
  const auto messages = record.find(columns.messages);
  return messages != record.end() && messages->is_array() &&
         std::any_of(messages->begin(), messages->end(), [](const json& item) {
           return item.is_object() && (item.contains("tool_calls") || item.contains(kCallRole.data()));
         });
}

}  // namespace

const char* name_of(ChatRole role) {
  constexpr std::array<const char*, kRoles> kRoleNames = {"system", "user", "assistant", "tool"};
  return kRoleNames[static_cast<size_t>(role)];
}

std::string text_of(const json& record, const FormatColumns& columns, const std::string& place) {
  if (columns.refuses_media) refuse_media_in(record, "column", place);
  return string_of(field(record, columns.text, true, place), columns.text, place);
}

Conversation conversation_of(const json& record, const FormatColumns& columns, const std::string& place,
                             std::string_view json_text) {
  if (!json_text.empty() && has_tools(record, columns))
    return read_conversation(ordered_json::parse(json_text), columns, place);
  return read_conversation(record, columns, place);
}

}  // namespace octet
