#include "import/key_groups.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet {
namespace {

// One verdict says why a section is refused or left out; more would hide the other keys.
void section_rule(Importer& importer, const TreeLeaf& leaf) {
  const ToolKey* row = Importer::row_of(importer.tool(), leaf.name);
  const std::string_view section = row->name.substr(0, row->name.size() - 3);
  const auto first = std::ranges::find_if(importer.tree().leaves, [&](const TreeLeaf& other) {
    return !other.is_off() && Importer::row_of(importer.tool(), other.name) == row;
  });
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
  } else if (&leaf != &*first) {
    importer.derive(leaf, fmt::format("part of {}", section));
  } else if (row->fate == Fate::Refused) {
    importer.refuse(leaf, std::string(row->reason));
  } else {
    importer.warn(leaf, std::string(row->reason));
  }
}

}  // namespace

std::vector<ToolKey> joined_keys(std::span<const ToolKey> rows, std::span<const KeyGroup> groups) {
  std::vector<ToolKey> keys(rows.begin(), rows.end());
  for (const KeyGroup& group : groups) {
    std::string_view rest = group.names;
    while (!rest.empty()) {
      const std::string_view name = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(rest.size(), name.size() + 1));
      if (name.empty()) continue;
      const bool is_section =
          name.ends_with(".**") && (group.fate == Fate::Refused || group.fate == Fate::Warned);
      keys.push_back({name, group.fate, "", group.reason, is_section ? section_rule : nullptr});
    }
  }
  return keys;
}

}  // namespace octet
