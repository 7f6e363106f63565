#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octet {

// Text from a model, a file or another program made safe to print. Control characters other than newline and tab become
// \xNN, so that they cannot move the cursor or recolour the terminal; bytes that are not UTF-8 become U+FFFD; URLs lose
// the user and password that they hold. Whatever is printed or logged passes here: see base/print.h and log_line().
std::string terminal_safe(std::string_view text);

// The same without the change of URLs: for what a model or a dataset says.
std::string without_escapes(std::string_view text);

// "http://user:password@host" with *** in place of the user and the password, wherever the text has a URL.
std::string without_logins(std::string_view text);

// The character that a text begins with, which must not be empty.
struct Character {
  char32_t code = 0;
  size_t size = 1;     // bytes
  bool valid = false;  // well-formed UTF-8; otherwise one byte is taken
};

Character first_character(std::string_view text);

}  // namespace octet
