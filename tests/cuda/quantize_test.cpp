#include <bit>
#include <cmath>
#include <limits>

#include "cuda/fixture.h"

namespace octet::test {
namespace {

struct Size {
  int64_t rows, cols;
};
// Multiples of everything; of 8 but not of 16; of nothing; less than a tile; more than one.
constexpr Size kSizes[] = {{128, 128}, {256, 384}, {16, 8},   {1, 1},
                           {37, 53},   {130, 272}, {264, 72}, {64, 2056}};

std::vector<float> awkward_values(int64_t count, uint64_t seed, bool with_nan) {
  std::vector<float> values = normal_values(count, seed, 3.0f);
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const float special[] = {0.0f, -0.0f, 1e-30f, -1e-42f, 448.0f, -464.0f, 1e30f, -57344.0f, 61440.0f};
  for (size_t i = 0; i < std::size(special) && 11 * i + 3 < values.size(); ++i)
    values[11 * i + 3] = special[i];
  const float worst[] = {infinity, -infinity, nan, -nan};
  for (size_t i = 0; with_nan && i < std::size(worst) && 13 * i + 5 < values.size(); ++i)
    values[13 * i + 5] = worst[i];
  return values;
}

using CudaQuantize = CudaTest;

TEST_F(CudaQuantize, BitsOfEveryRuleAndSize) {
  for (const QuantizeRule& rule : all_rules()) {
    for (const Size size : kSizes) {
      for (const DType dtype : {DType::F32, DType::BF16}) {
        for (const bool with_nan : {false, true}) {
          const auto values = awkward_values(size.rows * size.cols, 1, with_nan);
          const size_t marks[] = {cuda->mark(), cpu->mark()};
          std::vector<Quantized> results;
          for (Side* side : {cuda, cpu}) {
            results.push_back(make_quantized(*side, size.rows, size.cols, rule, kUsedSlot));
            const Tensor x = side->upload(dtype, {size.rows, size.cols}, values);
            (*side)->ops().quantize({.dense = x, .fp8 = &results.back()});
          }
          expect_same(*cuda, results[0], *cpu, results[1],
                      fmt::format("{} {} ({}, {}) {}", describe(rule), name_of(dtype), size.rows, size.cols,
                                  with_nan ? "with NaN" : ""));
          cuda->release(marks[0]);
          cpu->release(marks[1]);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Frozen weights and evaluation need one copy alone.
TEST_F(CudaQuantize, OneCopyAlone) {
  for (const QuantizeRule& rule : all_rules()) {
    for (const bool rowwise : {true, false}) {
      for (const Size size : {Size{300, 272}, Size{130, 53}}) {
        const auto values = awkward_values(size.rows * size.cols, 2, true);
        const size_t mark = cuda->mark();
        Quantized both = make_quantized(*cuda, size.rows, size.cols, rule, kUsedSlot);
        Quantized alone = make_quantized(*cuda, size.rows, size.cols, rule, kUsedSlot);
        const QuantizedMatrix copy = rowwise ? alone.rowwise : alone.colwise;
        const QuantizedMatrix same = rowwise ? both.rowwise : both.colwise;
        (rowwise ? alone.colwise : alone.rowwise) = {};
        const Tensor x = cuda->upload(DType::BF16, {size.rows, size.cols}, values);
        (*cuda)->ops().quantize({.dense = x, .fp8 = &both});
        (*cuda)->ops().quantize({.dense = x, .fp8 = &alone});
        SCOPED_TRACE(fmt::format("{} ({}, {}) {}", describe(rule), size.rows, size.cols, rowwise));
        EXPECT_TRUE(cuda->bytes(copy.codes) == cuda->bytes(same.codes));
        if (copy.scales) {
          EXPECT_TRUE(cuda->bytes(copy.scales) == cuda->bytes(same.scales));
        }
        EXPECT_EQ(std::bit_cast<uint32_t>(cuda->value(alone.slot).amax_last),  // may be NaN
                  std::bit_cast<uint32_t>(cuda->value(both.slot).amax_last));
        cuda->release(mark);
      }
    }
  }
}

TEST_F(CudaQuantize, AmaxIsTheLargestSinceTheUpdateAndTheLast) {
  const QuantizeRule rule{.delayed = true};
  Quantized target = make_quantized(*cuda, 64, 64, rule);
  const Tensor large = cuda->upload(DType::BF16, {64, 64}, std::vector<float>(64 * 64, -8.0f));
  const Tensor small = cuda->upload(DType::BF16, {64, 64}, std::vector<float>(64 * 64, 2.0f));
  (*cuda)->ops().quantize({.dense = large, .fp8 = &target});
  (*cuda)->ops().quantize({.dense = small, .fp8 = &target});
  const ScaleSlot slot = cuda->value(target.slot);
  EXPECT_EQ(slot.amax, 8.0f);
  EXPECT_EQ(slot.amax_last, 2.0f);
  EXPECT_EQ(slot.scale_rowwise, 1.0f);
  EXPECT_EQ(slot.op_amax, 0u);
  EXPECT_EQ(slot.op_blocks, 0u);
}

// Only every fourth row of a large tensor counts. The colwise copy alone counts all.
TEST_F(CudaQuantize, StatisticsOfLargeTensors) {
  const int64_t rows = 4100, cols = 4104;
  ASSERT_GE(rows * cols, kLargeForStats);
  const auto values = normal_values(rows * cols, 5, 20.0f);
  for (const bool only_colwise : {false, true}) {
    for (const Granularity granularity : {Granularity::Tensor, Granularity::Row128, Granularity::Row32}) {
      std::vector<QuantStats> stats;
      for (Side* side : {cuda, cpu}) {
        const size_t mark = side->mark();
        Quantized target = make_quantized(*side, rows, cols, {.granularity = granularity}, kUsedSlot, true);
        if (only_colwise) target.rowwise = {};
        const Tensor x = side->upload(DType::BF16, {rows, cols}, values);
        (*side)->ops().quantize({.dense = x, .fp8 = &target});
        stats.push_back(side->value(target.stats()));
        side->release(mark);
      }
      SCOPED_TRACE(fmt::format("{} {}", only_colwise, static_cast<int>(granularity)));
      EXPECT_EQ(stats[0].elements, static_cast<double>(only_colwise ? rows * cols : rows / 4 * cols));
      EXPECT_EQ(stats[0].elements, stats[1].elements);
      EXPECT_EQ(stats[0].saturated, stats[1].saturated);
      EXPECT_EQ(stats[0].flushed, stats[1].flushed);
      EXPECT_EQ(stats[0].amax, stats[1].amax);
      EXPECT_NEAR(stats[0].signal, stats[1].signal, 1e-6 * stats[1].signal);
      EXPECT_NEAR(stats[0].noise, stats[1].noise, 1e-6 * stats[1].noise);
    }
  }
}

TEST_F(CudaQuantize, ColumnSumsAndStatistics) {
  for (const QuantizeRule& rule : all_rules()) {
    const int64_t rows = 300, cols = 200;
    const auto values = normal_values(rows * cols, 3, 20.0f);
    std::vector<QuantStats> stats;
    std::vector<std::vector<float>> sums;
    for (Side* side : {cuda, cpu}) {
      Quantized target = make_quantized(*side, rows, cols, rule, kUsedSlot, true);
      const Tensor x = side->upload(DType::BF16, {rows, cols}, values);
      const Tensor sum = side->upload(DType::F32, {cols}, std::vector<float>(cols, 1.0f));
      (*side)->ops().quantize({.dense = x, .fp8 = &target, .column_sum = sum});
      stats.push_back(side->value(target.stats()));
      sums.emplace_back(cols);
      (*side)->copy_to_host(sums.back().data(), sum);
    }
    SCOPED_TRACE(describe(rule));
    EXPECT_EQ(stats[0].elements, stats[1].elements);
    EXPECT_EQ(stats[0].saturated, stats[1].saturated);
    EXPECT_EQ(stats[0].flushed, stats[1].flushed);
    EXPECT_EQ(stats[0].amax, stats[1].amax);
    EXPECT_NEAR(stats[0].signal, stats[1].signal, 1e-6 * stats[1].signal);  // eight at a time in fp32
    EXPECT_NEAR(stats[0].noise, stats[1].noise, 1e-6 * stats[1].noise);
    for (size_t i = 0; i < sums[0].size(); ++i) EXPECT_NEAR(sums[0][i], sums[1][i], 1e-3f) << i;
  }
}

TEST_F(CudaQuantize, DelayedScales) {
  const int64_t count = 5;
  for (const int64_t length : {1, 4, 33, 70}) {
    for (const bool most_recent : {false, true}) {
      std::vector<std::vector<uint8_t>> slots, histories;
      for (Side* side : {cuda, cpu}) {
        std::vector<ScaleSlot> start(count, kUsedSlot);
        start[1].amax = 0.0f;
        start[2].amax = std::numeric_limits<float>::infinity();
        start[3].amax = std::numeric_limits<float>::quiet_NaN();
        start[4].amax = 1e-38f;
        Tensor slot_memory = side->tensor(DType::U8, {count * static_cast<int64_t>(sizeof(ScaleSlot))});
        (*side)->copy_to_device(slot_memory, start.data());
        auto past = normal_values(count * length, 9);
        for (float& value : past) value = std::fabs(value);
        const Tensor history = side->upload(DType::F32, {count, length}, past);
        const Tensor formats = side->tensor(DType::U8, {count, 2});
        std::vector<uint8_t> kinds;
        for (int64_t i = 0; i < count; ++i) {
          kinds.push_back(static_cast<uint8_t>(i % 2 ? DType::E5M2 : DType::E4M3));
          kinds.push_back(static_cast<uint8_t>(DType::E5M2));
        }
        (*side)->copy_to_device(formats, kinds.data());
        (*side)->ops().update_delayed_scales({slot_memory, history, formats, count, 1, most_recent});
        slots.push_back(side->bytes(slot_memory));
        histories.push_back(side->bytes(history));
      }
      EXPECT_EQ(slots[0], slots[1]) << length;
      EXPECT_EQ(histories[0], histories[1]) << length;
    }
  }
}

}  // namespace
}  // namespace octet::test
