#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "base/safe_text.h"

namespace octet {

// All output passes terminal_safe(): names and texts of files that others made cannot control the terminal.
template <class... Args>
void print_stdout(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print("{}", terminal_safe(fmt::format(format, std::forward<Args>(args)...)));
}

// The same for stderr. fmt::print throws if stderr cannot be written, such as a log on a full disk. What is printed here is
// then lost, and nothing else: a run does not end because of it.
template <class... Args>
void print_stderr(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = terminal_safe(fmt::format(format, std::forward<Args>(args)...));
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace octet
