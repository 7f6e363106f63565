#include "data/chat/tool_calls.h"

#include "base/json.h"
#include "base/text.h"
#include "data/records/record_reader.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

void append_json(std::string& out, const ordered_json& value, int indent, int level) {
  if (!value.is_structured()) {
    out += value.dump();
    return;
  }
  const char* const brackets = value.is_object() ? "{}" : "[]";
  out += brackets[0];
  const auto new_line = [&](int depth) {
    if (indent > 0) out += '\n' + std::string(static_cast<size_t>(indent * depth), ' ');
  };
  bool is_first = true;
  for (const auto& [key, item] : value.items()) {
    if (!is_first) out += indent > 0 ? "," : ", ";
    is_first = false;
    new_line(level + 1);
    if (value.is_object()) out += ordered_json(key).dump() + ": ";
    append_json(out, item, indent, level + 1);
  }
  if (!is_first) new_line(level);
  out += brackets[1];
}

// The list itself, one item as a list, or what their JSON text says.
ordered_json list_of(const ordered_json& value, const char* what, const std::string& place) {
  if (value.is_null()) return ordered_json::array();
  if (value.is_array()) return value;
  if (value.is_object()) return ordered_json::array({value});
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == text.npos) return ordered_json::array();
    try {
      const ordered_json parsed = parse_ordered(text, what);
      if (!parsed.is_string()) return list_of(parsed, what, place);
    } catch (const Error& error) {
      fail_record(SkipReason::BadValue, "[{}: {} is text but not JSON: {}", place, what, error.what());
    }
  }
  fail_record(SkipReason::BadValue, "[{}: {} is {}, expected a list of objects or its JSON text", place, what,
              value.type_name());
}

}  // namespace

std::string template_json(const ordered_json& value, int indent) {
  std::string text;
  append_json(text, value, indent, 0);
  return text;
}

ordered_json parse_ordered(const std::string& text, const std::string& what) {
  parse_json(text, what);  // limits the depth and names the place of a mistake
  return ordered_json::parse(text);
}

std::vector<ordered_json> tools_from(const ordered_json& value, const std::string& place) {
  std::vector<ordered_json> tools;
  for (const ordered_json& item : list_of(value, "tools", place)) {
    const bool is_wrapped = item.is_object() && item.contains("function") && item["function"].is_object();
    const ordered_json& function = is_wrapped ? item["function"] : item;
    const bool is_function =
        function.is_object() && function.contains("name") && function["name"].is_string();
    if (!is_function) {
      fail_record(SkipReason::BadValue,
                  "[{}: tools has an entry without a name, expected {{name, description, parameters}}",
                  place);
    }
    tools.push_back(is_wrapped ? item : ordered_json{{"type", "function"}, {"function", item}});
  }
  return tools;
}

std::vector<ToolCall> tool_calls_from(const ordered_json& value, const std::string& place) {
  std::vector<ToolCall> calls;
  for (const ordered_json& item : list_of(value, "a tool call", place)) {
    const bool is_wrapped = item.is_object() && item.contains("function") && item["function"].is_object();
    const ordered_json& call = is_wrapped ? item["function"] : item;
    if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) {
      fail_record(SkipReason::BadValue, "[{}: a tool call without a name, expected {{name, arguments}}",
                  place);
    }
    const char* const key = call.contains("arguments") ? "arguments" : "parameters";
    ordered_json arguments = call.contains(key) ? call[key] : ordered_json::object();
    if (arguments.is_string()) {
      const auto text = arguments.get<std::string>();
      try {
        arguments = text.empty() ? ordered_json::object() : parse_ordered(text, key);
      } catch (const Error& error) {
        fail_record(SkipReason::BadValue, "[{}: the arguments of tool call {} are text but not JSON: {}",
                    place, printable(call["name"].get<std::string>()), error.what());
      }
    }
    if (arguments.is_null()) arguments = ordered_json::object();
    if (!arguments.is_object()) {
      fail_record(SkipReason::BadValue, "[{}: the arguments of tool call {} are {}, expected an object",
                  place, printable(call["name"].get<std::string>()), arguments.type_name());
    }
    calls.push_back({call["name"].get<std::string>(), std::move(arguments)});
  }
  return calls;
}

}  // namespace octet
