#pragma once

#include <string_view>

namespace octet {

// src/report/page/*, embedded by cmake/embed_files.cmake.
extern const std::string_view kPageScript;
extern const std::string_view kPageStyle;

}  // namespace octet
