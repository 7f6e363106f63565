#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace octet {

// fmt::print throws if stderr cannot be written, such as a log on a full disk. What is printed here is then lost, and nothing
// else: a run does not end because of it.
template <class... Args>
void print_stderr(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace octet
