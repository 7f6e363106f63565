#pragma once

#include <string>
#include <string_view>

namespace octet {

inline constexpr size_t kMaxConfigSize = size_t{1} << 20;

// The text of a configuration file. ConfigError for a folder, and for a file that is missing, unreadable or too large;
// `kind` says what was expected: "YAML".
std::string read_config_text(const std::string& path, std::string_view kind);

}  // namespace octet
