#include "support/places.h"

namespace octet::test {

std::string octet_program() {
  return OCTET_PROGRAM;
}

std::string helper_program(const std::string& name) {
  return OCTET_HELPERS "/" + name;
}

std::string source_path(const std::string& path) {
  return OCTET_SOURCE_DIR + path;
}

std::string fake_nvml_library() {
  return OCTET_FAKE_NVML;
}

}  // namespace octet::test
