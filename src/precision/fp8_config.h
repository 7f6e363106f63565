#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/quantized.h"

namespace octet {

enum class Precision : uint8_t { Fp8, Bf16, Fp32 };
enum class Fp8Recipe : uint8_t { Delayed, Current, Block, Mxfp8 };
enum class Fp8Format : uint8_t { Hybrid, E4M3, E5M2 };
// Which products of the output head run in FP8.
enum class Fp8Head : uint8_t {
  Auto,  // Backward for a large head, else None
  None,
  Backward,  // dgrad and wgrad
  All,
  Forward,
  Dgrad,
  Wgrad,
};
// Which FP8 products of the layers add up inside the tensor cores alone: faster, with fewer bits of the sum. The others
// move partial sums to fp32 registers now and then. The head never does it: its sums are the longest.
enum class Fp8FastAccum : uint8_t { None, Forward, ForwardDgrad, All };
// The tensor cores cut off the last bits of a partial sum at every step, so the error grows with the number of terms. With more
// than these, sums are never fast: a sum of a weight's gradient has a term for every token of a micro-batch, a forward sum one
// for every input of the layer.
inline constexpr int64_t kMostTokensOfFastSums = 8192;
inline constexpr int64_t kMostInputsOfFastSums = 16384;
std::string_view name_of(Fp8Recipe recipe);  // as users write it
// One scale per tensor, and none per block: then a product can run with fast sums, and margins count.
inline bool has_scale_per_tensor(Fp8Recipe recipe) {
  return recipe == Fp8Recipe::Delayed || recipe == Fp8Recipe::Current;
}
std::string_view name_of(Fp8Format format);

// The user's settings of FP8.
struct Fp8Config {
  Fp8Recipe recipe = Fp8Recipe::Delayed;
  Fp8Format format = Fp8Format::Hybrid;
  int margin = 0;                 // delayed, current: scale = max / 2^margin / amax
  int64_t interval = 1;           // delayed: optimizer steps between two updates of the scales
  int64_t history_length = 16;    // delayed
  bool most_recent = false;       // delayed: the newest amax instead of the history's maximum
  bool pow2_block_scales = true;  // block
  Fp8Head head = Fp8Head::Auto;
  Fp8FastAccum fast_accumulation = Fp8FastAccum::Forward;  // delayed, current
  std::vector<std::string> skip_layers;                    // names, globs, "first:N", "last:N"

  static constexpr int kMaxMargin = 16;
  void validate() const;  // throws ConfigError

  // The settings of the output head. It has delayed scaling with every recipe, because only delayed scaling keeps the sums
  // of its gradients (see Head). If the recipe is another one, margin, interval and history of the head
  // have their defaults.
  Fp8Config of_head() const;
};

// The tensors of a Linear that are quantised.
enum class Role : uint8_t { Input, Weight, Gradient };
std::string_view name_of(Role role);

// How the recipe quantises a role. The formats of the two copies follow from the products that read them:
//   forward  input rowwise     x weight rowwise
//   dgrad    gradient rowwise  x weight colwise
//   wgrad    gradient colwise  x input colwise
// No hardware multiplies e5m2 by e5m2, so "e5m2" means one e5m2 operand in each product: the input in the forward
// product, the gradient in the other two; weights, and the input where wgrad reads it, are e4m3.
QuantizeRule quantize_rule(const Fp8Config& config, Role role);

// "E5M2 where the hardware allows: ..." for format e5m2, else empty.
std::string format_note(const Fp8Config& config);

}  // namespace octet
