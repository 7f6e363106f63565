#pragma once

// Shared between the safetensors reader and writer.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "io/safetensors.h"

namespace octet {

template <class... Args>
[[noreturn]] void fail_safetensors(SafetensorsFault fault, fmt::format_string<Args...> format,
                                   Args&&... args) {
  throw SafetensorsError(fault, fmt::format(format, std::forward<Args>(args)...));
}

// A name from a file, fit to print: quoted, cut to 120 bytes, control characters replaced.
std::string quoted_name(std::string_view name);

struct SafeTensorBytes {
  int64_t bytes = 0;
  std::optional<SafetensorsFault> fault;  // ShapeOverflow or PartialByte
};
SafeTensorBytes safe_tensor_bytes(SafeDType dtype, std::span<const int64_t> shape);
std::string_view describe_size_fault(SafetensorsFault fault);

}  // namespace octet
