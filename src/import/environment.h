#pragma once

#include <string>
#include <vector>

namespace octet {

using EnvironmentNames = std::vector<std::string>;  // "NAME=value"

enum class EnvironmentEffect {
  Works,    // as it does for other programs
  Nothing,  // no effect here
  Hurts,    // training is slower with this value
};
struct EnvironmentNote {
  std::string name;
  std::string text;  // what it does there, and here; goes on after the name
  EnvironmentEffect effect = EnvironmentEffect::Nothing;
};

// Environment variables that people set for FP8 training with other programs, by name: what they do there, and here.
std::vector<EnvironmentNote> environment_effects(const EnvironmentNames& environment);

// The same as sentences, for those that do nothing or hurt; `with_working`: for all.
std::vector<std::string> environment_notes(const EnvironmentNames& environment, bool with_working = false);

// The notes about the environment of this process as a section of a report; "" if there is nothing to say.
std::string environment_report();

}  // namespace octet
