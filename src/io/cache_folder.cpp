#include "io/cache_folder.h"

#include <cstdlib>

#include "io/env.h"

namespace octet {

std::string env_value(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string user_cache_folder() {
  if (const std::string cache = env_value("XDG_CACHE_HOME"); !cache.empty()) return cache;
  const std::string home = env_value("HOME");
  return home.empty() ? "" : join_path(home, ".cache");
}

std::string octet_cache_folder() {
  if (const std::string own = env_value("OCTET_CACHE"); !own.empty()) return own;
  const std::string folder = user_cache_folder();
  return folder.empty() ? "" : join_path(folder, "octet");
}

}  // namespace octet
