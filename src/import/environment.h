#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Environment variables that people set for FP8 training with other programs: what they do there, and here. One line
// for each that is set.
using EnvironmentNames = std::vector<std::string>;  // "NAME=value"
std::vector<std::string> environment_notes(const EnvironmentNames& environment);
EnvironmentNames current_environment();

// The notes about the environment of this process as a section of a report; "" if there is nothing to say.
std::string environment_report();

}  // namespace octet
