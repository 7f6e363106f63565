#pragma once

#include <string>
#include <string_view>

namespace octet {

// Files that a user names for a command to write: --json FILE, --html FILE, --output FILE.

// ConfigError that names the flag if the file cannot be written: before minutes of work, not after. Leaves no new file
// behind, and opens neither pipes nor devices.
void check_output_file(std::string_view flag, const std::string& path);

// Writes the file whole or not at all: a browser may have it open. A symbolic link stays, what it points to is replaced.
// Anything but a regular file (/dev/stdout, a pipe) is written to directly.
void write_output_file(const std::string& path, std::string_view text);

}  // namespace octet
