#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace octet {

// Where pip may have put a library of NVIDIA's: the files site-packages/nvidia/*/lib/NAME of the environment that octet
// is installed in (next to its bin/), and of an active virtual or Conda environment. Only files that exist.
std::vector<std::string> wheel_libraries(const std::string& name);

// The same for given environments (folders that hold lib/python3*).
std::vector<std::string> wheel_libraries_in(const std::vector<std::string>& prefixes,
                                            const std::string& name);

// Opens the library where the loader finds it by its name, or else in one of the folders (nullptr: none) or where pip may
// have put it. It stays open until the program ends. nullptr: `reason` says why.
void* open_library(const std::string& name, std::initializer_list<const char*> folders, std::string& reason);

}  // namespace octet
