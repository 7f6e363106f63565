#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace octet {

// A function that the assistant calls.
struct ToolCall {
  std::string name;
  nlohmann::ordered_json arguments;  // an object
};

// The text that the models' own templates make of a value (`tojson`): Python's json.dumps, with characters beyond ASCII
// as they are. `indent` 0: on one line.
std::string template_json(const nlohmann::ordered_json& value, int indent = 0);

// From what data files carry. `place` ("file.jsonl] line 3") names the record in errors, which are RecordErrors.
//   tools:  a list, or its JSON text; functions without {"type": "function"} around them get it
//   calls:  {"name", "arguments"} or {"function": {...}}, one or a list, or its JSON text; arguments may be JSON text
std::vector<nlohmann::ordered_json> tools_from(const nlohmann::ordered_json& value, const std::string& place);
std::vector<ToolCall> tool_calls_from(const nlohmann::ordered_json& value, const std::string& place);

// The value of a JSON text with the order of its keys, checked like every other JSON (base/json.h).
nlohmann::ordered_json parse_ordered(const std::string& text, const std::string& what);

}  // namespace octet
