#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>
#include <vector>

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

}  // namespace octet
