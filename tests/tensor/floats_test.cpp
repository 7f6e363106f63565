#include "tensor/floats.h"
#include "support/places.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <sstream>
#include <vector>

namespace octet {
namespace {

// tests/golden/README.md says how these were made: ml_dtypes, torch and the GPU agree on them.
std::string golden(const std::string& name) {
  std::ifstream file(test::source_path("/tests/golden/fp8/") + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Format {
  const char* name;
  DType dtype;
};
constexpr std::array kFormats = {Format{"e4m3", DType::E4M3}, Format{"e5m2", DType::E5M2}};

TEST(Fp8, EveryBf16GivesTheGoldenCode) {
  for (const auto& [name, dtype] : kFormats) {
    const std::string codes = golden(std::string("bf16_to_") + name + ".bin");
    ASSERT_EQ(codes.size(), 65536u);
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float x = to_float(Bf16{static_cast<uint16_t>(bits)});
      ASSERT_EQ(to_fp8(x, dtype), static_cast<uint8_t>(codes[bits])) << name << " of bf16 bits " << bits;
    }
  }
}

void expect_golden_values(const std::string& name, float (*value_of)(uint8_t)) {
  const std::string bytes = golden(name);
  ASSERT_EQ(bytes.size(), 1024u);
  for (size_t code = 0; code < 256; ++code) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; ++i) bits |= uint32_t{static_cast<uint8_t>(bytes[4 * code + i])} << (8 * i);
    const float expected = std::bit_cast<float>(bits), got = value_of(static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << name << " " << code;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(got), bits) << name << " " << code;
    }
  }
}

TEST(Fp8, EveryCodeHasTheGoldenValue) {
  expect_golden_values("e4m3_to_f32.bin", from_e4m3);
  expect_golden_values("e5m2_to_f32.bin", from_e5m2);
  expect_golden_values("e8m0_to_f32.bin", [](uint8_t code) { return from_e8m0(code); });
  for (const auto& [name, dtype] : kFormats) {
    for (int code = 0; code < 256; ++code) {
      const float value = from_fp8(static_cast<uint8_t>(code), dtype), listed = fp8_values(dtype)[code];
      EXPECT_TRUE(listed == value || (std::isnan(listed) && std::isnan(value))) << name << " " << code;
    }
  }
}

uint64_t splitmix64(uint64_t n) {
  uint64_t z = (n + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// The inputs of scripts/make_fp8_goldens.py, which explains each block.
uint32_t block_input(uint32_t block, uint32_t i) {
  const uint64_t random = splitmix64(uint64_t{65536} * block + i);
  const auto r = static_cast<uint32_t>(random);
  const uint32_t sign = (i & 1) << 31;
  const uint32_t grid = (i >> 15) << 31 | (96 + ((i >> 9) & 63)) << 23 | ((i >> 4) & 31) << 18;
  if (block < 32) return r;
  if (block < 48) return (r & 0x807FFFFF) | static_cast<uint32_t>(107 + (random >> 32) % 40) << 23;
  if (block == 48) return grid + (i & 15) - 8;
  if (block < 51) {
    const uint32_t step = 1u << (8 * (block - 49) + ((i >> 1) & 7));
    return i & 1 ? grid - step : grid + step;
  }
  if (block < 57) return i << 16 | std::array<uint32_t, 6>{0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF}[block - 51];
  if (block == 57) return sign | (r & 0x007FFFFF);
  if (block == 58) return sign | 0x7F800000 | (i >> 1) << 8 | ((i >> 1) & 255);
  if (block < 63) {
    constexpr std::array<uint32_t, 4> kCentres = {0x43E00000, 0x43E80000, 0x47600000, 0x47700000};
    return sign | (kCentres[block - 59] - 16384 + (i >> 1));
  }
  return sign | (((i >> 1) & 1 ? 0x37000000u : 0x3A800000u) - 8192 + (i >> 2));
}

struct Fnv1a {
  uint64_t hash = 0xCBF29CE484222325;
  void add(uint8_t byte) { hash = (hash ^ byte) * 0x100000001B3; }
};

TEST(Fp8, FourMillionFloatsGiveTheGoldenHashes) {
  std::istringstream lines(golden("f32_blocks.txt"));
  for (uint32_t block = 0; block < 64; ++block) {
    uint32_t number = 0;
    uint64_t inputs = 0, e4m3 = 0, e5m2 = 0;
    ASSERT_TRUE(lines >> std::dec >> number >> std::hex >> inputs >> e4m3 >> e5m2);
    ASSERT_EQ(number, block);
    Fnv1a input_hash, e4m3_hash, e5m2_hash;
    for (uint32_t i = 0; i < 65536; ++i) {
      const uint32_t bits = block_input(block, i);
      for (int shift = 0; shift < 32; shift += 8) input_hash.add(static_cast<uint8_t>(bits >> shift));
      e4m3_hash.add(to_e4m3(std::bit_cast<float>(bits)));
      e5m2_hash.add(to_e5m2(std::bit_cast<float>(bits)));
    }
    EXPECT_EQ(input_hash.hash, inputs) << "the test's own inputs, block " << block;
    EXPECT_EQ(e4m3_hash.hash, e4m3) << "block " << block;
    EXPECT_EQ(e5m2_hash.hash, e5m2) << "block " << block;
  }
}

TEST(Fp8, CodesSurviveARoundTrip) {
  for (const auto& [name, dtype] : kFormats) {
    for (int code = 0; code < 256; ++code) {
      const float value = from_fp8(static_cast<uint8_t>(code), dtype);
      if (!std::isfinite(value)) continue;
      EXPECT_EQ(to_fp8(value, dtype), code) << name;
    }
  }
}

TEST(Bf16, RoundsToNearestEvenAndKeepsSpecialValues) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Bf16 x{static_cast<uint16_t>(bits)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(round_to_bf16(value)));
      continue;
    }
    ASSERT_EQ(to_bf16(value).bits, bits);
    if (std::isinf(value)) continue;
    // Below, at and above the middle between x and the next value away from zero.
    const uint32_t wide = bits << 16;
    EXPECT_EQ(to_bf16(std::bit_cast<float>(wide | 0x7FFF)).bits, bits);
    EXPECT_EQ(to_bf16(std::bit_cast<float>(wide | 0x8000)).bits, bits + (bits & 1));
    EXPECT_EQ(to_bf16(std::bit_cast<float>(wide | 0x8001)).bits, bits + 1);
  }
  EXPECT_TRUE(
      std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7F800001u)))));  // payload only in the low half
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
}

TEST(E8m0, RoundsUpAndClamps) {
  EXPECT_EQ(to_e8m0_round_up(1.0f), 127);
  EXPECT_EQ(to_e8m0_round_up(std::nextafter(1.0f, 2.0f)), 128);
  EXPECT_EQ(to_e8m0_round_up(std::nextafter(1.0f, 0.0f)), 127);
  EXPECT_EQ(to_e8m0_round_up(0x1p-127f), 0);
  EXPECT_EQ(to_e8m0_round_up(0x1.8p-127f), 1);
  EXPECT_EQ(to_e8m0_round_up(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(to_e8m0_round_up(std::numeric_limits<float>::max()), 254);
  for (int code = 0; code < 255; ++code) {
    const float value = from_e8m0(static_cast<uint8_t>(code));
    EXPECT_EQ(to_e8m0_round_up(value), code);
  }
}

TEST(AllFinite, FindsASingleBadNumberAnywhere) {
  for (const size_t count : {size_t{1}, size_t{3}, size_t{16384}, size_t{16385}, size_t{100'003}}) {
    std::vector<float> wide(count, -1.5f);
    std::vector<Bf16> narrow(count, to_bf16(-3e38f));
    const auto of_wide = [&] { return all_finite(std::as_bytes(std::span(wide)), DType::F32); };
    const auto of_narrow = [&] { return all_finite(std::as_bytes(std::span(narrow)), DType::BF16); };
    EXPECT_TRUE(of_wide() && of_narrow());
    for (const size_t place : {size_t{0}, count / 2, count - 1}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        wide[place] = bad;
        EXPECT_FALSE(of_wide()) << count << " " << place;
        narrow[place] = to_bf16(bad);
        EXPECT_FALSE(of_narrow()) << count << " " << place;
      }
      wide[place] = std::numeric_limits<float>::max();
      narrow[place] = Bf16{0x7F7F};
    }
  }
  EXPECT_TRUE(all_finite({}, DType::F32) && all_finite({}, DType::BF16));
}

}  // namespace
}  // namespace octet
