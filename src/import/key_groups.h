#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "import/importer.h"

namespace octet {

// Keys with the same fate for the same reason. A name that ends in ".**" is a section: if it is refused, then once.
struct KeyGroup {
  std::string_view names;  // separated by spaces
  Fate fate = Fate::Ignored;
  std::string_view reason;
};

// The rows, then those of the groups.
std::vector<ToolKey> joined_keys(std::span<const ToolKey> rows, std::span<const KeyGroup> groups);

}  // namespace octet
