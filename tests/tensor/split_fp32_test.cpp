#include "tensor/split_fp32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/philox.h"
#include "ops/stochastic.h"
#include "tensor/floats.h"

namespace octet {
namespace {

uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}
float value_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
float bf16_of(uint32_t bits) {
  return to_float(Bf16{split_high(bits)});
}
int64_t distance(uint32_t a, uint32_t b) {
  return std::abs(static_cast<int64_t>(a) - static_cast<int64_t>(b));
}

// About a million of all floats, of both signs, NaN and Inf among them.
template <class Check>
void for_many_floats(const Check& check) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) check(static_cast<uint32_t>(bits));
}

// All compact numbers, with those of Inf and NaN.
TEST(CompactWeights, EveryNumberComesBack) {
  for (uint32_t i = 0; i < (1u << 20); ++i) {
    const uint32_t wide = i << 12, nibble = compact_nibble(wide), high = uint32_t{split_high(wide)} << 16;
    ASSERT_EQ(join_nibble(high, nibble), wide);
    ASSERT_EQ(compact_nearest(wide), wide);
    ASSERT_LE(distance(wide, high), wide < 0xFFFF8000u ? int64_t{kSplitHalf} : int64_t{1} << 32);
  }
}

TEST(CompactWeights, EveryBf16WithEveryNibbleComesBack) {
  for (uint32_t high = 0; high < (1u << 16); ++high) {
    for (uint32_t nibble = 0; nibble < 16; ++nibble) {
      const uint32_t wide = join_nibble(high << 16, nibble);
      ASSERT_EQ(split_high(wide), high);
      ASSERT_EQ(compact_nibble(wide), nibble);
    }
    ASSERT_EQ(join_nibble(high << 16, 0), high << 16) << "a nibble of 0 is the bf16 itself";
  }
}

TEST(CompactWeights, NearestIsWithinHalfAStep) {
  for_many_floats([](uint32_t bits) {
    const uint32_t rounded = compact_nearest(bits);
    ASSERT_EQ(rounded & ~kCompactMask, 0u);
    ASSERT_EQ(rounded >> 31, bits >> 31);
    const bool large = (bits & 0x7FFFFFFF) >= kCompactLargest;  // only cut off
    ASSERT_LE(distance(rounded, bits), large ? kCompactStep - 1 : kCompactStep / 2) << bits;
  });
}

TEST(CompactWeights, StochasticRoundingGoesToANeighbour) {
  for_many_floats([](uint32_t bits) {
    if (std::isnan(value_of(bits))) return;
    for (const uint32_t random16 : {0u, 0xFFFFu, 0x8000u, 0x1234u}) {
      const uint32_t rounded = to_compact_stochastic(value_of(bits), random16) & kCompactMask;
      const uint32_t below = bits & kCompactMask;
      ASSERT_TRUE(rounded == below || (rounded == below + kCompactStep && bits != below)) << bits;
      ASSERT_EQ(rounded >> 31, bits >> 31);
    }
  });
}

// The mean over all random bits is the number itself, not only nearly.
TEST(CompactWeights, StochasticRoundingIsRightInTheMean) {
  for (uint64_t i = 0; i < 300; ++i) {
    const float x = std::ldexp(Philox(3).normal(i), static_cast<int>(i % 40) - 30);
    int64_t sum = 0;
    for (uint32_t random16 = 0; random16 < 0x10000; ++random16)
      sum += to_compact_stochastic(x, random16) & kCompactMask;
    ASSERT_EQ(sum, int64_t{bits_of(x)} << 16) << x;
  }
}

// What the optimizer stores is made of the sum without its mask.
TEST(CompactWeights, BitsBelowTheStepDoNotMatter) {
  for_many_floats([](uint32_t bits) {
    for (const uint32_t random16 : {0u, 0xFFFFu, 0x7531u}) {
      const uint32_t sum = to_compact_stochastic(value_of(bits), random16), masked = sum & kCompactMask;
      ASSERT_EQ(split_high(sum), split_high(masked));
      ASSERT_EQ(compact_nibble(sum), compact_nibble(masked));
    }
  });
}

TEST(CompactWeights, NoMoreNumbersBecomeInfThanExactOnes) {
  const uint32_t largest = bits_of(std::numeric_limits<float>::max());
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t magnitude = 0x7F7E0000; magnitude <= largest; ++magnitude) {
      const uint32_t bits = sign | magnitude;
      const bool exact_is_finite = std::isfinite(bf16_of(bits));
      for (const uint32_t rounded :
           {compact_nearest(bits), to_compact_stochastic(value_of(bits), 0xFFFF) & kCompactMask}) {
        ASSERT_TRUE(std::isfinite(value_of(rounded))) << bits;
        ASSERT_TRUE(std::isfinite(bf16_of(rounded)) || !exact_is_finite) << bits;
      }
    }
  }
}

TEST(CompactWeights, InfAndNanStay) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float x : {inf, -inf}) {
    EXPECT_EQ(compact_nearest(bits_of(x)), bits_of(x));
    EXPECT_EQ(to_compact_stochastic(x, 0xFFFF), bits_of(x));
  }
  for (const uint32_t nan : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u, 0xFFC00000u}) {  // a GPU's and a CPU's
    const uint32_t rounded = to_compact_stochastic(value_of(nan), 0xFFFF) & kCompactMask;
    const uint32_t joined = join_nibble(uint32_t{split_high(rounded)} << 16, compact_nibble(rounded));
    EXPECT_TRUE(std::isnan(value_of(joined))) << nan;
    EXPECT_TRUE(std::isnan(value_of(compact_nearest(nan)))) << nan;
  }
}

TEST(CompactWeights, ZerosKeepTheirSign) {
  for (const float zero : {0.0f, -0.0f}) {
    const uint32_t rounded = to_compact_stochastic(zero, 0xFFFF) & kCompactMask;
    EXPECT_EQ(rounded, bits_of(zero));
    EXPECT_EQ(compact_nibble(rounded), 0u);
  }
}

// The forms of whole tensors, in rows of even and odd width.
TEST(SplitWeights, AllKindsKeepWhatTheyPromise) {
  for (const int64_t cols : {1, 2, 7, 64}) {
    const int64_t rows = 5;
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < values.size(); ++i) values[i] = Philox(1).normal(i);
    for (const RemainderKind kind : {RemainderKind::None, RemainderKind::Compact, RemainderKind::Exact}) {
      std::vector<uint16_t> high(values.size());
      std::vector<std::byte> low(static_cast<size_t>(rows * remainder_row_bytes(kind, cols)),
                                 std::byte{0xAA});
      split_weights(values, cols, kind, high.data(), low.data());
      std::vector<float> joined(values.size());
      for (size_t i = 0; i < joined.size(); ++i) joined[i] = to_float(Bf16{high[i]});
      add_remainders(joined, cols, kind, low.data());
      for (size_t i = 0; i < joined.size(); ++i) {
        const uint32_t bits = bits_of(values[i]);
        const uint32_t expected = kind == RemainderKind::Exact     ? bits
                                  : kind == RemainderKind::Compact ? compact_nearest(bits)
                                                                   : uint32_t{split_high(bits)} << 16;
        ASSERT_EQ(bits_of(joined[i]), expected) << cols << " columns, element " << i;
      }
      if (kind != RemainderKind::Compact) continue;
      EXPECT_EQ(std::ssize(low), rows * ((cols + 1) / 2));
      for (int64_t row = 0; row < rows && cols % 2 == 1; ++row) {
        const std::byte last = low[static_cast<size_t>((row + 1) * ((cols + 1) / 2) - 1)];
        EXPECT_EQ(last >> 4, std::byte{0}) << "behind the last column";
      }
      // The layout: the even column of a pair in the low half.
      EXPECT_EQ(nibble_of(std::to_integer<uint8_t>(low[0]), 0),
                compact_nibble(compact_nearest(bits_of(values[0]))));
    }
  }
}

}  // namespace
}  // namespace octet
