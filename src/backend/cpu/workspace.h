#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checked.h"
#include "base/error.h"
#include "tensor/tensor.h"

namespace octet::cpu {

// Hands out parts of the workspace for one op. Every op creates its own, so nothing is freed.
class Scratch {
 public:
  static constexpr int64_t kAlignment = 256;

  explicit Scratch(const Tensor& workspace)
      : data_(static_cast<std::byte*>(workspace.data)), size_(workspace ? workspace.bytes() : 0) {}

  template <class T>
  T* take(int64_t count) {
    const int64_t bytes = padded(count * static_cast<int64_t>(sizeof(T)));
    require(used_ + bytes <= size_, "[cpu workspace] {} bytes are needed, {} were given; see workspace_bytes",
            used_ + bytes, size_);
    T* result = reinterpret_cast<T*>(data_ + used_);
    used_ += bytes;
    return result;
  }

  static int64_t padded(int64_t bytes) { return round_up(bytes, kAlignment); }

 private:
  std::byte* data_;
  int64_t size_;
  int64_t used_ = 0;
};

}  // namespace octet::cpu
