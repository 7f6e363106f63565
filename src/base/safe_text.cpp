#include "base/safe_text.h"

#include <fmt/format.h>

namespace octet {

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t size = lead >= 0xf0 && lead < 0xf5   ? 4
                      : lead >= 0xe0 && lead < 0xf0 ? 3
                      : lead >= 0xc2 && lead < 0xe0 ? 2
                                                    : 0;
  if (size == 0 || text.size() < size) return {};
  char32_t code = lead & (0xff >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[size] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, size, true};
}

std::string without_logins(std::string_view text) {
  constexpr std::string_view kScheme = "://";
  std::string result;
  while (true) {
    const size_t found = text.find(kScheme);
    if (found == text.npos) return result.append(text);
    const size_t begin = found + kScheme.size();
    result += text.substr(0, begin);
    text.remove_prefix(begin);
    // The host begins after the last @: a password may have one.
    const std::string_view authority = text.substr(0, text.find_first_of("/?# \t\r\n\"'<>"));
    const size_t at = authority.rfind('@');
    if (at == authority.npos) continue;
    result += "***";
    text.remove_prefix(at);
  }
}

std::string without_escapes(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    const char32_t code = character.code;
    if (!character.valid) {
      result += "\xef\xbf\xbd";
    } else if (code < 0x20 ? code != '\n' && code != '\t' : code >= 0x7f && code < 0xa0) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned>(code));
    } else {
      result += text.substr(0, character.size);
    }
    text.remove_prefix(character.size);
  }
  return result;
}

std::string terminal_safe(std::string_view text) {
  return without_logins(without_escapes(text));
}

}  // namespace octet
