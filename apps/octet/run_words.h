#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/keys.h"

namespace octet {

// Flags as the words of a command line that gives the same settings.
inline std::vector<std::string> words_of(std::span<const KeySetting> flags) {
  std::vector<std::string> words;
  for (const KeySetting& flag : flags) {
    words.push_back(fmt::format("--{}={}", flag.name, fmt::join(flag.values, ",")));
  }
  return words;
}

// A configuration that other processes read again later. A pipe can be read only once.
inline void require_config_file(const std::string& path) {
  std::error_code code;
  if (std::filesystem::is_fifo(path, code))
    fail_config("{} is a pipe, but processes that are started read it again; write the configuration to a file", path);
}

}  // namespace octet
