#pragma once

#include "base/error.h"
#include "tensor/tensor.h"

namespace octet {

// A view of a matrix with a row stride: a whole tensor, or some of its columns, such as the keys of a fused (N, (H +
// 2K) * D) projection. Products take these; every other op takes whole tensors.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::F32;
  int64_t rows = 0, cols = 0;
  int64_t stride = 0;  // elements from one row to the next, at least cols

  Matrix() = default;
  Matrix(const Tensor& tensor)  // NOLINT: a tensor is a matrix wherever one is asked for
      : data(tensor.data),
        dtype(tensor.dtype),
        rows(tensor.rows()),
        cols(tensor.cols()),
        stride(tensor.cols()) {}

  explicit operator bool() const { return data != nullptr; }
  bool contiguous() const { return stride == cols || rows <= 1; }

  // Columns [begin, begin + count).
  Matrix columns(int64_t begin, int64_t count) const {
    require(begin >= 0 && count >= 0 && begin + count <= cols,
            "[matrix] columns {} to {} of {}, expected a range inside the matrix", begin, begin + count,
            cols);
    Matrix part = *this;
    part.data = static_cast<std::byte*>(data) + begin * static_cast<int64_t>(size_of(dtype));
    part.cols = count;
    return part;
  }
  // "(8, 128)"
  std::string to_string() const { return Shape{rows, cols}.to_string(); }
};

}  // namespace octet
