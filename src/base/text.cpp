#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace octet {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// from_chars takes no plus sign, which users write.
std::string_view without_plus(std::string_view text) {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+';
  return plus ? text.substr(1) : text;
}

bool is_opening(char c) {
  return c == '(' || c == '[' || c == '{';
}

bool is_closing(char c) {
  return c == ')' || c == ']' || c == '}';
}

bool has_balanced_brackets(std::string_view text) {
  std::string expected;  // closing brackets, innermost last
  for (const char c : text) {
    if (is_opening(c)) expected += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (!is_closing(c)) continue;
    if (expected.empty() || expected.back() != c) return false;
    expected.pop_back();
  }
  return expected.empty();
}

// Bytes of the UTF-8 sequence that starts the text, or 0 if there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and what lies beyond U+10FFFF.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f)) return 0;
  if ((lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) return 0;
  return length;
}

}  // namespace

std::optional<bool> parse_bool(std::string_view text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on" || word == "1") return true;
  if (word == "false" || word == "no" || word == "off" || word == "0") return false;
  return std::nullopt;
}

std::optional<int64_t> parse_int(std::string_view text) {
  const std::string_view digits = without_plus(text);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code == std::errc() && end == digits.data() + digits.size()) return value;
  constexpr double kExact = 9007199254740992.0;  // 2^53: beyond it a double skips integers
  const std::optional<double> number = parse_double(text);
  if (number && std::abs(*number) <= kExact && *number == std::floor(*number)) {
    return static_cast<int64_t>(*number);
  }
  return std::nullopt;
}

std::optional<double> parse_double(std::string_view text) {
  const std::string_view digits = without_plus(text);
  double value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::vector<std::string> split_list(std::string_view text) {
  const auto trimmed = [](std::string_view item) {
    const size_t first = item.find_first_not_of(" \t");
    if (first == std::string_view::npos) return std::string();
    return std::string(item.substr(first, item.find_last_not_of(" \t") - first + 1));
  };
  std::vector<std::string> items;
  if (trimmed(text).empty()) return items;
  const bool balanced = has_balanced_brackets(text);
  size_t start = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (balanced && is_opening(text[i])) ++depth;
    if (balanced && is_closing(text[i])) --depth;
    if (text[i] != ',' || depth > 0) continue;
    items.push_back(trimmed(text.substr(start, i - start)));
    start = i + 1;
  }
  items.push_back(trimmed(text.substr(start)));
  return items;
}

bool is_clean_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0 || text[0] == '\0') return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string result;
  while (!text.empty()) {
    if (result.size() > kLongest) return result + "...";
    const size_t length = utf8_length(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      result += fmt::format("\\x{:02x}", lead);
      text.remove_prefix(1);
    } else {
      result += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return result;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  // Names are short. A longer word is far from all of them, so its table need not be filled.
  constexpr size_t kLongest = 128;
  if (a.size() > kLongest || b.size() > kLongest) return std::max(a.size(), b.size());
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] =
          std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::vector<std::string> wrap_words(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!word.empty()) {
      if (lines.empty() || lines.back().size() + 1 + word.size() > width) {
        lines.emplace_back(word);
      } else {
        lines.back().append(" ").append(word);
      }
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace octet
