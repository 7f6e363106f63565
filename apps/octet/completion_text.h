#pragma once

#include <string>

namespace octet {

// Completion scripts for octet's commands, flags and values, made from the tables that the commands are read with.
std::string bash_completion();
std::string zsh_completion();
std::string fish_completion();

}  // namespace octet
