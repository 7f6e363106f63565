#pragma once

#include <string>

#include "base/keys.h"

namespace octet {

// What a key takes and what it is unless given: "[1 or more; default: 64; also --max_tokens]"; "" if there is nothing
// to say.
std::string limits_of(const Key& key);

}  // namespace octet
