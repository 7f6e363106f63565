#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/keys.h"
#include "base/keys_text.h"
#include "base/text.h"

namespace octet {
namespace {

constexpr size_t kHelpWidth = 100;

// Limits are often counts: 1048576 rather than 1.04858e+06.
std::string limit_text(double value) {
  const bool is_count = value == std::floor(value) && std::abs(value) < 1e7;
  return is_count ? fmt::format("{}", static_cast<int64_t>(value)) : fmt::format("{}", value);
}

std::string range_text(const Key& key) {
  const bool has_min = std::isfinite(key.min), has_max = std::isfinite(key.max);
  if (has_min && has_max && !key.min_open && !key.max_open) {
    return fmt::format(" from {} to {}", limit_text(key.min), limit_text(key.max));
  }
  std::string text;
  if (has_min) text += fmt::format(" {} {}", key.min_open ? "above" : "of at least", limit_text(key.min));
  if (has_max) {
    text += fmt::format("{} {} {}", has_min ? " and" : "", key.max_open ? "below" : "at most",
                        limit_text(key.max));
  }
  return text;
}

// For help and docs: "1 or more", "0 to 16". Limits that only guard against typing errors are not shown.
std::string limits_text(const Key& key) {
  constexpr double kGuard = 1e6;
  const bool has_min = std::abs(key.min) < kGuard, has_max = std::abs(key.max) < kGuard;
  if (!has_min && !has_max) return "any";
  const std::string low = has_min ? limit_text(key.min) : "", high = has_max ? limit_text(key.max) : "";
  if (!has_max) return key.min_open ? "above " + low : low + " or more";
  if (!has_min) return (key.max_open ? "below " : "at most ") + high;
  return fmt::format("{}{} {} {}", key.min_open ? "above " : "", low, key.max_open ? "to below" : "to", high);
}

std::string alias_text(const Key& key, std::string_view before, std::string_view after) {
  std::vector<std::string> names;
  for (const KeyAlias& alias : key.aliases) {
    std::string text = fmt::format("{}{}{}", before, alias.name, after);
    for (const auto& [given, meaning] : alias.values) {
      text += fmt::format("{}{} = {}", given ? " (" : ", ", given, meaning);
    }
    if (!alias.values.empty()) text += ")";
    names.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// "; `ddp`, `no_shard` for `none`"
std::string value_alias_text(const Key& key, const std::string& choice) {
  std::vector<std::string> spellings;
  for (const auto& [spelling, meaning] : key.value_aliases) {
    if (meaning == choice) spellings.push_back('`' + spelling + '`');
  }
  return spellings.empty() ? "" : fmt::format("; {} for `{}`", fmt::join(spellings, ", "), choice);
}

std::string placeholder(const Key& key) {
  if (!key.value_name.empty()) return " " + key.value_name;
  if (key.repeats) return " TEXT";
  constexpr std::string_view kByType[] = {"", " N", " X", " TEXT", " NAME", " A,B,...", " A,B,..."};
  return std::string(kByType[static_cast<size_t>(key.type)]);
}

std::string_view type_name(const Key& key) {
  constexpr std::string_view kNames[] = {"bool", "integer", "number", "text", "choice", "list", "list"};
  return kNames[static_cast<size_t>(key.type)];
}

// Whether YAML, and people, read the bare word as this text.
bool is_plain(std::string_view text) {
  const auto is_safe = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '/' || c == '.' || c == '-' || c == '+';
  };
  if (text.empty() || !std::ranges::all_of(text, is_safe)) return false;
  if (text[0] == '-' || text[0] == '.' || text[0] == '+') return false;
  return !parse_bool(text) && !parse_double(text) && text != "null" && text != "Null" && text != "NULL";
}

std::string yaml_quoted(std::string_view text) {
  if (is_plain(text)) return std::string(text);
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace

std::string allowed_text(const Key& key) {
  switch (key.type) {
    case KeyType::Bool:
      return "true or false";
    case KeyType::Int:
      return "an integer" + range_text(key);
    case KeyType::Double:
      return "a number" + range_text(key);
    case KeyType::String:
      return "UTF-8 text";
    case KeyType::Choice: {
      std::string text = fmt::format("one of {}", fmt::join(key.choices, ", "));
      for (const auto& [given, meaning] : key.bool_choices) {
        text += fmt::format("{}{} = {}", given ? " (" : ", ", given, meaning);
      }
      return key.bool_choices.empty() ? text : text + ")";
    }
    case KeyType::StringList:
      return key.repeats ? "UTF-8 text" : "a list of names, none empty";
    case KeyType::ItemList:
      return fmt::format("one {0}, or a list of {0}s", key.item_keys.front().name);
  }
  return "";
}

namespace {

// "a.jsonl", "a.jsonl (weight 3, split train)"
std::string item_text(const KeyItem& item) {
  std::vector<std::string> fields;
  for (const auto& [name, scalar] : item) {
    const std::string text = value_text(value_of(scalar));
    fields.push_back(&name == &item.front().first ? text : fmt::format("{} {}", name, text));
  }
  if (fields.size() < 2) return fields.empty() ? "" : fields.front();
  return fmt::format("{} ({})", fields.front(), fmt::join(fields.begin() + 1, fields.end(), ", "));
}

// One line if all items have only their first key, otherwise a block of maps.
std::string items_yaml(const std::vector<KeyItem>& items) {
  const auto first = [](const KeyItem& item) { return value_yaml(value_of(item.front().second)); };
  if (items.empty()) return "\"\"";
  if (std::ranges::all_of(items, [](const KeyItem& item) { return item.size() == 1; })) {
    // A single path with a comma would be read as several.
    const std::string only = first(items.front());
    if (items.size() == 1 && only.find(',') == std::string::npos) return only;
    std::vector<std::string> words;
    for (const KeyItem& item : items) words.push_back(first(item));
    return fmt::format("[{}]", fmt::join(words, ", "));
  }
  std::string text;
  for (const KeyItem& item : items) {
    for (const auto& [name, scalar] : item) {
      text += fmt::format("\n  {} {}: {}", &name == &item.front().first ? "-" : " ", name,
                          value_yaml(value_of(scalar)));
    }
  }
  return text;
}

}  // namespace

std::string value_text(const KeyValue& value) {
  if (const auto* items = std::get_if<std::vector<KeyItem>>(&value)) {
    std::vector<std::string> texts;
    for (const KeyItem& item : *items) texts.push_back(item_text(item));
    return fmt::format("{}", fmt::join(texts, ", "));
  }
  if (const auto* list = std::get_if<std::vector<std::string>>(&value))
    return fmt::format("{}", fmt::join(*list, ","));
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return value_yaml(value);
}

std::string value_yaml(const KeyValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  if (const auto* text = std::get_if<std::string>(&value)) return yaml_quoted(*text);
  if (const auto* list = std::get_if<std::vector<KeyItem>>(&value)) return items_yaml(*list);
  std::vector<std::string> items;
  for (const std::string& item : std::get<std::vector<std::string>>(value))
    items.push_back(yaml_quoted(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string default_text(const Key& key) {
  if (!key.default_note.empty()) return key.default_note;
  const std::string text = value_text(key.default_value);
  return text.empty() ? "none" : text;
}

std::string help_entry(std::string head, std::string_view text, std::string_view limits, size_t indent) {
  const size_t width = kHelpWidth - indent;
  std::string result;
  head.insert(0, "  ");
  if (head.size() + 2 > indent) {
    result += head + '\n';
    head.clear();
  }
  std::vector<std::string> lines = wrap_words(fmt::format("{} {}", text, limits), width);
  if (lines.size() > 1 && !limits.empty()) {
    lines = wrap_words(text, width);
    std::ranges::copy(wrap_words(limits, width), std::back_inserter(lines));
  }
  for (const std::string& line : lines) {
    result += fmt::format("{:<{}}{}\n", head, indent, line);
    head.clear();
  }
  return result;
}

std::string help_paragraphs(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    for (const std::string& line : wrap_words(text.substr(0, end), kHelpWidth)) result += line + '\n';
    if (end == 0) result += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

std::string flag_text(const Key& key) {
  return fmt::format("{}--{}{}", key.short_name ? fmt::format("-{}, ", key.short_name) : "", key.name,
                     placeholder(key));
}

std::string limits_of(const Key& key) {
  std::vector<std::string> parts;
  // The allowed values of a bool or a text need no words, nor does the default of a flag.
  if (key.type == KeyType::Choice) parts.push_back(fmt::format("{}", fmt::join(key.choices, " | ")));
  for (const auto& [given, meaning] : key.bool_choices)
    parts.push_back(fmt::format("{} = {}", given, meaning));
  if (key.type == KeyType::Int || key.type == KeyType::Double) parts.push_back(limits_text(key));
  if (key.repeats) parts.emplace_back("may be repeated");
  if (key.required) {
    parts.emplace_back("required");
  } else if (!(key.repeats || key.default_value == KeyValue(false))) {
    parts.push_back("default: " + default_text(key));
  }
  if (!key.aliases.empty()) parts.push_back("also " + alias_text(key, "--", ""));
  return parts.empty() ? "" : fmt::format("[{}]", fmt::join(parts, "; "));
}

std::string keys_help(std::span<const Key> keys) {
  std::string text;
  std::string_view group;
  for (const Key& key : keys) {
    if (key.group != group) {
      group = key.group;
      text += fmt::format("\n{}\n", group);
    }
    text += help_entry(flag_text(key), key.help, limits_of(key));
  }
  return text;
}

std::string keys_markdown(std::span<const Key> keys) {
  std::string text;
  std::string_view group;
  for (const Key& key : keys) {
    if (key.group != group) {
      group = key.group;
      text += fmt::format("\n## {}\n\n| key | type | default | allowed | aliases | what it does |\n", group);
      text += "| --- | --- | --- | --- | --- | --- |\n";
    }
    std::string allowed;
    if (key.type == KeyType::Int || key.type == KeyType::Double) allowed = limits_text(key);
    for (const std::string& choice : key.choices)
      allowed += fmt::format("{}`{}`", allowed.empty() ? "" : ", ", choice);
    for (const auto& [given, meaning] : key.bool_choices)
      allowed += fmt::format("; `{}` is `{}`", given, meaning);
    for (const std::string& choice : key.choices) allowed += value_alias_text(key, choice);
    const std::string value = value_text(key.default_value);
    const std::string shown = !key.default_note.empty() ? key.default_note
                              : value.empty()           ? ""
                                                        : '`' + value + '`';
    text += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", key.name, type_name(key), shown, allowed,
                        alias_text(key, "`", "`"), key.help);
  }
  return text;
}

}  // namespace octet
