#include "fixture.h"
#include "tensor/split_fp32.h"

namespace octet::test {
namespace {

using CudaRandom = CudaTest;

// Initial weights do not depend on the device: the arithmetic behind them is exact or rounded in one way only.
TEST_F(CudaRandom, NormalNumbersHaveTheBitsOfTheCpu) {
  constexpr int64_t kCount = 3'000'017;
  for (const uint64_t stream : {uint64_t{0}, uint64_t{0xCBF29CE484222325}}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      std::vector<std::vector<uint8_t>> values, remainders;
      for (Side* side : {cuda, cpu}) {
        const Tensor x = side->tensor(dtype, {kCount});
        const Tensor remainder = dtype == DType::BF16 ? side->tensor(DType::U16, {kCount}) : Tensor{};
        (*side)->ops().fill_normal(x, remainder, 0.02f, 1234567890123, stream);
        values.push_back(side->bytes(x));
        remainders.push_back(side->bytes(remainder));
      }
      EXPECT_TRUE(values[0] == values[1]) << name_of(dtype) << " of stream " << stream;
      EXPECT_TRUE(remainders[0] == remainders[1]) << "remainders of stream " << stream;
    }
  }
}

TEST_F(CudaRandom, CompactNumbersHaveTheBitsOfTheCpu) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1000, 768}, {333, 77}, {1, 1}}) {
    std::vector<std::vector<uint8_t>> values, remainders;
    for (Side* side : {cuda, cpu}) {
      const Tensor x = side->tensor(DType::BF16, {rows, cols});
      const Tensor remainder = side->tensor(DType::U8, {rows, compact_row_bytes(cols)});
      (*side)->ops().fill_normal(x, remainder, 0.02f, 1234567890123, 5, 17);
      values.push_back(side->bytes(x));
      remainders.push_back(side->bytes(remainder));
    }
    EXPECT_TRUE(values[0] == values[1]) << rows << " x " << cols;
    EXPECT_TRUE(remainders[0] == remainders[1]) << rows << " x " << cols;
  }
}

}  // namespace
}  // namespace octet::test
