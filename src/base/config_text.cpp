#include "base/config_text.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/text.h"

namespace octet {

std::string read_config_text(const std::string& path, std::string_view kind) {
  const std::string shown = printable(path);
  std::error_code code;
  if (std::filesystem::is_directory(path, code))
    fail_config("{} is a folder; expected a {} file", shown, kind);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail_config("{} {}; expected a {} file", shown,
                std::filesystem::exists(path, code) ? "cannot be read" : "does not exist", kind);
  }
  std::string text(kMaxConfigSize + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail_config("{} cannot be read", shown);
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxConfigSize)
    fail_config("{} is larger than 1 MiB; expected a {} configuration", shown, kind);
  return text;
}

}  // namespace octet
