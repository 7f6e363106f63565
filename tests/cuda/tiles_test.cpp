#include <algorithm>
#include <functional>

#include "cuda/fixture.h"

// Matrices so large that a block walks down several tiles and asks for the next one's rows before it has written this
// one. What each row must be is known from the same op on 128 rows at a time, where a block has one tile.

namespace octet::test {
namespace {

// 67 x 65 tiles, cut off in both directions: two for each of 16 blocks on 132 multiprocessors.
constexpr int64_t kRows = 8496, kCols = 8208, kTile = 128;
constexpr QuantizeRule kRule{.format_colwise = DType::E5M2, .delayed = true};
constexpr QuantizeRule kBlockRule{.granularity = Granularity::Row128};

class CudaTiles : public CudaTest {
 protected:
  // A million random values, over and over, in another place of every row.
  static std::vector<float> values(int64_t cols, uint64_t seed) {
    constexpr size_t kPeriod = 1'000'003;
    const auto some = normal_values(kPeriod, seed, 2.0f);
    std::vector<float> all(static_cast<size_t>(kRows * cols));
    for (size_t i = 0; i < all.size(); ++i) all[i] = some[i % kPeriod];
    return all;
  }
  Tensor random(int64_t cols, uint64_t seed) {
    return cuda->upload(DType::BF16, {kRows, cols}, values(cols, seed));
  }
  // Every fifth row has none.
  Tensor targets(int64_t vocab) {
    std::vector<int32_t> ids;
    for (int64_t r = 0; r < kRows; ++r)
      ids.push_back(r % 5 == 3 ? -1 : static_cast<int32_t>(r * 7919 % vocab));
    const Tensor result = cuda->tensor(DType::I32, {kRows, 1});
    (*cuda)->copy_to_device(result, ids.data());
    return result;
  }
  // `run(operand, first)` computes as many rows as operand.dense has, beginning with row `first` of its inputs.
  void check(int64_t cols, const std::function<void(const Operand&, int64_t)>& run) {
    check(cols, kRule, run);
    check(cols, kBlockRule, run);
  }
  void check(int64_t cols, const QuantizeRule& rule,
             const std::function<void(const Operand&, int64_t)>& run) {
    SCOPED_TRACE(describe(rule));
    const size_t mark = cuda->mark();
    Quantized fused = make_quantized(*cuda, kRows, cols, rule, kUsedSlot);
    Quantized separate = make_quantized(*cuda, kRows, cols, rule, kUsedSlot);
    const Tensor whole = cuda->tensor(DType::BF16, {kRows, cols}),
                 parts = cuda->tensor(DType::BF16, {kRows, cols});
    run({.dense = whole, .fp8 = &fused}, 0);
    for (int64_t first = 0; first < kRows; first += kTile)
      run({.dense = parts.row_range(first, std::min(kTile, kRows - first))}, first);
    const auto got = cuda->bytes(whole), expected = cuda->bytes(parts);
    const auto wrong = std::mismatch(got.begin(), got.end(), expected.begin()).first - got.begin();
    EXPECT_TRUE(got == expected) << "the first difference is in row " << wrong / 2 / cols << ", column "
                                 << wrong / 2 % cols;
    (*cuda)->ops().quantize({.dense = parts, .fp8 = &separate});
    expect_same(*cuda, fused, *cuda, separate, "FP8");
    // What training does: without the dense form.
    Quantized alone = make_quantized(*cuda, kRows, cols, rule, kUsedSlot);
    run({.dense = whole, .fp8 = &alone, .keep_dense = false}, 0);
    expect_same(*cuda, alone, *cuda, separate, "FP8 without the dense form");
    cuda->release(mark);
  }
};

TEST_F(CudaTiles, CastsHaveTheBitsOfTheCpu) {
  const auto all = values(kCols, 1);
  for (const QuantizeRule& rule : {kRule, kBlockRule, QuantizeRule{.granularity = Granularity::Block128}}) {
    const size_t marks[] = {cuda->mark(), cpu->mark()};
    std::vector<Quantized> results;
    for (Side* side : {cuda, cpu}) {
      results.push_back(make_quantized(*side, kRows, kCols, rule, kUsedSlot));
      (*side)->ops().quantize(
          {.dense = side->upload(DType::BF16, {kRows, kCols}, all), .fp8 = &results.back()});
    }
    expect_same(*cuda, results[0], *cpu, results[1], describe(rule));
    cuda->release(marks[0]);
    cpu->release(marks[1]);
  }
}

TEST_F(CudaTiles, Activations) {
  const Tensor x = random(kCols, 1), wide = random(2 * kCols, 2), dh = random(kCols, 3);
  check(kCols, [&](const Operand& h, int64_t first) {
    (*cuda)->ops().activation_forward(Activation::Gelu, h, x.row_range(first, h.dense.rows()));
  });
  check(2 * kCols, [&](const Operand& dx, int64_t first) {
    const int64_t rows = dx.dense.rows();
    (*cuda)->ops().activation_backward(Activation::SwiGlu, dx, dh.row_range(first, rows),
                                       wide.row_range(first, rows));
  });
}

// Both gradients are whole blocks: the op casts them itself.
TEST_F(CudaTiles, SwiGluOfWholeBlocks) {
  const int64_t inner = 4096;
  const Tensor wide = random(2 * inner, 2), dh = random(inner, 3);
  check(2 * inner, kBlockRule, [&](const Operand& dx, int64_t first) {
    const int64_t rows = dx.dense.rows();
    (*cuda)->ops().activation_backward(Activation::SwiGlu, dx, dh.row_range(first, rows),
                                       wide.row_range(first, rows));
  });
}

TEST_F(CudaTiles, GradientOfTheLossInPlace) {
  constexpr int64_t kVocab = kCols - 3;
  const Tensor logits = random(kCols, 1), loss = cuda->tensor(DType::F32, {kRows, 1});
  const Tensor targets = this->targets(kVocab), scale = cuda->upload(DType::F32, {1}, {0.25f});
  check(kCols, [&](const Operand& gradient, int64_t first) {
    const int64_t rows = gradient.dense.rows();
    (*cuda)->copy(gradient.dense, logits.row_range(first, rows));
    (*cuda)->ops().cross_entropy(gradient, {}, loss.row_range(first, rows), {}, {}, gradient.dense,
                                 targets.row_range(first, rows), {.vocab = kVocab, .gradient_scale = scale});
  });
}

// They are sums of integers, so the order in which tiles are added does not matter.
TEST_F(CudaTiles, CorrectionsOfTheGradientOfTheLoss) {
  constexpr int64_t kVocab = kCols - 3;
  const Tensor logits = random(kCols, 1), loss = cuda->tensor(DType::F32, {kRows, 1});
  const Tensor targets = this->targets(kVocab), scale = cuda->upload(DType::F32, {1}, {0.25f});
  const auto run = [&](const Tensor& corrections, int64_t first, int64_t rows) {
    const size_t mark = cuda->mark();
    Quantized fp8 = make_quantized(*cuda, rows, kCols, kRule, kUsedSlot);
    const Tensor gradient = cuda->tensor(DType::BF16, {rows, kCols});
    (*cuda)->copy(gradient, logits.row_range(first, rows));
    (*cuda)->ops().cross_entropy({.dense = gradient, .fp8 = &fp8}, corrections.row_range(first, rows),
                                 loss.row_range(first, rows), {}, {}, gradient,
                                 targets.row_range(first, rows), {.vocab = kVocab, .gradient_scale = scale});
    cuda->release(mark);
  };
  const Tensor whole = cuda->tensor(DType::F32, {kRows, 1}), parts = cuda->tensor(DType::F32, {kRows, 1});
  run(whole, 0, kRows);
  for (int64_t first = 0; first < kRows; first += kTile) run(parts, first, std::min(kTile, kRows - first));
  std::vector<float> got(kRows), expected(kRows);
  (*cuda)->copy_to_host(got.data(), whole);
  (*cuda)->copy_to_host(expected.data(), parts);
  EXPECT_EQ(got, expected);
  EXPECT_GT(std::ranges::count_if(got, [](float value) { return value != 0; }), kRows / 2);
}

TEST_F(CudaTiles, RopeInPlace) {
  // Half a head's columns are one of the op's: twice as many heads for as many tiles.
  const AttentionShape shape{.heads = 180, .kv_heads = 40, .head_dim = 64};
  const Tensor qkv = random(shape.qkv_width(), 1);
  std::vector<int32_t> places;
  for (int32_t r = 0; r < kRows; ++r) places.push_back(r % 77);
  const Tensor positions = cuda->tensor(DType::I32, {kRows, 1});
  (*cuda)->copy_to_device(positions, places.data());
  const Tensor table = cuda->upload(DType::F32, {77, shape.head_dim}, normal_values(77 * shape.head_dim, 2));
  check(shape.qkv_width(), [&](const Operand& dqkv, int64_t first) {
    const int64_t rows = dqkv.dense.rows();
    (*cuda)->copy(dqkv.dense, qkv.row_range(first, rows));
    (*cuda)->ops().rope_backward(dqkv, positions.row_range(first, rows), table, shape);
  });
}

}  // namespace
}  // namespace octet::test
