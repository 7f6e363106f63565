#include "cuda/fixture.h"
#include "support/op_case.h"

// Norms at the widths of real models, with rows that fill no group, one group or several for each block.

namespace octet::test {
namespace {

struct Size {
  int64_t rows, width;
};
// 1600 leaves lanes without columns; 5120 is the widest row for the fast kernels. The many rows are so many that blocks
// take more than two groups.
constexpr Size kSizes[] = {{1, 768},   {3, 1024},    {31, 768},   {33, 1280}, {64, 2048},
                           {75, 1600}, {37, 3072},   {130, 4096}, {29, 5120}, {66, 5120},
                           {20, 6144}, {1100, 5120}, {40000, 64}};

struct Result {
  std::string name;
  DType dtype;
  std::vector<uint8_t> bytes;
};

// Forward and backward. The residual is written over x where there is a delta.
std::vector<Result> run_norm(Side& side, NormKind kind, Size size, bool has_delta) {
  const auto [rows, width] = size;
  const DType bf16 = DType::BF16, f32 = DType::F32;
  const Shape shape{rows, width};
  const int64_t count = rows * width;
  const bool layer_norm = kind == NormKind::LayerNorm;
  std::vector<float> gain_values = normal_values(width, 3, 0.2f);
  for (float& value : gain_values) value += 1.0f;
  const size_t mark = side.mark();
  const Tensor x = side.upload(bf16, shape, normal_values(count, 1));
  const Tensor delta = has_delta ? side.upload(bf16, shape, normal_values(count, 2)) : Tensor{};
  const Tensor gain = side.upload(bf16, {width}, gain_values);
  const Tensor bias = layer_norm ? side.upload(bf16, {width}, normal_values(width, 4)) : Tensor{};
  const Tensor y = side.tensor(bf16, shape);
  const Tensor mean = layer_norm ? side.tensor(f32, {rows}) : Tensor{};
  const Tensor inv = side.tensor(f32, {rows});
  side->ops().norm_forward(kind, {.dense = y}, has_delta ? x : Tensor{}, mean, inv, x, delta, gain, bias,
                           1e-5f);

  const Tensor dy = side.upload(bf16, shape, normal_values(count, 5));
  const Tensor dresidual = side.upload(bf16, shape, normal_values(count, 6));
  const Tensor dgain = side.upload(f32, {width}, normal_values(width, 7));
  const Tensor dbias = layer_norm ? side.upload(f32, {width}, normal_values(width, 8)) : Tensor{};
  const Tensor column_sum = side.upload(f32, {width}, normal_values(width, 9));
  side->ops().norm_backward(kind, {.dense = dresidual, .column_sum = column_sum}, dgain, dbias, dy, x, mean,
                            inv, gain);
  std::vector<Result> results;
  const auto add = [&](const char* name, const Tensor& tensor) {
    if (tensor) results.push_back({name, tensor.dtype, side.bytes(tensor)});
  };
  add("y", y);
  add("residual", x);
  add("mean", mean);
  add("inv", inv);
  add("dresidual", dresidual);
  add("dgain", dgain);
  add("dbias", dbias);
  add("column_sum", column_sum);
  side.release(mark);
  return results;
}

std::string label_of(NormKind kind, Size size, bool has_delta) {
  return fmt::format("{} ({}, {}){}", kind == NormKind::LayerNorm ? "LayerNorm" : "RmsNorm", size.rows,
                     size.width, has_delta ? " with delta" : "");
}

using CudaNorm = CudaTest;

TEST_F(CudaNorm, AgreesWithCpu) {
  for (const Size size : kSizes) {
    for (const NormKind kind : {NormKind::RmsNorm, NormKind::LayerNorm}) {
      for (const bool has_delta : {false, true}) {
        const auto got = run_norm(*cuda, kind, size, has_delta),
                   expected = run_norm(*cpu, kind, size, has_delta);
        for (size_t i = 0; i < got.size(); ++i) {
          // column_sum adds values that are rounded to bf16.
          const bool exact = got[i].dtype == DType::F32 && got[i].name != "column_sum";
          const auto line =
              static_cast<size_t>(got[i].bytes.size() > static_cast<size_t>(4 * size.width) ? size.width : 0);
          EXPECT_EQ(
              mismatch(to_doubles(got[i].dtype, got[i].bytes),
                       to_doubles(expected[i].dtype, expected[i].bytes), exact ? kSums : kBf16, 0, line),
              "")
              << label_of(kind, size, has_delta) << ' ' << got[i].name;
        }
      }
    }
  }
}

TEST_F(CudaNorm, SameBitsTwice) {
  for (const Size size : {Size{2000, 768}, Size{75, 1600}, Size{1100, 5120}}) {
    for (const NormKind kind : {NormKind::RmsNorm, NormKind::LayerNorm}) {
      const auto first = run_norm(*cuda, kind, size, true), second = run_norm(*cuda, kind, size, true);
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_TRUE(first[i].bytes == second[i].bytes) << label_of(kind, size, true) << ' ' << first[i].name;
      }
    }
  }
}

// The first place where codes differ, and how many do.
void expect_same_codes(const std::vector<uint8_t>& got, const std::vector<uint8_t>& expected, int64_t line,
                       const std::string& label) {
  ASSERT_EQ(got.size(), expected.size()) << label;
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i] && wrong++ == 0) first = i;
  }
  const auto w = static_cast<size_t>(line);
  EXPECT_EQ(wrong, 0u) << label << ": the first at line " << first / w << ", place " << first % w << ": "
                       << int{got[first]} << " instead of " << int{expected[first]};
}

// FP8 in both forms where every block takes several groups of rows, with codes made once and twice.
TEST_F(CudaNorm, FusedCodesOfManyRows) {
  const Size size{8496, 2112};
  const auto [rows, width] = size;
  const int64_t count = rows * width;
  const Shape shape{rows, width};
  const DType bf16 = DType::BF16;
  const auto before = normal_values(count, 5);
  const Tensor x = cuda->upload(bf16, shape, normal_values(count, 1)),
               gain = cuda->upload(bf16, {width}, normal_values(width, 2));
  const Tensor dy = cuda->upload(bf16, shape, normal_values(count, 3));
  const Tensor residual = cuda->tensor(bf16, shape), inv = cuda->tensor(DType::F32, {rows});
  const Tensor mean = cuda->tensor(DType::F32, {rows}), dgain = cuda->tensor(DType::F32, {width});
  const QuantizeRule rule{.format_rowwise = DType::E4M3, .format_colwise = DType::E4M3, .delayed = true};
  for (const NormKind kind : {NormKind::RmsNorm, NormKind::LayerNorm}) {
    for (const bool once : {true, false}) {
      for (const bool backward : {false, true}) {
        const std::string label = fmt::format("{} {}, codes made {}", label_of(kind, size, true),
                                              backward ? "backward" : "forward", once ? "once" : "twice");
        const size_t mark = cuda->mark();
        const ScaleSlot& slot = once ? kEqualSlot : kUsedSlot;
        Quantized fused = make_quantized(*cuda, rows, width, rule, slot);
        Quantized separate = make_quantized(*cuda, rows, width, rule, slot);
        const auto run = [&](Quantized* fp8) {
          const Tensor dense = cuda->upload(bf16, shape, before);
          const Operand operand{.dense = dense, .fp8 = fp8};
          if (backward) {
            (*cuda)->ops().norm_backward(kind, operand, dgain, {}, dy, residual, mean, inv, gain);
          } else {
            (*cuda)->ops().norm_forward(kind, operand, residual, mean, inv, x, dy, gain, {}, 1e-5f);
          }
          return dense;
        };
        const Tensor dense = run(&fused), plain = run(nullptr);
        (*cuda)->ops().quantize({.dense = plain, .fp8 = &separate});
        EXPECT_TRUE(cuda->bytes(dense) == cuda->bytes(plain)) << label << ": dense";
        expect_same_codes(cuda->bytes(fused.rowwise.codes), cuda->bytes(separate.rowwise.codes), width,
                          label + ", rowwise");
        expect_same_codes(cuda->bytes(fused.colwise.codes), cuda->bytes(separate.colwise.codes), rows,
                          label + ", colwise");
        EXPECT_EQ(cuda->value(fused.slot).amax_last, cuda->value(separate.slot).amax_last) << label;
        cuda->release(mark);
      }
    }
  }
}

}  // namespace
}  // namespace octet::test
