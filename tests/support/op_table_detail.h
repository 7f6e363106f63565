#pragma once

#include <cmath>
#include <initializer_list>

#include "base/philox.h"
#include "support/op_case.h"

// What the files of the op table share.
namespace octet::test {

inline Fill normal(int64_t count, DType dtype, uint64_t seed, double scale = 1.0, double offset = 0.0) {
  return [=] { return random_values(count, dtype, seed, scale, offset); };
}

inline Fill fixed(std::vector<double> values) {
  return [values = std::move(values)] { return values; };
}

inline std::vector<double> ids(int64_t count, int64_t bound, uint64_t seed) {
  std::vector<double> result(static_cast<size_t>(count));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<double>(Philox(seed, 3).below(i, static_cast<uint64_t>(bound)));
  }
  return result;
}

inline size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

inline std::string named(std::string name, DType dtype, std::initializer_list<int64_t> numbers) {
  name += fmt::format("_{}", name_of(dtype));
  for (const int64_t number : numbers) name += fmt::format("_{}", number);
  return name;
}

inline OpCase start(std::string name, DType dtype, std::initializer_list<int64_t> numbers) {
  OpCase op;
  op.name = named(std::move(name), dtype, numbers);
  op.dtype = dtype;
  return op;
}

inline Operand operand(const Tensor& dense) {
  Operand result;
  result.dense = dense;
  return result;
}

OpCase rope_case(DType dtype, int64_t rows, AttentionShape shape);
OpCase qk_norm_case(DType dtype, int64_t rows, AttentionShape shape);
OpCase attention_case(DType dtype, AttentionShape shape, std::vector<int64_t> lengths, std::string label);
// `lengths` tokens are cached of each sequence; then `added` more of each are read at once, with a filler between.
OpCase decode_case(DType dtype, AttentionShape shape, std::vector<int64_t> lengths, int64_t added,
                   std::string label);

}  // namespace octet::test
