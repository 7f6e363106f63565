#pragma once

#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace octet::test {

// How far two implementations of an op may be apart, stated once for each kind of numbers:
//   norm     ||a - b|| / ||b||, which a systematic error shows in
//   largest  the largest |a - b| / (|b| + rms(b)), which a single wrong element shows in
struct Tolerance {
  double norm, largest;
};

// Sums in another order, exp to the last bits.
inline constexpr Tolerance kFp32{1e-5, 2e-4};
// bf16 rounds by 1.1e-3 on average. Two results that are rounded in different places (a bias added by its own kernel, p
// rounded before the product with v) differ by up to about 2.5 times that, and a single one by a few steps of 2^-8.
inline constexpr Tolerance kBf16{3e-3, 5e-2};
// fp32 sums over many rows of what was computed from bf16.
inline constexpr Tolerance kSums{1e-4, 2e-3};
// The FP8 tensor cores keep about 14 bits while they add.
inline constexpr Tolerance kFp8Product{3e-3, 5e-2};
// Attention with tiles of its own order: scores, probabilities and their gradients are rounded on the way.
inline constexpr Tolerance kAttentionFp32{2e-5, 1e-3};
inline constexpr Tolerance kAttentionBf16{1e-2, 1e-1};

constexpr Tolerance tolerance_of(DType dtype) {
  return dtype == DType::BF16 ? kBf16 : kFp32;
}

// ||a - b|| / ||b||, and infinite when a holds something not finite.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

// Empty where `got` is within `tolerance` of `expected`, otherwise what is wrong: both errors, and the worst element. Where
// the expected values all but vanish (below `least_rms`), their rounding is not compared. `line` is the width of a row, for
// the place of the worst element.
std::string mismatch(const std::vector<double>& got, const std::vector<double>& expected, Tolerance tolerance,
                     double least_rms = 0, size_t line = 0);

}  // namespace octet::test
