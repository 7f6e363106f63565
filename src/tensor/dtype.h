#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octet {

enum class DType : uint8_t { F32, BF16, E4M3, E5M2, E8M0, I32, U16, U8 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::I32: return 4;
    case DType::BF16:
    case DType::U16: return 2;
    default: return 1;
  }
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::F32: return "fp32";
    case DType::BF16: return "bf16";
    case DType::E4M3: return "e4m3";
    case DType::E5M2: return "e5m2";
    case DType::E8M0: return "e8m0";
    case DType::I32: return "int32";
    case DType::U16: return "uint16";
    case DType::U8: return "uint8";
  }
  return "?";
}

constexpr bool is_fp8(DType dtype) { return dtype == DType::E4M3 || dtype == DType::E5M2; }

}  // namespace octet
