#pragma once

#include <cstdint>

namespace octet::cpu {

// A factor of a product: the matrix as the product reads it, or its transpose.
struct Factor {
  const float* data;
  int64_t stride;  // between two rows of what is stored
  bool transposed = false;

  // The part of the factor that begins at (row, col).
  Factor from(int64_t row, int64_t col) const {
    return {transposed ? data + col * stride + row : data + row * stride + col, stride, transposed};
  }
};

// A right factor (k, n) that is packed once, for several products that use it. They may begin at any row, but only at
// columns that are multiples of kColumns.
class PackedFactor {
 public:
  static constexpr int64_t kColumns = 64;
  static int64_t size(int64_t k, int64_t n);  // floats of memory

  PackedFactor(float* memory, int64_t k) : data_(memory), k_(k) {}

  // Packs the columns [begin, end) of b. Both are multiples of kColumns, except that the last part ends with the factor.
  // Threads may pack different parts.
  void pack(Factor b, int64_t begin, int64_t end);

  PackedFactor from(int64_t row, int64_t col) const;

  // Strips of columns, one after the other.
  const float* strips() const { return data_; }
  int64_t strip_stride() const;

 private:
  float* data_;
  int64_t k_;  // of what is packed
};

// c (m, n) = alpha a (m, k) b (k, n), in the calling thread. With `accumulate` it is added to c. With a bias (n) it is added to
// that in every row. Both together are not possible. The order of every sum depends on k alone. So an element has the same
// bits in a product of any other size, and in every program compiled for fused multiply-add.
void matrix_product(float* c, int64_t c_stride, Factor a, Factor b, int64_t m, int64_t n, int64_t k,
                    float alpha, bool accumulate, const float* bias = nullptr);
void matrix_product(float* c, int64_t c_stride, Factor a, const PackedFactor& b, int64_t m, int64_t n,
                    int64_t k, float alpha, bool accumulate, const float* bias = nullptr);

// The vector instructions that it was compiled for: "AVX-512".
const char* product_instructions();

}  // namespace octet::cpu
