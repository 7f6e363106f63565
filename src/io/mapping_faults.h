#pragma once

#include <cstddef>
#include <string>

#include "base/exit_codes.h"

namespace octet {

// The system ends a program with SIGBUS when it reads a mapped file that has become shorter, or whose disk fails.
// While a mapping is named here, the program says which file it was and exits with 1 instead, or with the code of the advice.
void name_mapping(const void* data, size_t size, const std::string& path);
void forget_mapping(const void* data) noexcept;  // before munmap

// Sets the end of such a message, such as how to continue a run (a text of static duration), and the exit code.
void set_mapping_fault_advice(const char* advice, int exit_code = kExitFailure) noexcept;

// A file besides the standard error that such a message goes to; -1: none.
void set_mapping_fault_console(int file) noexcept;

}  // namespace octet
