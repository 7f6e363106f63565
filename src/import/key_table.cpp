#include "import/key_table.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace octet {
namespace {

constexpr std::string_view kSpaces = " \n";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// Takes what stands before the separator off the text.
std::string_view take_until(std::string_view& text, std::string_view separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(std::min(text.size(), end + separator.size()));
  return trimmed(head);
}

KeyCase case_of(std::string_view text) {
  constexpr std::array<std::string_view, 5> kFates = {"mapped", "derived", "ignored", "warned", "refused"};
  KeyCase result;
  std::string_view head = take_until(text, ",");
  result.reason = trimmed(text);
  if (const size_t arrow = head.find("->"); arrow != head.npos) {
    result.fate = Fate::Mapped;
    std::string_view target = trimmed(head.substr(arrow + 2));
    result.octet_key = take_until(target, " ");
    result.value = trimmed(target);
    head = trimmed(head.substr(0, arrow));
  } else {
    const size_t space = head.rfind(' ');
    const std::string_view fate = head.substr(space + 1);
    const auto found = std::ranges::find(kFates, fate);
    if (found == kFates.end()) fail("[import] '{}' is not a verdict", fate);
    result.fate = static_cast<Fate>(found - kFates.begin());
    head = space == head.npos ? std::string_view() : head.substr(0, space);
  }
  while (!head.empty()) result.values.push_back(take_until(head, " "));
  return result;
}

void add_rows(std::vector<ToolKey>& keys, std::string_view names, ToolKey row) {
  while (!(names = trimmed(names)).empty()) {
    std::string_view name = names.substr(0, names.find_first_of(kSpaces));
    names.remove_prefix(name.size());
    row.name = take_until(name, "=");
    row.octet_key = name.empty() ? std::string_view() : name;
    row.is_switch = row.name.ends_with('!');
    if (row.is_switch) row.name.remove_suffix(1);
    keys.push_back(row);
  }
}

}  // namespace

std::vector<ToolKey> key_table(std::span<const KeyRules> rules, std::string_view text) {
  std::vector<ToolKey> keys;
  for (const KeyRules& row : rules) add_rows(keys, row.names, {.rule = row.rule});
  while (!trimmed(text).empty()) {
    size_t end = text.find('\n', text.find_first_not_of('\n'));
    while (end + 1 < text.size() && text[end + 1] == ' ') end = text.find('\n', end + 1);
    std::string_view paragraph = text.substr(0, end);
    text.remove_prefix(std::min(end, text.size()));
    const std::string_view names = take_until(paragraph, " : ");
    ToolKey row;
    while (!paragraph.empty()) row.cases.push_back(case_of(take_until(paragraph, " | ")));
    add_rows(keys, names, std::move(row));
  }
  return keys;
}

std::vector<ToolKey> joined_keys(std::initializer_list<std::span<const ToolKey>> tables) {
  std::vector<ToolKey> all;
  for (const std::span<const ToolKey> table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

}  // namespace octet
