#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keys.h"

namespace octet {

// The keys that somebody who wrote `name` may have meant, best first, at most three: names at the distance of a typing
// error, otherwise names with the same words or words for the same thing (val and eval, iters and steps).
std::vector<std::string> similar_keys(std::span<const Key> keys, std::string_view name);

// The keys that a word of `query` names by its name, aliases, choices, group or help; every word must be found.
std::vector<Key> search_keys(std::span<const Key> keys, std::string_view query);

}  // namespace octet
