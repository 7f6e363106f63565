// Every rank has some rows of a matrix. What quantize() and AdamW make of them has the bits of the whole matrix.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/philox.h"
#include "ops/device.h"
#include "ops/stochastic.h"
#include "tensor/split_fp32.h"

namespace octet {
namespace {

struct Share {
  int64_t begin, end;
  int64_t rows() const { return end - begin; }
};

// Cuts at multiples of `unit`: shares of one unit, without rows, of several units and one that ends anywhere.
std::vector<Share> cut(int64_t rows, int64_t unit) {
  const int64_t middle = rows / unit * 2 / 3 * unit;
  return {{0, unit}, {unit, unit}, {unit, middle}, {middle, rows}};
}

Tensor host(std::vector<uint8_t>& bytes, DType dtype, Shape shape, uint8_t fill = 0xA5) {
  bytes.assign(static_cast<size_t>(shape.numel()) * size_of(dtype), fill);
  return {bytes.data(), dtype, shape};
}

// A matrix in FP8 and its slot. A whole one has both copies.
struct Fp8Matrix {
  Fp8Matrix(int64_t rows, int64_t cols, const QuantizeRule& rule, bool with_colwise) {
    fp8 = Quantized(rule);
    fp8.slot = &slot;
    slot.scale_rowwise = 37.5f, slot.inverse_rowwise = 1.0f / 37.5f;
    slot.scale_colwise = 12.25f, slot.inverse_colwise = 1.0f / 12.25f;
    fp8.rowwise = copy(codes, scales, rule.format_rowwise, rows, cols);
    if (with_colwise) fp8.colwise = copy(codes_colwise, scales_colwise, rule.format_colwise, cols, rows);
  }
  QuantizedMatrix copy(std::vector<uint8_t>& to, std::vector<uint8_t>& to_scales, DType format, int64_t rows,
                       int64_t depth) const {
    const Granularity granularity = fp8.rule().granularity;
    QuantizedMatrix result;
    result.codes = host(to, format, {rows, depth});
    result.granularity = granularity;
    if (granularity == Granularity::Tensor) return result;
    const bool tiles = granularity == Granularity::Block128;
    result.scales = host(to_scales, granularity == Granularity::Row32 ? DType::E8M0 : DType::F32,
                         {tiles ? div_up(rows, 128) : rows, div_up(depth, block_depth(granularity))});
    return result;
  }
  // The rows of the rowwise copy, in its memory, with a slot of their own. A rank without rows has no colwise copy.
  Quantized share(const Share& part, ScaleSlot& own, std::vector<uint8_t>& colwise,
                  std::vector<uint8_t>& colwise_scales) const {
    const int64_t cols = fp8.rowwise.codes.cols();
    Quantized result = fp8;
    result.slot = &own;
    result.colwise = {};
    result.rowwise.codes = fp8.rowwise.codes.row_range(part.begin, part.rows());
    const Granularity granularity = fp8.rule().granularity;
    if (granularity == Granularity::Block128) {
      result.rowwise.scales = fp8.rowwise.scales.row_range(part.begin / 128, div_up(part.rows(), 128));
    } else if (granularity != Granularity::Tensor) {
      result.rowwise.scales = fp8.rowwise.scales.row_range(part.begin, part.rows());
    }
    if (granularity == Granularity::Row32 && part.rows() > 0)
      result.colwise = copy(colwise, colwise_scales, fp8.rule().format_colwise, cols, part.rows());
    return result;
  }

  Quantized fp8;
  ScaleSlot slot;
  std::vector<uint8_t> codes, scales, codes_colwise, scales_colwise;
};

// Whether `part` (rows, width) has columns [begin, begin + width) of `whole` (rows, wide).
bool same_columns(const std::vector<uint8_t>& part, const std::vector<uint8_t>& whole, int64_t rows,
                  int64_t begin) {
  const auto width = std::ssize(part) / rows, wide = std::ssize(whole) / rows;
  for (int64_t r = 0; r < rows; ++r) {
    if (!std::equal(part.begin() + r * width, part.begin() + (r + 1) * width,
                    whole.begin() + r * wide + begin))
      return false;
  }
  return true;
}

struct RuleCase {
  QuantizeRule rule;
  int64_t unit;  // of rows
};
std::vector<RuleCase> rule_cases() {
  std::vector<RuleCase> result;
  for (const auto& [row, col] : {std::pair{DType::E4M3, DType::E4M3}, std::pair{DType::E4M3, DType::E5M2}}) {
    const QuantizeRule formats{.format_rowwise = row, .format_colwise = col};
    result.push_back({formats, 2});
    result.back().rule.delayed = true;
    for (const bool pow2 : {false, true}) {
      result.push_back({formats, 128});
      result.back().rule.granularity = Granularity::Block128;
      result.back().rule.pow2_scales = pow2;
    }
    result.push_back({formats, 32});
    result.back().rule.granularity = Granularity::Row32;
  }
  return result;
}

// Magnitudes over many powers of two.
float spread_value(uint64_t seed, size_t i) {
  return std::ldexp(Philox(seed).normal(i), static_cast<int>(Philox(seed, 9).below(i / 40, 20)) - 10);
}

float larger(float a, float b) {
  return a > b ? a : b;
}

class RowShares : public testing::Test {
 protected:
  RowShares() : device(make_cpu_device(2)), workspace(1 << 20) {
    device->ops().set_workspace({workspace.data(), DType::U8, {std::ssize(workspace)}});
  }
  std::unique_ptr<Device> device;
  std::vector<uint8_t> workspace;
};

TEST_F(RowShares, QuantizeGivesTheBitsOfTheWhole) {
  for (const auto& [rule, unit] : rule_cases()) {
    for (const int64_t cols : {64, 300}) {
      for (const DType dtype : {DType::F32, DType::BF16}) {
        constexpr int64_t rows = 400;
        std::vector<uint8_t> memory;
        const Tensor dense = host(memory, dtype, {rows, cols});
        for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i) {
          if (dtype == DType::F32) dense.as<float>()[i] = spread_value(1, i);
          if (dtype == DType::BF16) dense.as<Bf16>()[i] = to_bf16(spread_value(1, i));
        }
        Fp8Matrix whole(rows, cols, rule, true), shared(rows, cols, rule, false);
        device->ops().quantize({.dense = dense, .fp8 = &whole.fp8});
        float amax = 0;
        for (const Share& part : cut(rows, unit)) {
          ScaleSlot slot = shared.slot;
          slot.amax_last = 99;
          std::vector<uint8_t> colwise, colwise_scales;
          Quantized fp8 = shared.share(part, slot, colwise, colwise_scales);
          device->ops().quantize({.dense = dense.row_range(part.begin, part.rows()), .fp8 = &fp8});
          amax = larger(amax, slot.amax);
          EXPECT_EQ(slot.amax_last, slot.amax);
          EXPECT_EQ(slot.scale_rowwise, 37.5f);
          EXPECT_EQ(slot.amax_last > 0.0f, part.rows() > 0);
          if (!fp8.colwise) continue;
          EXPECT_TRUE(same_columns(colwise, whole.codes_colwise, cols, part.begin)) << part.begin;
          EXPECT_TRUE(same_columns(colwise_scales, whole.scales_colwise, cols, part.begin / 32))
              << part.begin;
        }
        EXPECT_TRUE(shared.codes == whole.codes) << cols;
        EXPECT_TRUE(shared.scales == whole.scales) << cols;
        EXPECT_EQ(amax, whole.slot.amax);
        EXPECT_GT(amax, 0.0f);
      }
    }
  }
}

// Where formats are the same, the colwise copy is the transpose of the gathered rows, byte for byte.
TEST_F(RowShares, TheColwiseCopyIsTheTransposeOfTheRows) {
  for (const auto& [rule, unit] : rule_cases()) {
    if (rule.format_rowwise != rule.format_colwise || rule.granularity == Granularity::Row32) continue;
    constexpr int64_t rows = 400, cols = 300;
    std::vector<uint8_t> memory;
    const Tensor dense = host(memory, DType::F32, {rows, cols});
    for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i) dense.as<float>()[i] = spread_value(1, i);
    Fp8Matrix whole(rows, cols, rule, true), shared(rows, cols, rule, true);
    for (Fp8Matrix* x : {&whole, &shared}) x->slot.scale_colwise = x->slot.scale_rowwise;
    device->ops().quantize({.dense = dense, .fp8 = &whole.fp8});
    device->ops().transpose_fp8(shared.fp8.colwise, whole.fp8.rowwise);
    EXPECT_TRUE(shared.codes_colwise == whole.codes_colwise);
    EXPECT_TRUE(shared.scales_colwise == whole.scales_colwise);
  }
}

// ---- AdamW ----

struct OptimizerCase {
  DType weight = DType::BF16;
  RemainderKind remainder = RemainderKind::None;
  DType gradient = DType::F32, moments = DType::F32;
  const RuleCase* fp8 = nullptr;
};

// A parameter with everything the optimizer keeps, in rows.
struct ParameterState {
  ParameterState(int64_t rows, int64_t cols, const OptimizerCase& variant) {
    const auto add = [&](const char* name, DType dtype, int64_t width) {
      return tensors[name] = host(memory[name], dtype, {rows, width}, 0);
    };
    const auto fill = [&](const Tensor& x, uint64_t seed, float scale, bool magnitudes) {
      for (size_t i = 0; i < static_cast<size_t>(x.numel()); ++i) {
        const float value = scale * spread_value(seed, i);
        const float kept = magnitudes ? std::fabs(value) : value;
        if (x.dtype == DType::F32) x.as<float>()[i] = kept;
        if (x.dtype == DType::BF16) x.as<Bf16>()[i] = to_bf16(kept);
        if (x.dtype == DType::U8) x.as<uint8_t>()[i] = static_cast<uint8_t>(Philox(seed).below(i, 256));
        if (x.dtype == DType::U16) x.as<uint16_t>()[i] = static_cast<uint16_t>(Philox(seed).below(i, 65536));
        if (x.dtype == DType::E4M3) x.as<uint8_t>()[i] = static_cast<uint8_t>(1 + Philox(seed).below(i, 120));
      }
    };
    fill(add("weight", variant.weight, cols), 1, 1.0f, false);
    fill(add("gradient", variant.gradient, cols), 2, 0.01f, false);
    fill(add("m", variant.moments, cols), 3, 0.01f, false);
    fill(add("v", dtype_of_v(variant.moments), cols), 4, 0.001f, true);
    if (variant.remainder == RemainderKind::Exact) fill(add("remainder", DType::U16, cols), 5, 1.0f, false);
    if (variant.remainder == RemainderKind::Compact)
      fill(add("remainder", DType::U8, compact_row_bytes(cols)), 5, 1.0f, false);
    if (variant.moments == DType::E4M3) {
      fill(add("m_scales", DType::F32, div_up(cols, 128)), 6, 1e-3f, true);
      fill(add("v_scales", DType::F32, div_up(cols, 128)), 7, 1e-3f, true);
    }
  }
  AdamWParameter view(const Share& part, Quantized* fp8) const {
    const auto rows_of = [&](const char* name) {
      const auto found = tensors.find(name);
      return found == tensors.end() ? Tensor{} : found->second.row_range(part.begin, part.rows());
    };
    return {.weight = rows_of("weight"),
            .remainder = rows_of("remainder"),
            .gradient = rows_of("gradient"),
            .m = rows_of("m"),
            .v = rows_of("v"),
            .m_scales = rows_of("m_scales"),
            .v_scales = rows_of("v_scales"),
            .weight_decay = 0.1f,
            .stream = 77,
            .first_row = part.begin,
            .fp8 = fp8};
  }
  std::map<std::string, std::vector<uint8_t>> memory;
  std::map<std::string, Tensor> tensors;
};

std::vector<OptimizerCase> optimizer_cases(const std::vector<RuleCase>& rules) {
  std::vector<OptimizerCase> result;
  for (const DType moments : {DType::F32, DType::BF16, DType::E4M3}) {
    for (const DType gradient : {DType::F32, DType::BF16}) {
      if (gradient == DType::BF16 && moments == DType::F32) continue;
      result.push_back({.weight = DType::F32, .gradient = gradient, .moments = moments});
      for (const RemainderKind remainder :
           {RemainderKind::None, RemainderKind::Compact, RemainderKind::Exact}) {
        result.push_back({.remainder = remainder, .gradient = gradient, .moments = moments});
        for (const RuleCase& rule : rules) {
          result.push_back({.remainder = remainder, .gradient = gradient, .moments = moments, .fp8 = &rule});
        }
      }
    }
  }
  return result;
}

TEST_F(RowShares, AdamWGivesTheBitsOfTheWhole) {
  std::vector<RuleCase> rules = rule_cases();  // as weights have them: one format
  std::erase_if(rules, [](const RuleCase& x) { return x.rule.format_colwise != DType::E4M3; });
  for (const OptimizerCase& variant : optimizer_cases(rules)) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{300, 64}, {300, 137}}) {
      const int64_t unit = variant.fp8 ? variant.fp8->unit : 2;
      const std::string what =
          fmt::format("weight {}{}, gradient {}, moments {}, unit {}, cols {}", name_of(variant.weight),
                      variant.remainder == RemainderKind::Exact     ? " exact"
                      : variant.remainder == RemainderKind::Compact ? " compact"
                                                                    : "",
                      name_of(variant.gradient), name_of(variant.moments), unit, cols);
      const QuantizeRule rule = variant.fp8 ? variant.fp8->rule : QuantizeRule{};
      ParameterState whole(rows, cols, variant), shared(rows, cols, variant);
      const ParameterState before(rows, cols, variant);
      Fp8Matrix whole8(rows, cols, rule, true), shared8(rows, cols, rule, false);
      float clip[] = {3.0f, 0.7f}, amax = 0;
      std::vector<ScaleSlot> slots(cut(rows, unit).size(), shared8.slot);
      std::vector<std::vector<uint8_t>> colwise(slots.size()), colwise_scales(slots.size());
      for (int64_t step = 1; step <= 2; ++step) {
        const AdamWOptions options{.learning_rate = 3e-3f, .step = step, .seed = 5};
        const AdamWParameter all = whole.view({0, rows}, variant.fp8 ? &whole8.fp8 : nullptr);
        device->ops().adamw({&all, 1}, {clip, DType::F32, {2}}, options);
        size_t rank = 0;
        for (const Share& part : cut(rows, unit)) {
          Quantized fp8 = shared8.share(part, slots[rank], colwise[rank], colwise_scales[rank]);
          const AdamWParameter own = shared.view(part, variant.fp8 ? &fp8 : nullptr);
          device->ops().adamw({&own, 1}, {clip, DType::F32, {2}}, options);
          amax = larger(amax, slots[rank++].amax);
        }
      }
      for (const auto& [name, bytes] : whole.memory) {
        EXPECT_TRUE(bytes == shared.memory.at(name)) << name << ": " << what;
        EXPECT_EQ(bytes == before.memory.at(name), name == "gradient") << name << ": " << what;
      }
      if (!variant.fp8) continue;
      EXPECT_TRUE(whole8.codes == shared8.codes) << what;
      EXPECT_TRUE(whole8.scales == shared8.scales) << what;
      EXPECT_EQ(whole8.slot.amax, amax) << what;
      size_t rank = 0;
      for (const Share& part : cut(rows, unit)) {
        if (!colwise[rank].empty()) {
          EXPECT_TRUE(same_columns(colwise[rank], whole8.codes_colwise, cols, part.begin)) << what;
          EXPECT_TRUE(same_columns(colwise_scales[rank], whole8.scales_colwise, cols, part.begin / 32))
              << what;
        }
        ++rank;
      }
    }
  }
}

// Random bits belong to rows of the whole matrix: a share that is counted from 0 gets others.
TEST_F(RowShares, StochasticRoundingDependsOnTheFirstRow) {
  const OptimizerCase variant{.moments = DType::E4M3};
  ParameterState right(100, 64, variant), wrong(100, 64, variant);
  float clip[] = {3.0f, 0.7f};
  for (ParameterState* state : {&right, &wrong}) {
    AdamWParameter own = state->view({40, 100}, nullptr);
    if (state == &wrong) own.first_row = 0;
    device->ops().adamw({&own, 1}, {clip, DType::F32, {2}}, {.learning_rate = 3e-3f, .seed = 5});
  }
  EXPECT_FALSE(right.memory.at("weight") == wrong.memory.at("weight"));
  EXPECT_FALSE(right.memory.at("m") == wrong.memory.at("m"));
}

}  // namespace
}  // namespace octet
