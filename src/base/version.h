#pragma once

namespace octet {

// "0.1.0", as CMakeLists.txt has it.
const char* octet_version();

}  // namespace octet
