#pragma once

#include <string>

// Where the things are that tests use. The build tells it to places.cpp alone, so that objects of tests do not depend on the
// folder of the build, and a compiler cache serves all of them.

namespace octet::test {

std::string octet_program();                          // the program that the build has made
std::string helper_program(const std::string& name);  // tests/*/NAME.cpp, `name` ends in _process
std::string source_path(const std::string& path);     // `path` begins with a slash, or is empty: the source folder itself
std::string fake_nvml_library();                      // support/nvml/fake_nvml.cpp

}  // namespace octet::test
