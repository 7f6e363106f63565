#include "base/regular_file.h"

#include <sys/stat.h>

#include "base/error.h"

namespace octet {

void require_regular_file(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0) require(S_ISREG(info.st_mode), "[{}] is not a regular file", path);
}

}  // namespace octet
