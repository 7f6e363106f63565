#pragma once

#include <cstddef>
#include <string>

namespace octet {

// cuDNN is opened at run time, like cuBLASLt: the program starts without it. Returns empty once it is open, otherwise
// why it cannot be opened. cudnn_library.cpp defines the functions of cuDNN that the frontend calls; they may be
// called only after this returned empty.
std::string open_cudnn();

size_t cudnn_version();  // 91400 for 9.14.0

}  // namespace octet
