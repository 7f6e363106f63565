#pragma once

#include <string>

#include "checkpoint/tensor_files.h"
#include "model/parameters.h"
#include "tensor/split_fp32.h"

namespace octet {

// The remainders of a parameter's weight in a checkpoint (see tensor/split_fp32.h).
struct StoredRemainder {
  const SafeTensor* tensor = nullptr;
  RemainderKind kind = RemainderKind::None;

  StoredRemainder(const TensorFiles& optimizer, const ParameterSpec& spec);
  explicit operator bool() const { return tensor != nullptr; }
  std::string fault() const;  // empty: it fits the parameter
  // Adds the remainders of rows [begin, ...) to the values of these rows.
  void add_to(std::span<float> values, int64_t begin) const;

 private:
  int64_t rows_ = 0, width_ = 0;
};

}  // namespace octet
