#include "data/chat/conversation.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/text.h"
#include "data/records/record_reader.h"

namespace octet {
namespace {

using nlohmann::json;

constexpr std::array<const char*, 7> kFormatNames = {
    "text", "prompt_completion", "question_answer", "problem_solution", "alpaca", "sharegpt", "messages"};

FormatColumns default_columns(ExampleFormat format) {
  switch (format) {
    case ExampleFormat::Auto:
      break;
    case ExampleFormat::Text:
      return {.format = format, .text = "text"};
    case ExampleFormat::PromptCompletion:
      return {.format = format, .prompt = "prompt", .completion = "completion", .system = "system"};
    case ExampleFormat::QuestionAnswer:
      return {.format = format, .prompt = "question", .completion = "answer", .system = "system"};
    case ExampleFormat::ProblemSolution:
      return {.format = format, .prompt = "problem", .completion = "generated_solution", .system = "system"};
    case ExampleFormat::Alpaca:
      return {.format = format,
              .prompt = "instruction",
              .completion = "output",
              .input = "input",
              .system = "system",
              .history = "history"};
    case ExampleFormat::ShareGpt:
      return {.format = format, .messages = "conversations", .system = "system"};
    case ExampleFormat::Messages:
      return {.format = format, .messages = "messages", .system = "system"};
  }
  return {};
}

// The most specific format first: Alpaca's own files also have a column `text`.
constexpr std::array kTried = {ExampleFormat::Messages,
                               ExampleFormat::ShareGpt,
                               ExampleFormat::PromptCompletion,
                               ExampleFormat::QuestionAnswer,
                               ExampleFormat::ProblemSolution,
                               ExampleFormat::Alpaca,
                               ExampleFormat::Text};

std::vector<std::string> required_columns(const FormatColumns& columns) {
  std::vector<std::string> names;
  for (const std::string* name : {&columns.text, &columns.prompt, &columns.completion, &columns.messages}) {
    if (!name->empty()) names.push_back(*name);
  }
  return names;
}

ExampleFormat named_format(const ExampleOptions& options) {
  if (options.format != ExampleFormat::Auto) return options.format;
  if (!options.text_column.empty()) return ExampleFormat::Text;
  if (!options.messages_column.empty()) return ExampleFormat::Messages;
  if (!options.prompt_column.empty() && !options.completion_column.empty())
    return ExampleFormat::PromptCompletion;
  return ExampleFormat::Auto;
}

// The column's value; null when it is absent and optional.
const json& field(const json& record, const std::string& name, bool is_needed, const std::string& place) {
  static const json kNull;
  const auto found = record.find(name);
  if (found != record.end()) return *found;
  if (is_needed) {
    fail_record(SkipReason::MissingColumn, "[{}: no column {}; the columns are: {}", place, printable(name),
                list_columns(columns_of(record)));
  }
  return kNull;
}

std::string string_of(const json& value, const std::string& name, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  fail_record(SkipReason::BadValue, "[{}: column {} is {}, expected text", place, printable(name),
              value.type_name());
}

std::string optional_string(const json& record, const std::string& name, const std::string& place) {
  if (name.empty()) return {};
  const json& value = field(record, name, false, place);
  return value.is_null() ? std::string() : string_of(value, name, place);
}

ChatRole role_of(const std::string& name, const std::string& place) {
  if (name == "user" || name == "human") return ChatRole::User;
  if (name == "assistant" || name == "gpt" || name == "chatgpt" || name == "model")
    return ChatRole::Assistant;
  if (name == "system" || name == "developer") return ChatRole::System;
  fail_record(
      SkipReason::BadValue,
      "[{}: role {}, expected system, user or assistant (or human, gpt); tool calls are not supported", place,
      printable(name));
}

// A text, or a list of parts as chat services write them: [{"type": "text", "text": "..."}].
std::string content_of(const json& content, const std::string& place) {
  if (content.is_string()) return content.get<std::string>();
  if (content.is_array()) {
    std::string text;
    for (const json& part : content) {
      const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string();
      if (!is_text) {
        fail_record(SkipReason::BadValue, "[{}: a message's content has a part that is not text", place);
      }
      text += part["text"].get_ref<const std::string&>();
    }
    return text;
  }
  fail_record(SkipReason::BadValue, "[{}: a message's content is {}, expected text", place,
              content.type_name());
}

Message message_of(const json& item, const std::string& place) {
  if (!item.is_object()) {
    fail_record(SkipReason::BadValue, "[{}: a message is {}, expected an object", place, item.type_name());
  }
  const bool is_sharegpt = item.contains("from") && !item["from"].is_null();
  const char* role_key = is_sharegpt ? "from" : "role";
  const char* content_key = is_sharegpt ? "value" : "content";
  const auto role = item.find(role_key), content = item.find(content_key);
  if (role == item.end() || !role->is_string() || content == item.end()) {
    fail_record(SkipReason::BadValue,
                "[{}: a message has the keys {}, expected role and content (or from and value)", place,
                list_columns(columns_of(item)));
  }
  if (const auto calls = item.find("tool_calls");
      calls != item.end() && !calls->is_null() && !calls->empty()) {
    fail_record(SkipReason::BadValue, "[{}: a message has tool_calls, which octet does not support", place);
  }
  return {role_of(role->get_ref<const std::string&>(), place), content_of(*content, place)};
}

void append_messages(Conversation& conversation, const json& value, const std::string& name,
                     const std::string& place) {
  // CSV, and some Parquet files, carry the list as JSON text.
  if (value.is_string()) {
    json parsed;
    try {
      parsed = parse_json(value.get_ref<const std::string&>(), name);
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
  for (const json& item : value) conversation.push_back(message_of(item, place));
}

// LLaMA-Factory's format: [[user, assistant], ...], the turns before this one.
void append_history(Conversation& conversation, const json& history, const std::string& place) {
  if (history.is_null()) return;
  const auto is_turn = [](const json& turn) {
    return turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
  };
  if (!history.is_array() || !std::all_of(history.begin(), history.end(), is_turn)) {
    fail_record(SkipReason::BadValue, "[{}: column history, expected a list of pairs of texts", place);
  }
  for (const json& turn : history) {
    conversation.push_back({ChatRole::User, turn[0].get<std::string>()});
    conversation.push_back({ChatRole::Assistant, turn[1].get<std::string>()});
  }
}

}  // namespace

const char* name_of(ChatRole role) {
  constexpr std::array<const char*, kRoles> kNames = {"system", "user", "assistant"};
  return kNames[static_cast<size_t>(role)];
}

const char* name_of(ExampleFormat format) {
  return format == ExampleFormat::Auto ? "auto" : kFormatNames[static_cast<size_t>(format) - 1];
}

std::vector<std::string> example_format_names() {
  std::vector<std::string> names = {name_of(ExampleFormat::Auto)};
  names.insert(names.end(), kFormatNames.begin(), kFormatNames.end());
  return names;
}

ExampleFormat parse_example_format(const std::string& name) {
  if (name == "auto") return ExampleFormat::Auto;
  std::string list = "auto";
  for (size_t i = 0; i < kFormatNames.size(); ++i) {
    if (name == kFormatNames[i]) return static_cast<ExampleFormat>(i + 1);
    list += fmt::format(", {}", kFormatNames[i]);
  }
  fail_config("[dataset] format '{}', expected one of {}", printable(name), list);
}

std::vector<std::string> FormatColumns::all() const {
  std::vector<std::string> names;
  for (const std::string* name : {&text, &prompt, &completion, &messages, &input, &system, &history}) {
    if (!name->empty()) names.push_back(*name);
  }
  return names;
}

void check_columns(const FormatColumns& wanted, const std::vector<std::string>& columns,
                   const std::string& place) {
  const auto names = required_columns(wanted);
  const bool fits = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(columns.begin(), columns.end(), name) != columns.end();
  });
  require(fits, "[{}: format {} needs the columns {}; the columns are: {}", place, name_of(wanted.format),
          list_columns(names), list_columns(columns));
}

FormatColumns choose_format(const ExampleOptions& options, const std::vector<std::string>& columns,
                            const std::string& place) {
  const auto fits = [&](const FormatColumns& wanted) {
    const auto names = required_columns(wanted);
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::find(columns.begin(), columns.end(), name) != columns.end();
    });
  };
  const auto named = [&](ExampleFormat format) {
    FormatColumns result = default_columns(format);
    const auto replace = [](std::string& name, const std::string& by) {
      if (!name.empty() && !by.empty()) name = by;
    };
    replace(result.text, options.text_column);
    replace(result.prompt, options.prompt_column);
    replace(result.completion, options.completion_column);
    replace(result.messages, options.messages_column);
    return result;
  };
  const ExampleFormat given = named_format(options);
  if (given != ExampleFormat::Auto) {
    const FormatColumns result = named(given);
    check_columns(result, columns, place);
    return result;
  }
  std::string accepted;
  for (const ExampleFormat format : kTried) {
    const FormatColumns result = named(format);
    if (fits(result)) return result;
    accepted += fmt::format("{}{}", accepted.empty() ? "" : "; ", list_columns(required_columns(result)));
  }
  fail(
      "[{}: the columns match no format: {}. Expected one of: {}. If the text is in another column, set "
      "text_column",
      place, list_columns(columns), accepted);
}

std::string text_of(const json& record, const FormatColumns& columns, const std::string& place) {
  return string_of(field(record, columns.text, true, place), columns.text, place);
}

Conversation conversation_of(const json& record, const FormatColumns& columns, const std::string& place) {
  Conversation conversation;
  const std::string system = optional_string(record, columns.system, place);
  if (!columns.messages.empty()) {
    append_messages(conversation, field(record, columns.messages, true, place), columns.messages, place);
  } else {
    const json& prompt = field(record, columns.prompt, true, place);
    const json& completion = field(record, columns.completion, true, place);
    if (!columns.history.empty())
      append_history(conversation, field(record, columns.history, false, place), place);
    if (prompt.is_array()) {
      append_messages(conversation, prompt, columns.prompt, place);
    } else {
      conversation.push_back({ChatRole::User, string_of(prompt, columns.prompt, place),
                              optional_string(record, columns.input, place)});
    }
    if (completion.is_array()) {
      append_messages(conversation, completion, columns.completion, place);
    } else {
      conversation.push_back({ChatRole::Assistant, string_of(completion, columns.completion, place)});
    }
  }
  if (conversation.empty()) fail_record(SkipReason::BadValue, "[{}: a conversation without messages", place);
  if (!system.empty() && conversation[0].role != ChatRole::System) {
    conversation.insert(conversation.begin(), {ChatRole::System, system});
  }
  return conversation;
}

}  // namespace octet
