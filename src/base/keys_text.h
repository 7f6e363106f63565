#pragma once

#include <string>

#include "base/keys.h"

namespace octet {

// The values of a key and its default: "[1 or more; default: 64; also --max_tokens]"; "" if there is nothing
// to say.
std::string limits_of(const Key& key);

}  // namespace octet
