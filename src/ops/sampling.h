#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

// The numbers of Ops::choose_tokens. Probabilities are whole numbers, so sums do not depend on their order, and every
// device chooses the same token for the same logits.

namespace octet {

// How the next token of a row is chosen. Of tokens with equal logits the one with the smaller id is the likelier.
struct TokenChoice {
  double top_p = 1;  // keeps the fewest of the likeliest tokens whose probabilities reach this, at least one
  float temperature = 0;  // 0: the likeliest token
  float uniform = 0;      // in [0, 1): draws the token
  int32_t top_k = 0;      // keeps the k likeliest tokens; 0: all
  int32_t unused = 0;
};
static_assert(sizeof(TokenChoice) == 24);

// Instead of an id: a logit is NaN, or all are -Inf.
constexpr int32_t kNanLogits = -1, kNoLogits = -2;
// More tokens could not be summed in 64 bits.
constexpr int64_t kMostChoices = int64_t{1} << 22;

// Ordered as the logits are; -0 equals +0. NaN has no place in the order.
OCTET_HOST_DEVICE inline uint32_t key_of_logit(float logit) {
  const auto bits = std::bit_cast<uint32_t>(logit == 0.0f ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
OCTET_HOST_DEVICE inline float logit_of_key(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}
constexpr uint32_t kLowestKey = 0x007FFFFFu;  // of -Inf

// The weight of a token: 2^40 * e^((logit - largest) / temperature) as a whole number, right to 2e-6. No operation can be
// fused with another, so it has the same bits everywhere.
struct TokenWeight {
  float largest;
  float scale;  // log2(e) / temperature

  OCTET_HOST_DEVICE TokenWeight(float largest_logit, float temperature) : largest(largest_logit) {
    const float exact = 0x1.715476p+0f / temperature;
    scale = exact < FLT_MAX ? exact : FLT_MAX;
  }
  OCTET_HOST_DEVICE uint64_t operator()(float logit) const {
    const float down = logit == largest ? 0.0f : (largest - logit) * scale;
    if (!(down < 40.0f)) return 0;
    // 2^-down = 2^(z - n) with a whole n and z in [0, 1): a polynomial for 2^z - 1, in units of 2^-31.
    const int32_t power = -static_cast<int32_t>(down * 0x1p25f);
    const uint32_t z = static_cast<uint32_t>(power) << 7;
    uint32_t series = 0x6D255u;
    series = 0x2996F6u + high_product(series, z);
    series = 0x13C487Bu + high_product(series, z);
    series = 0x71A7E63u + high_product(series, z);
    series = 0x1EBFC3D9u + high_product(series, z);
    series = 0x58B90BE7u + high_product(series, z);
    const uint64_t value = uint64_t{0x80000000u} + high_product(series, z);
    return (value << 9) >> -(power >> 25);
  }

 private:
  OCTET_HOST_DEVICE static uint32_t high_product(uint32_t a, uint32_t b) {
    return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
  }
};

// The tokens that are kept: those with a greater key, and the first `ties` of those with this key. {}: all.
struct TokenCut {
  uint32_t key = 0;
  uint32_t ties = 0;
};

// The cut where a sum over the likeliest tokens reaches `target`: `above` is the sum of all keys greater than `key`, and
// `one` what each token with this key adds.
OCTET_HOST_DEVICE inline TokenCut cut_at(uint32_t key, uint64_t above, uint64_t one, uint64_t target) {
  return {key, static_cast<uint32_t>((target - above + one - 1) / one)};
}

// The least sum of weights that top_p keeps of `total`: 1 to total.
OCTET_HOST_DEVICE inline uint64_t top_p_target(uint64_t total, double top_p) {
  const double target = ceil(top_p * static_cast<double>(static_cast<int64_t>(total)));
  if (!(target >= 1.0)) return 1;
  if (target >= static_cast<double>(static_cast<int64_t>(total))) return total;
  return static_cast<uint64_t>(target);
}

// The token is drawn whose weight, added to those of all kept tokens before it, exceeds this: total * uniform, rounded
// down.
OCTET_HOST_DEVICE inline uint64_t drawn_place(uint64_t total, float uniform) {
  const auto turns = static_cast<uint32_t>(uniform * 0x1p24f);
  const uint64_t u = turns < 0xFFFFFFu ? turns : 0xFFFFFFu;
  return (total >> 24) * u + (((total & 0xFFFFFFu) * u) >> 24);
}

}  // namespace octet
