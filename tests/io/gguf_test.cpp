#include "io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "support/error_of.h"

namespace octet {
namespace {

using testing::HasSubstr;

TEST(Gguf, Fp16RoundsToNearestEven) {
  EXPECT_EQ(to_fp16_bits(0.0f), 0x0000);
  EXPECT_EQ(to_fp16_bits(-0.0f), 0x8000);
  EXPECT_EQ(to_fp16_bits(1.0f), 0x3C00);
  EXPECT_EQ(to_fp16_bits(-2.0f), 0xC000);
  EXPECT_EQ(to_fp16_bits(65504.0f), 0x7BFF);
  EXPECT_EQ(to_fp16_bits(65519.9f), 0x7BFF);
  EXPECT_EQ(to_fp16_bits(65520.0f), 0x7C00);
  EXPECT_EQ(to_fp16_bits(1.0f + 0x1p-11f), 0x3C00);             // half way: to even
  EXPECT_EQ(to_fp16_bits(1.0f + 0x1.8p-10f), 0x3C02);           // half way: to even
  EXPECT_EQ(to_fp16_bits(1.0f + 0x1p-11f + 0x1p-20f), 0x3C01);  // above half way
  EXPECT_EQ(to_fp16_bits(0x1p-14f), 0x0400);                    // the smallest normal
  EXPECT_EQ(to_fp16_bits(0x1p-24f), 0x0001);                    // the smallest of all
  EXPECT_EQ(to_fp16_bits(0x1p-25f), 0x0000);
  EXPECT_EQ(to_fp16_bits(0x1.8p-24f), 0x0002);
  EXPECT_EQ(to_fp16_bits(0x1.ff8p-15f), 0x03FF);
  EXPECT_EQ(to_fp16_bits(0x1.ffcp-15f), 0x0400);  // rounds up into the normal range
  EXPECT_EQ(to_fp16_bits(INFINITY), 0x7C00);
  EXPECT_EQ(to_fp16_bits(NAN) & 0x7C00, 0x7C00);
  EXPECT_NE(to_fp16_bits(NAN) & 0x03FF, 0);
}

// Every fp16 number is itself.
TEST(Gguf, Fp16KeepsItsOwnNumbers) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const uint32_t exponent = bits >> 10, mantissa = bits & 0x3FF;
    const float value =
        exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                      : std::ldexp(static_cast<float>(0x400 | mantissa), static_cast<int>(exponent) - 25);
    ASSERT_EQ(to_fp16_bits(value), bits) << value;
    ASSERT_EQ(to_fp16_bits(-value), bits | 0x8000) << value;
  }
}

TEST(Gguf, F16RefusesWhatItCannotHold) {
  EXPECT_THAT(error_of([] {
                ggml_encode(GgmlType::F16, std::vector<float>{1.0f, 70000.0f});
              }),
              HasSubstr("a weight is 70000, but f16 ends at 65504; use bf16"));
}

TEST(Gguf, Q8HasAScalePerBlock) {
  std::vector<float> values(64);
  for (int i = 0; i < 32; ++i)
    values[static_cast<size_t>(i)] = static_cast<float>(i - 16) / 16.0f;  // largest 1
  const std::vector<std::byte> bytes = ggml_encode(GgmlType::Q8_0, values);
  ASSERT_EQ(bytes.size(), 68);
  uint16_t scale = 0;
  std::memcpy(&scale, bytes.data(), 2);
  EXPECT_EQ(scale, to_fp16_bits(1.0f / 127));
  EXPECT_EQ(static_cast<int8_t>(bytes[2]), -127);
  EXPECT_EQ(static_cast<int8_t>(bytes[2 + 16]), 0);
  EXPECT_EQ(static_cast<int8_t>(bytes[2 + 20]), 32);                   // 0.25 * 127 = 31.75
  for (size_t i = 34; i < 68; ++i) EXPECT_EQ(bytes[i], std::byte{0});  // a block of zeros
  EXPECT_THAT(error_of([] { ggml_encode(GgmlType::Q8_0, std::vector<float>(33)); }),
              HasSubstr("blocks of 32"));
}

struct Text : Sink {
  using Sink::append;
  void append(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

TEST(Gguf, Q8RefusesWeightsThatAreNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY, 1e7f}) {
    std::vector<float> values(64, 1.0f);
    values[40] = bad;
    EXPECT_THAT(error_of([&] { ggml_encode(GgmlType::Q8_0, values, "blk.3.ffn_up.weight"); }),
                HasSubstr("[gguf] blk.3.ffn_up.weight: a weight is "));
  }
}

TEST(Gguf, TheFileHasTheLayoutOfVersion3) {
  GgufWriter writer;
  writer.add("a", "xy");
  writer.add_count("b", 7);
  writer.add_tensor({.name = "t", .rows = 2, .columns = 3, .type = GgmlType::F32});
  writer.add_tensor({.name = "v", .columns = 2, .type = GgmlType::BF16});
  Text out;
  writer.write(out, [](size_t tensor, int64_t begin, int64_t rows) {
    if (tensor == 1) return std::vector<float>{1, 2};
    std::vector<float> values;
    for (int64_t i = 0; i < 3 * rows; ++i) values.push_back(static_cast<float>(3 * begin + i));
    return values;
  });
  using namespace std::string_literals;
  const std::string head =
      "GGUF\3\0\0\0\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"s  // 2 tensors, 2 keys
      "\1\0\0\0\0\0\0\0a\10\0\0\0\2\0\0\0\0\0\0\0xy"s  // a string
      "\1\0\0\0\0\0\0\0b\4\0\0\0\7\0\0\0"s             // a uint32
      "\1\0\0\0\0\0\0\0t\2\0\0\0\3\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"s  // columns first
      "\1\0\0\0\0\0\0\0v\1\0\0\0\2\0\0\0\0\0\0\0\36\0\0\0\40\0\0\0\0\0\0\0"s;               // offset 32
  ASSERT_EQ(out.text.substr(0, head.size()), head);
  const size_t data = (head.size() + 31) / 32 * 32;
  ASSERT_EQ(out.text.size(), data + 64);
  float last = 0;
  std::memcpy(&last, out.text.data() + data + 20, 4);
  EXPECT_EQ(last, 5.0f);
  EXPECT_EQ(out.text.substr(data + 32, 4), "\x80\x3f\x00\x40"s);
  EXPECT_EQ(writer.tensor_bytes(), 28);
}

}  // namespace
}  // namespace octet
