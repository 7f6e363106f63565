#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/philox.h"
#include "ops/device.h"
#include "tensor/split_fp32.h"

namespace octet {
namespace {

TEST(FillNormal, HoldsTheRoundedAndTheExactValues) {
  constexpr int64_t kCount = 10'000;
  std::vector<float> wide(kCount);
  std::vector<Bf16> narrow(kCount), alone(kCount);
  std::vector<uint16_t> remainder(kCount);
  const auto device = make_cpu_device(3);
  device->ops().fill_normal({wide.data(), DType::F32, {kCount}}, {}, 0.02f, 7, 9);
  device->ops().fill_normal({narrow.data(), DType::BF16, {kCount}}, {remainder.data(), DType::U16, {kCount}},
                            0.02f, 7, 9);
  device->ops().fill_normal({alone.data(), DType::BF16, {kCount}}, {}, 0.02f, 7, 9);
  double sum = 0, squares = 0;
  for (size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(wide[i], 0.02f * Philox(7, 9).normal(i));
    ASSERT_EQ(join_fp32(narrow[i].bits, remainder[i]), wide[i]);
    ASSERT_EQ(narrow[i].bits, alone[i].bits);
    sum += static_cast<double>(wide[i]);
    squares += static_cast<double>(wide[i]) * static_cast<double>(wide[i]);
  }
  EXPECT_NEAR(sum / kCount, 0, 1e-3);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 4e-4);
}

TEST(FillNormal, RoundsToCompactNumbers) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{100, 64}, {33, 77}, {1, 1}}) {
    const auto n = static_cast<size_t>(rows * cols);
    std::vector<Bf16> x(n);
    std::vector<uint8_t> pairs(static_cast<size_t>(rows * compact_row_bytes(cols)), 0xFF);
    const auto device = make_cpu_device(3);
    device->ops().fill_normal({x.data(), DType::BF16, {rows, cols}},
                              {pairs.data(), DType::U8, {rows, compact_row_bytes(cols)}}, 0.02f, 7, 9, 1000);
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float value = 0.02f * Philox(7, 9).normal(static_cast<uint64_t>(1000 + i));
      const uint32_t expected = compact_nearest(std::bit_cast<uint32_t>(value));
      const auto pair = static_cast<size_t>(i / cols * compact_row_bytes(cols) + i % cols / 2);
      ASSERT_EQ(x[static_cast<size_t>(i)].bits, split_high(expected));
      ASSERT_EQ(nibble_of(pairs[pair], i % cols), compact_nibble(expected)) << i;
    }
    if (cols % 2 == 1) {
      EXPECT_EQ(pairs.back() >> 4, 0) << "behind the last column";
    }
  }
}

// The written-out logarithm and cosine are the library's to the last bits of a double.
TEST(PhiloxNormal, IsBoxMuller) {
  for (uint64_t i = 0; i < 100'000; ++i) {
    const auto w = Philox(5).words(i);
    const long double u = (static_cast<long double>(w[0]) + 1.0L) * 0x1p-32L;
    const long double turn = static_cast<long double>(w[1]) * 0x1p-32L;
    const auto exact = static_cast<double>(std::sqrt(-2.0L * std::log(u)) *
                                           std::cos(2.0L * std::numbers::pi_v<long double> * turn));
    ASSERT_NEAR(static_cast<double>(Philox(5).normal(i)), exact, 0x1p-24 * std::fabs(exact) + 1e-15) << i;
  }
  EXPECT_EQ(detail::log_of_fraction(0x1p32), 0.0);
  EXPECT_EQ(detail::cos_turns(0), 1.0);
  EXPECT_EQ(detail::cos_turns(0x80000000u), -1.0);
  EXPECT_EQ(detail::cos_turns(0x40000000u), 0.0);
}

}  // namespace
}  // namespace octet
