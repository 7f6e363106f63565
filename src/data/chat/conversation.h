#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/records/example_reader.h"

namespace octet {

enum class ChatRole { System, User, Assistant };
constexpr size_t kRoles = 3;
const char* name_of(ChatRole role);  // "system", "user", "assistant"

struct Message {
  ChatRole role = ChatRole::User;
  std::string content;
  std::string input = {};  // Alpaca's second column; its template shows it separately

  // The content, then the input on its own line. All templates except Alpaca's use this.
  std::string text() const { return input.empty() ? content : content + "\n" + input; }
};
using Conversation = std::vector<Message>;

// The columns that a format reads: what the options name, else the format's own names.
struct FormatColumns {
  ExampleFormat format = ExampleFormat::Auto;
  std::string text, prompt, completion, messages, input, system, history;  // unused ones are empty
  std::vector<std::string> all() const;
};

// Decides the format from the names of the columns when the options do not. Throws Error when no format matches; it
// lists the columns and what is accepted, and `place` ("file] line 1") names the file or record in it.
FormatColumns choose_format(const ExampleOptions& options, const std::vector<std::string>& columns,
                            const std::string& place);

// Throws Error when `columns` lack one that the format needs.
void check_columns(const FormatColumns& wanted, const std::vector<std::string>& columns,
                   const std::string& place);

// The record's text, or its conversation. Throws RecordError naming `place`, the column and all columns of the
// record.
std::string text_of(const nlohmann::json& record, const FormatColumns& columns, const std::string& place);
Conversation conversation_of(const nlohmann::json& record, const FormatColumns& columns,
                             const std::string& place);

}  // namespace octet
