#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/device.h"
#include "precision/layer_choice.h"

namespace octet {

// The products of one Linear: y (tokens, out) = x (tokens, in) W^T and the two of backward.
struct ProductShape {
  std::string layer;
  int64_t tokens = 0, out = 0, in = 0;
};

// One precision of one product.
struct ProductResult {
  double ms = 0;  // median; 0 where nothing was timed
  double error =
      0;  // root mean square error of sampled elements against the reference, over their root mean square
};

struct ProductTrial {
  Product product = Product::Forward;
  int64_t m = 0, n = 0, k = 0;
  std::string fp8_kind;  // "native" or "emulated"
  ProductResult bf16, fp8;
};

struct ProductOptions {
  Fp8Config fp8;
  bool timed = true;
  int64_t seed = 1;
};

// Multiplies random matrices of these shapes in BF16 and in FP8 as the recipe does (without the casts before them). Some
// elements of each result are compared with sums in double precision over the very same BF16 values and FP8 codes, so the
// error has nothing of the rounding to FP8 in it. The three products in the order of Product.
std::vector<ProductTrial> try_products(Device& device, const ProductShape& shape,
                                       const ProductOptions& options);

// A product whose error is above this is wrong. Rounding the result to BF16 costs 0.0017.
constexpr double kLargestProductError = 0.01;

// Repeats the FP8 forward product for `seconds`, and calls `look` about ten times meanwhile. TFLOP/s.
double sustain_product(Device& device, const ProductShape& shape, const ProductOptions& options,
                       double seconds, const std::function<void()>& look);

}  // namespace octet
