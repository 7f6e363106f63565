#pragma once

#include <string>
#include <string_view>

namespace octet {

// The text in single quotes, as bash, zsh and sh read it back.
inline std::string single_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace octet
