#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "import/importer.h"

namespace octet {

// Keys that a function decides about. Names are written as in a text of keys.
struct KeyRules {
  std::string_view names;
  ValueRule rule;
};

// The rows of a tool: those with rules, then those of a text. The text has a paragraph per verdict, whose further lines are
// indented:
//   NAMES : CASE | CASE ...
// NAMES are separated by spaces. "name!" may stand alone as a flag, and "name=octet_key" is the same setting in octet.
// A CASE is [VALUES] VERDICT [, REASON]. VALUES are words, numbers, true (also yes), null or off; without them it takes all
// other values.
// VERDICT is a fate (mapped, derived, ignored, warned, refused) or "-> octet_key [value]"; without a value, the given one.
//
// Some values need no case: null is ignored next to other cases, and so is a value that is off where all others are
// warned of or refused.
std::vector<ToolKey> key_table(std::span<const KeyRules> rules, std::string_view text);

// Several tables as one: of two rows for one name, the first counts.
std::vector<ToolKey> joined_keys(std::initializer_list<std::span<const ToolKey>> tables);

}  // namespace octet
