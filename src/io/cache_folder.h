#pragma once

#include <string>

namespace octet {

// The value of an environment variable; "" if it is not set. An empty value counts as not set.
std::string env_value(const char* name);

// The user's cache folder: $XDG_CACHE_HOME, otherwise $HOME/.cache; "" if neither is set. Nothing is created.
std::string user_cache_folder();

// Where octet keeps everything between runs: $OCTET_CACHE, otherwise `octet` in the user's cache folder. docs/install.md
// lists what is in it.
std::string octet_cache_folder();

// For the end of a message about a file: " (OCTET_CACHE is /scratch)" if the file is in that folder, otherwise "".
std::string cache_note(const std::string& path);

}  // namespace octet
