#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/checked.h"
#include "tensor/dtype.h"
#include "tensor/floats.h"

namespace octet {

// Up to four dimensions, row-major and contiguous.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    assert(dims.size() <= dims_.size());
    std::copy(dims.begin(), dims.end(), dims_.begin());
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis < 0 ? axis + rank_ : axis)]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < rank_; ++i) count = checked_mul(count, (*this)[i]);
    return count;
  }
  bool operator==(const Shape&) const = default;

  // "(8, 128)"
  std::string to_string() const {
    std::string text = "(";
    for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string((*this)[i]);
    return text + ")";
  }

 private:
  std::array<int64_t, 4> dims_{};
  int rank_ = 0;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::BF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::U16;
};

// A view: it owns nothing and is copied freely. The memory is the device's (host or device); only a host view may
// be dereferenced here. A default-constructed Tensor is "absent", which many ops accept for optional arguments.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::F32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return checked_mul(numel(), static_cast<int64_t>(size_of(dtype))); }

  // Matrix view of any rank: rows = product of all but the last dimension.
  int64_t cols() const { return shape.rank() == 0 ? 1 : shape[-1]; }
  int64_t rows() const { return cols() == 0 ? 0 : numel() / cols(); }

  // Rows [begin, begin + count) of the matrix view, as a (count, cols) tensor.
  Tensor row_range(int64_t begin, int64_t count) const {
    assert(begin >= 0 && count >= 0 && begin + count <= rows());
    auto* start = static_cast<std::byte*>(data) + begin * cols() * static_cast<int64_t>(size_of(dtype));
    return {start, dtype, {count, cols()}};
  }

  // Elements [begin, begin + count) of a vector.
  Tensor part(int64_t begin, int64_t count) const {
    assert(begin >= 0 && count >= 0 && begin + count <= numel());
    return {static_cast<std::byte*>(data) + begin * static_cast<int64_t>(size_of(dtype)), dtype, {count}};
  }

  Tensor reshaped(Shape other) const {
    assert(other.numel() == numel());
    return {data, dtype, other};
  }

  // Elements of a host tensor; T must be the C++ type of dtype (uint8_t for the one-byte types).
  template <class T>
  T* as() const {
    if constexpr (sizeof(T) == 1) {
      assert(size_of(dtype) == 1);
    } else {
      assert(dtype == DTypeOf<T>::value);
    }
    return static_cast<T*>(data);
  }
  template <class T>
  std::span<T> span() const {
    return {as<T>(), static_cast<size_t>(numel())};
  }
};

}  // namespace octet
