#include "base/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/key_lookup.h"
#include "base/key_search.h"
#include "base/text.h"

namespace octet {

Key& Key::at_least(double value) {
  return min = value, min_open = false, *this;
}
Key& Key::above(double value) {
  return min = value, min_open = true, *this;
}
Key& Key::at_most(double value) {
  return max = value, max_open = false, *this;
}
Key& Key::below(double value) {
  return max = value, max_open = true, *this;
}
Key& Key::alias(std::string_view alias_name) {
  return aliases.push_back({std::string(alias_name), {}}), *this;
}
Key& Key::bool_alias(std::string_view alias_name, std::string_view when_true, std::string_view when_false) {
  aliases.push_back({std::string(alias_name), {{true, std::string(when_true)}, {false, std::string(when_false)}}});
  return *this;
}
Key& Key::bool_or_value_alias(std::string_view alias_name, std::string_view when_true, std::string_view when_false) {
  bool_alias(alias_name, when_true, when_false);
  return aliases.back().takes_values = true, *this;
}
Key& Key::also(std::string_view choice, std::initializer_list<std::string_view> spellings) {
  for (const std::string_view spelling : spellings) value_aliases.emplace_back(spelling, choice);
  return *this;
}
Key& Key::refuse(std::initializer_list<std::string_view> spellings, std::string_view reason) {
  for (const std::string_view spelling : spellings) refused_values.emplace_back(spelling, reason);
  return *this;
}
Key& Key::value_if_alone(std::string_view value_alone) {
  return alone = value_alone, *this;
}
Key& Key::bools(std::string_view when_true, std::string_view when_false) {
  return bool_choices = {{true, std::string(when_true)}, {false, std::string(when_false)}}, *this;
}
Key& Key::note(std::string_view text) {
  return default_note = text, *this;
}
Key& Key::not_dumped() {
  return transient = true, *this;
}
Key& Key::value(std::string_view name_in_help) {
  return value_name = name_in_help, *this;
}
Key& Key::short_flag(char letter) {
  return short_name = letter, *this;
}
Key& Key::must_be_given() {
  return required = true, *this;
}
Key& Key::repeatable() {
  return repeats = true, *this;
}

std::string KeySetting::describe() const {
  return is_flag() ? "--" + name : fmt::format("{} in {}", name, place);
}

namespace {

constexpr std::string_view kBoolNames = "true or false";

std::optional<std::string> meaning_of_bool(std::string_view text,
                                           const std::vector<std::pair<bool, std::string>>& meanings) {
  const std::optional<bool> given = parse_bool(text);
  for (const auto& [value, meaning] : meanings) {
    if (given == value) return meaning;
  }
  return std::nullopt;
}

// As choices are compared: FULL-SHARD is full_shard.
std::string plain_choice(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    if (c == '-') return '_';
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

// The table's entry for a value: the choice that a spelling stands for, or the reason for refusing it.
const std::string* find_spelling(const std::vector<std::pair<std::string, std::string>>& spellings,
                                 const std::string& text) {
  const auto found =
      std::ranges::find(spellings, plain_choice(text), &std::pair<std::string, std::string>::first);
  return found == spellings.end() ? nullptr : &found->second;
}

std::optional<std::string> meaning_of_choice(const std::string& text, const Key& key) {
  for (const std::string& choice : key.choices) {
    if (plain_choice(choice) == plain_choice(text)) return choice;
  }
  const std::string* meaning = find_spelling(key.value_aliases, text);
  return meaning ? std::optional(*meaning) : std::nullopt;
}

bool in_range(const Key& key, double value) {
  if (key.min_open ? value <= key.min : value < key.min) return false;
  return key.max_open ? value < key.max : value <= key.max;
}

// octet computes in fp32. What a number becomes there, where that is no longer what was meant: 0, infinite, or a limit
// that the key excludes.
std::optional<std::string> lost_in_fp32(const Key& key, double value) {
  const auto rounded = static_cast<float>(value);
  if (std::isinf(rounded) && std::isfinite(value)) return "infinite";
  const bool is_zero = rounded == 0 && value != 0;
  const bool at_limit = (key.min_open && rounded <= key.min) || (key.max_open && rounded >= key.max);
  return is_zero || at_limit ? std::optional(fmt::format("{}", rounded)) : std::nullopt;
}

}  // namespace

std::optional<KeyValue> parse_scalar(const Key& key, const std::string& text) {
  switch (key.type) {
    case KeyType::Bool:
      if (const auto value = parse_bool(text)) return *value;
      return std::nullopt;
    case KeyType::Int:
      if (const auto value = parse_int(text); value && in_range(key, static_cast<double>(*value)))
        return *value;
      return std::nullopt;
    case KeyType::Double:
      if (const auto value = parse_double(text); value && in_range(key, *value) && !lost_in_fp32(key, *value))
        return *value;
      return std::nullopt;
    case KeyType::Choice:
      if (const auto value = meaning_of_choice(text, key)) return *value;
      if (const auto value = meaning_of_bool(text, key.bool_choices)) return *value;
      return std::nullopt;
    case KeyType::String:
      if (const auto given = parse_bool(text); given && !key.alone.empty()) return *given ? key.alone : "";
      if (is_clean_utf8(text)) return text;
      return std::nullopt;
    case KeyType::StringList:
    case KeyType::ItemList:
      break;
  }
  return std::nullopt;
}

namespace {

std::optional<KeyValue> parse_list(const Key& key, const KeySetting& setting) {
  if (key.repeats) {  // each item is a text, which may be empty
    if (!std::ranges::all_of(setting.values, is_clean_utf8)) return std::nullopt;
    return setting.values;
  }
  std::vector<std::string> items = setting.is_list ? setting.values : split_list(setting.values.front());
  for (const std::string& item : items) {
    if (item.empty() || !is_clean_utf8(item)) return std::nullopt;
  }
  return items;
}

// "a,b" are two paths, unless there is a file of that name.
std::vector<std::string> split_paths(const std::string& text) {
  std::error_code code;
  if (std::filesystem::exists(text, code)) return {text};
  const std::vector<std::string> words = split_list(text);
  std::vector<std::string> paths;
  for (size_t begin = 0, end = 0; begin < words.size(); begin = end) {
    std::string path, longer = words[begin];
    for (size_t i = begin; i < words.size(); longer += ++i < words.size() ? "," + words[i] : "") {
      if (i > begin && !std::filesystem::exists(longer, code)) continue;
      path = longer;
      end = i + 1;
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

// The items of the setting. What is wrong with one is added to `errors`.
std::vector<KeyItem> parse_items(const Key& key, const KeySetting& setting,
                                 std::vector<std::string>& errors) {
  const std::string& main = key.item_keys.front().name;
  std::vector<KeySetting::Item> items = setting.items;
  if (items.empty()) {
    const std::vector<std::string> paths =
        setting.is_list ? setting.values : split_paths(setting.values.front());
    for (const std::string& path : paths)
      items.push_back({setting.place, {KeySetting{.name = "", .values = {path}, .place = ""}}});
  }
  std::vector<KeyItem> parsed;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string what = items.size() == 1 && !setting.is_list
                                 ? setting.describe()
                                 : fmt::format("item {} of {}", i + 1, setting.describe());
    for (KeySetting& field : items[i].fields) {
      if (field.name.empty()) field.name = main;
      const std::string line = field.place.empty() ? setting.place : field.place;
      field.place = fmt::format("item {} of {}{}", i + 1, setting.is_flag() ? "--" : "", setting.name);
      if (!line.empty()) field.place += fmt::format(" ({})", line);
    }
    const size_t errors_before = errors.size();
    KeyItem item;
    for (const KeyAssignment& assignment : resolve_settings(key.item_keys, items[i].fields, errors))
      item.emplace_back(key.item_keys[assignment.index].name, scalar_of(assignment.value));
    const auto given = std::ranges::find(item, main, &KeyItem::value_type::first);
    if (errors.size() == errors_before && (given == item.end() || given->second == KeyScalar("")))
      errors.push_back(fmt::format("{} has no {}", what, main));
    parsed.push_back(std::move(item));
  }
  return parsed;
}

std::string shown_value(const KeySetting& setting) {
  if (setting.is_list) return fmt::format("[{}]", fmt::join(setting.values, ", "));
  return fmt::format("'{}'", printable(setting.values.front()));
}

}  // namespace

bool takes_bool(const Key& key, const KeyAlias* alias) {
  if (key.type == KeyType::Bool) return true;
  return alias && !alias->values.empty() ? true : !key.bool_choices.empty();
}

std::optional<FoundKey> find_key(std::span<const Key> keys, std::string_view name) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].name == name) return FoundKey{i, nullptr};
    for (const KeyAlias& alias : keys[i].aliases) {
      if (alias.name == name) return FoundKey{i, &alias};
    }
  }
  constexpr std::string_view kNo = "no_";
  if (!name.starts_with(kNo)) return std::nullopt;
  std::optional<FoundKey> found = find_key(keys, name.substr(kNo.size()));
  if (!found || found->negated || !takes_bool(keys[found->index], found->alias)) return std::nullopt;
  found->negated = true;
  return found;
}

namespace {

std::optional<KeyValue> parse_setting(const Key& key, const FoundKey& found, const KeySetting& setting) {
  if (key.type == KeyType::StringList) return parse_list(key, setting);
  if (setting.is_list) return std::nullopt;
  std::string text = setting.values.front();
  if (found.negated) {
    const std::optional<bool> given = parse_bool(text);
    if (!given) return std::nullopt;
    text = *given ? "false" : "true";
  }
  if (found.alias && !found.alias->values.empty()) {
    if (auto value = meaning_of_bool(text, found.alias->values)) return *value;
    if (!found.alias->takes_values) return std::nullopt;
  }
  return parse_scalar(key, text);
}

std::string unknown_message(std::span<const Key> keys, const KeySetting& setting, bool suggests) {
  std::vector<std::string> similar = suggests ? similar_keys(keys, setting.name) : std::vector<std::string>{};
  if (similar.empty() && suggests && setting.is_flag() && edit_distance(setting.name, "help") <= 2)
    similar = {"help"};
  const std::string_view dashes = setting.is_flag() ? "--" : "";
  std::string message = setting.is_flag()
                            ? fmt::format("unknown flag '--{}'", printable(setting.name))
                            : fmt::format("unknown key '{}' in {}", printable(setting.name), setting.place);
  for (size_t i = 0; i < similar.size(); ++i) {
    const std::string_view before = i == 0 ? "; did you mean " : i + 1 == similar.size() ? " or " : ", ";
    message += fmt::format("{}'{}{}'", before, dashes, similar[i]);
  }
  return similar.empty() ? message : message + "?";
}

}  // namespace

std::vector<KeyAssignment> resolve_settings(std::span<const Key> keys, std::span<const KeySetting> settings,
                                            std::vector<std::string>& errors) {
  std::vector<KeyAssignment> assignments;
  std::vector<const KeySetting*> first(keys.size(), nullptr);
  // A file of another kind has thousands of them, and a search takes a while.
  constexpr int kMostSuggestions = 30;
  int unknown = 0;
  for (const KeySetting& setting : settings) {
    const std::optional<FoundKey> found = find_key(keys, setting.name);
    if (!found) {
      errors.push_back(unknown_message(keys, setting, ++unknown <= kMostSuggestions));
      continue;
    }
    const Key& key = keys[found->index];
    const KeySetting* earlier = std::exchange(first[found->index], &setting);
    if (earlier && !key.repeats) {
      errors.push_back(earlier->name == setting.name
                           ? fmt::format("{} is given twice{}", setting.describe(),
                                         setting.is_flag() ? "" : ", first in " + earlier->place)
                           : fmt::format("{} and {} are the same key; give one of them", earlier->describe(),
                                         setting.describe()));
      continue;
    }
    if (setting.is_null) continue;
    if (key.type == KeyType::ItemList) {
      assignments.push_back({found->index, parse_items(key, setting, errors), setting.describe()});
      continue;
    }
    if (!setting.items.empty()) {
      errors.push_back(
          fmt::format("{} is a map inside a list; expected {}", setting.describe(), allowed_text(key)));
      continue;
    }
    if (auto value = parse_setting(key, *found, setting)) {
      const auto same = std::ranges::find(assignments, found->index, &KeyAssignment::index);
      if (same != assignments.end()) {  // only a repeatable key gets here twice
        std::ranges::copy(std::get<std::vector<std::string>>(*value),
                          std::back_inserter(std::get<std::vector<std::string>>(same->value)));
        continue;
      }
      assignments.push_back({found->index, std::move(*value), setting.describe()});
      continue;
    }
    if (!setting.is_list) {
      if (const std::string* reason = find_spelling(key.refused_values, setting.values.front())) {
        errors.push_back(fmt::format("{} is {}; {}", setting.describe(), shown_value(setting), *reason));
        continue;
      }
    }
    if (key.type == KeyType::Double && !setting.is_list) {
      const std::optional<double> value = parse_double(setting.values.front());
      const std::optional<std::string> lost =
          value && in_range(key, *value) ? lost_in_fp32(key, *value) : std::nullopt;
      if (lost) {
        errors.push_back(fmt::format("{} is {}, which becomes {} in fp32; expected {}", setting.describe(),
                                     shown_value(setting), *lost, allowed_text(key)));
        continue;
      }
    }
    const bool bool_alias =
        found->negated || (found->alias && !found->alias->values.empty() && !found->alias->takes_values);
    errors.push_back(fmt::format("{}{} is {}; expected {}", setting.describe(),
                                 found->alias ? " (alias of " + key.name + ")" : "", shown_value(setting),
                                 bool_alias ? std::string(kBoolNames) : allowed_text(key)));
  }
  return assignments;
}

KeyScalar scalar_of(const KeyValue& value) {
  return std::visit(
      [](const auto& held) -> KeyScalar {
        if constexpr (std::is_constructible_v<KeyScalar, decltype(held)>) {
          return held;
        } else {
          assert(false);
          return {};
        }
      },
      value);
}

KeyValue value_of(const KeyScalar& scalar) {
  return std::visit([](const auto& held) { return KeyValue(held); }, scalar);
}

const Key* key_called(std::span<const Key> keys, std::string_view name) {
  const std::optional<FoundKey> found = find_key(keys, name);
  return found ? &keys[found->index] : nullptr;
}

void throw_config_errors(std::span<const std::string> errors) {
  if (!errors.empty()) fail_config("{}", fmt::join(errors, "\n"));
}

std::string nearest_name(std::string_view word, std::span<const std::string> names) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const size_t longer = std::max(word.size(), name.size());
    if (longer - std::min(word.size(), name.size()) >= best_distance) continue;
    const size_t distance = edit_distance(word, name);
    // A distance as long as the word says nothing: "xy" is not near "lr".
    if (distance < best_distance && distance < longer) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

}  // namespace octet
