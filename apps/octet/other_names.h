#pragma once

#include <string>
#include <string_view>

namespace octet {

// Advice for a command or script of another program: "use 'octet doctor': it ...". "" if the name is not
// known. A folder in front, an ending such as .py and dashes for underscores do not matter.
std::string command_here(std::string_view name);

}  // namespace octet
