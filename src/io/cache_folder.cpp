#include "io/cache_folder.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "io/env.h"

namespace octet {

std::string env_value(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string user_cache_folder() {
  // A relative one would be a folder of the current folder, which may be somebody else's; XDG says to ignore it.
  if (const std::string cache = env_value("XDG_CACHE_HOME"); cache.starts_with('/')) return cache;
  const std::string home = env_value("HOME");
  return home.empty() ? "" : join_path(home, ".cache");
}

std::string octet_cache_folder() {
  if (const std::string own = env_value("OCTET_CACHE"); !own.empty()) return own;
  const std::string folder = user_cache_folder();
  return folder.empty() ? "" : join_path(folder, "octet");
}

std::string cache_note(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string own = env_value("OCTET_CACHE");
  if (own.empty()) return "";
  std::error_code ignored;
  const fs::path folder = fs::absolute(own, ignored).lexically_normal() / "";
  const fs::path file = fs::absolute(path, ignored).lexically_normal() / "";
  return file.string().starts_with(folder.string()) ? fmt::format(" (OCTET_CACHE is {})", own) : "";
}

}  // namespace octet
