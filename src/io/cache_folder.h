#pragma once

#include <string>

namespace octet {

// The value of an environment variable; "" if it is not set. An empty value counts as not set.
std::string env_value(const char* name);

// The user's cache folder: $XDG_CACHE_HOME, otherwise $HOME/.cache; "" if neither is set. Nothing is created.
std::string user_cache_folder();

// octet's own folder in it: prepared datasets and tuned GEMM plans.
std::string octet_cache_folder();

}  // namespace octet
