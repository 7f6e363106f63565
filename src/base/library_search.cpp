#include "base/library_search.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

namespace octet {
namespace {

namespace fs = std::filesystem;

// Sorted, so that the choice is the same every time.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) found.push_back(entry->path());
  }
  std::ranges::sort(found);
  return found;
}

bool is_open_to_all(const fs::path& folder) {
  std::error_code code;
  const fs::perms permissions = fs::status(folder, code).permissions();
  return code || (permissions & fs::perms::others_write) != fs::perms::none;
}

}  // namespace

std::vector<std::string> wheel_libraries_in(const std::vector<std::string>& prefixes,
                                            const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& prefix : prefixes) {
    for (const char* lib : {"lib", "lib64"}) {
      for (const fs::path& python : folders_in(fs::path(prefix) / lib)) {
        if (!python.filename().string().starts_with("python3")) continue;
        for (const char* packages : {"site-packages", "dist-packages"}) {
          for (const fs::path& package : folders_in(python / packages / "nvidia")) {
            const fs::path file = package / "lib" / name;
            std::error_code ignored;
            if (fs::exists(file, ignored) && std::ranges::find(found, file.string()) == found.end())
              found.push_back(file.string());
          }
        }
      }
    }
  }
  return found;
}

std::vector<std::string> wheel_libraries(const std::string& name) {
  std::vector<std::string> prefixes;
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  // Below a folder such as /tmp, everybody could put a library.
  const fs::path prefix = program.parent_path().parent_path();
  if (!code && !is_open_to_all(prefix)) prefixes.push_back(prefix.string());
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* value = std::getenv(variable); value && *value == '/') prefixes.emplace_back(value);
  }
  return wheel_libraries_in(prefixes, name);
}

void* open_library(const std::string& name, std::initializer_list<const char*> folders, std::string& reason) {
  std::vector<std::string> places = {name};
  for (const char* folder : folders) {
    if (folder) places.push_back(fs::path(folder) / name);
  }
  std::ranges::copy(wheel_libraries(name), std::back_inserter(places));
  for (const std::string& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (reason.empty()) reason = dlerror();
  }
  return nullptr;
}

}  // namespace octet
