#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/format_columns.h"
#include "data/chat/tool_calls.h"
#include "data/records/example_reader.h"

namespace octet {

enum class ChatRole { System, User, Assistant, Tool };
constexpr size_t kRoles = 4;
const char* name_of(ChatRole role);  // "system", "user", "assistant", "tool"

struct Message {
  ChatRole role = ChatRole::User;
  std::string content;
  std::string input = {};                 // Alpaca's second column; its template shows it separately
  std::string reasoning = {};             // of the assistant, before the content
  std::vector<ToolCall> tool_calls = {};  // of the assistant, after the content
  std::optional<bool> is_target = {};     // the record says so itself; otherwise the role decides

  // The content, then the input on its own line. All templates except Alpaca's use this.
  std::string text() const { return input.empty() ? content : content + "\n" + input; }
};

struct Conversation {
  std::vector<Message> messages;
  std::vector<nlohmann::ordered_json> tools = {};  // that the assistant may call

  bool has_system() const { return !messages.empty() && messages[0].role == ChatRole::System; }
};

// The record's text, or its conversation, which has at least one message. Throws RecordError naming `place`, the column
// and all columns of the record. `json_text` is what the record was read from, if that was JSON: tools are shown with
// their keys in the order of the file.
std::string text_of(const nlohmann::json& record, const FormatColumns& columns, const std::string& place);
Conversation conversation_of(const nlohmann::json& record, const FormatColumns& columns,
                             const std::string& place, std::string_view json_text = {});

}  // namespace octet
