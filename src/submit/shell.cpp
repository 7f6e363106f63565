#include "submit/shell.h"

#include <algorithm>
#include <cctype>

#include "base/shell_text.h"

namespace octet {
namespace {

bool is_plain(std::string_view word) {
  constexpr std::string_view kSafe = "_-./:=,+@%";
  return !word.empty() && std::ranges::all_of(word, [&](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || kSafe.find(static_cast<char>(c)) != std::string_view::npos);
  });
}

}  // namespace

std::string shell_quoted(std::string_view word) {
  if (is_plain(word)) return std::string(word);
  return single_quoted(word);
}

std::string shell_command(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    text += shell_quoted(word);
  }
  return text;
}

std::string sbatch_quoted(std::string_view value) {
  if (is_plain(value)) return std::string(value);
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  text += '"';
  return text;
}

}  // namespace octet
