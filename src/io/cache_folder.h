#pragma once

#include <string>

namespace octet {

// The value of an environment variable; "" where it is not set. One that is set to nothing counts as not set.
std::string env_value(const char* name);

// Where programs of this user keep what they can make again: $XDG_CACHE_HOME, else $HOME/.cache; "" where neither is
// set. Nothing is created.
std::string user_cache_folder();

// octet's own folder in it: prepared datasets and tuned GEMM plans.
std::string octet_cache_folder();

}  // namespace octet
