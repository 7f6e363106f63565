#pragma once

#include <cstddef>
#include <string>

namespace octet {

// The system ends a program with SIGBUS when it reads a mapped file that has become shorter, or whose disk fails.
// While a mapping is named here, the program says which file it was and exits with 1 instead.
void name_mapping(const void* data, size_t size, const std::string& path);
void forget_mapping(const void* data) noexcept;  // before munmap

// What such a message ends with, such as how to continue a run. A text of static duration.
void set_mapping_fault_advice(const char* advice) noexcept;

}  // namespace octet
