#pragma once

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace octet {

// Where a function takes variables of the environment from: tests give their own.
using EnvironmentValue = std::function<std::optional<std::string>(const char* name)>;

// A variable of this process; nothing if it is empty.
inline std::optional<std::string> environment_value(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

}  // namespace octet
