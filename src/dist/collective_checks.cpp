#include "dist/collective_checks.h"

#include <algorithm>

namespace octet {

int check_members(std::span<const int> members, int rank, int ranks, std::string_view group) {
  require(!members.empty(), "[ranks] group '{}' has no members", group);
  for (size_t i = 0; i < members.size(); ++i) {
    require(members[i] >= 0 && members[i] < ranks, "[ranks] group '{}' has rank {}, expected 0 to {}", group,
            members[i], ranks - 1);
    require(std::find(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(i), members[i]) ==
                members.begin() + static_cast<std::ptrdiff_t>(i),
            "[ranks] group '{}' has rank {} twice", group, members[i]);
  }
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

std::string list_of_ranks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace octet
