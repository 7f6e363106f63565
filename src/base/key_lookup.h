#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/keys.h"

// Shared by the readers of files and of command lines.

namespace octet {

struct FoundKey {
  size_t index;
  const KeyAlias* alias;  // nullptr if the key's own name was used
  bool negated = false;   // no_NAME
};

// By its name, by an alias, or by no_NAME if it takes a bool.
std::optional<FoundKey> find_key(std::span<const Key> keys, std::string_view name);

// Whether the flag may stand alone and then means true.
bool takes_bool(const Key& key, const KeyAlias* alias);

// The value of one scalar, or nothing if it has the wrong type or is out of range.
std::optional<KeyValue> parse_scalar(const Key& key, const std::string& text);

}  // namespace octet
