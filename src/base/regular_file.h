#pragma once

#include <string>

namespace octet {

// Error if `path` is there and is not a regular file (or a link to one): opening a FIFO waits for a writer without end,
// and a device such as /dev/zero has no end.
void require_regular_file(const std::string& path);

}  // namespace octet
