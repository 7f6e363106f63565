#include <gtest/gtest.h>
#include <pthread.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/philox.h"
#include "ops/device.h"

namespace octet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A tensor, its FP8 form and a backend, on the host.
struct Fixture {
  Fixture(int64_t rows, int64_t cols, QuantizeRule rule, DType dtype = DType::F32, int threads = 2)
      : device(make_cpu_device(threads)), values(static_cast<size_t>(rows * cols)), shape{rows, cols} {
    workspace.resize(1 << 21);
    device->ops().set_workspace({workspace.data(), DType::U8, {static_cast<int64_t>(workspace.size())}});
    const auto make = [&](QuantizedMatrix& matrix, DType format, int64_t r, int64_t depth,
                          std::vector<uint8_t>& codes, std::vector<float>& scales,
                          std::vector<uint8_t>& exponents, const float* inverse) {
      codes.assign(static_cast<size_t>(r * depth), 0xAA);
      matrix.codes = {codes.data(), format, {r, depth}};
      matrix.granularity = rule.granularity;
      matrix.tensor_scale = inverse;
      if (rule.granularity == Granularity::Tensor) return;
      const int64_t blocks = div_up(depth, block_depth(rule.granularity));
      const int64_t scale_rows = rule.granularity == Granularity::Block128 ? div_up(r, 128) : r;
      scales.assign(static_cast<size_t>(scale_rows * blocks), kNan);
      exponents.assign(scales.size(), 0xFF);
      matrix.scales = rule.granularity == Granularity::Row32
                          ? Tensor{exponents.data(), DType::E8M0, {scale_rows, blocks}}
                          : Tensor{scales.data(), DType::F32, {scale_rows, blocks}};
    };
    fp8 = Quantized(rule);
    fp8.slot = &slot;
    fp8.stats_memory = &stats;
    make(fp8.rowwise, rule.format_rowwise, rows, cols, codes_row, scales_row, exponents_row,
         &slot.inverse_rowwise);
    make(fp8.colwise, rule.format_colwise, cols, rows, codes_col, scales_col, exponents_col,
         &slot.inverse_colwise);
    rounded.resize(values.size());
    operand.dense =
        dtype == DType::F32 ? Tensor{values.data(), dtype, shape} : Tensor{rounded.data(), dtype, shape};
    operand.fp8 = &fp8;
  }

  void fill(uint64_t seed, float scale = 1.0f) {
    for (size_t i = 0; i < values.size(); ++i) {
      // Magnitudes over many powers of two, so that blocks differ and some values flush.
      const float spread = std::exp2(static_cast<float>(Philox(seed, 9).below(i / 40, 20)) - 10.0f);
      values[i] = scale * spread * Philox(seed).normal(i);
      if (operand.dense.dtype == DType::BF16) values[i] = round_to_bf16(values[i]);
    }
  }
  void quantize() {
    for (size_t i = 0; i < values.size(); ++i) rounded[i] = to_bf16(values[i]);
    device->ops().quantize(operand);
  }
  float at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * shape[1] + c)]; }

  std::unique_ptr<Device> device;
  std::vector<float> values;
  std::vector<Bf16> rounded;
  Shape shape;
  ScaleSlot slot;
  QuantStats stats;
  Quantized fp8;
  Operand operand;
  std::vector<uint8_t> workspace, codes_row, codes_col, exponents_row, exponents_col;
  std::vector<float> scales_row, scales_col;
};

float naive_amax(const Fixture& f, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
  float amax = 0;
  for (int64_t r = r0; r < std::min(r1, f.shape[0]); ++r) {
    for (int64_t c = c0; c < std::min(c1, f.shape[1]); ++c) {
      const float x = std::fabs(f.at(r, c));
      if (std::isnan(x)) return kNan;
      amax = std::max(amax, x);
    }
  }
  return amax;
}

float naive_factor(float amax, DType format, bool pow2) {
  if (amax == 0 || !std::isfinite(amax)) return 1.0f;
  const float factor = std::max(amax / (format == DType::E4M3 ? 448.0f : 57344.0f), 0x1p-126f);
  if (!pow2) return factor;
  int exponent = 0;
  const float fraction = std::frexp(factor, &exponent);  // in [1/2, 1)
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

// Every code and scale of a block copy, element by element. `flip`: the colwise copy.
void expect_naive_blocks(const Fixture& f, bool flip) {
  const QuantizeRule& rule = f.fp8.rule();
  const QuantizedMatrix& copy = flip ? f.fp8.colwise : f.fp8.rowwise;
  const DType format = flip ? rule.format_colwise : rule.format_rowwise;
  const int64_t rows = copy.codes.rows(), depth = copy.codes.cols(), block = block_depth(rule.granularity);
  const int64_t block_rows = rule.granularity == Granularity::Block128 ? 128 : 1,
                blocks = div_up(depth, block);
  for (int64_t r0 = 0; r0 < rows; r0 += block_rows) {
    for (int64_t k0 = 0; k0 < depth; k0 += block) {
      const float amax = flip ? naive_amax(f, k0, k0 + block, r0, r0 + block_rows)
                              : naive_amax(f, r0, r0 + block_rows, k0, k0 + block);
      const float factor =
          naive_factor(amax, format, rule.pow2_scales || rule.granularity == Granularity::Row32);
      const int64_t place = r0 / block_rows * blocks + k0 / block;
      const float stored = rule.granularity == Granularity::Row32
                               ? from_e8m0(copy.scales.as<uint8_t>()[place])
                               : copy.scales.as<float>()[place];
      ASSERT_EQ(stored, factor) << "scale of (" << r0 << ", " << k0 << ")";
      for (int64_t r = r0; r < std::min(rows, r0 + block_rows); ++r) {
        for (int64_t k = k0; k < std::min(depth, k0 + block); ++k) {
          const float x = flip ? f.at(k, r) : f.at(r, k);
          ASSERT_EQ(copy.codes.as<uint8_t>()[r * depth + k], to_fp8(x * (1.0f / factor), format))
              << "code of (" << r << ", " << k << ")";
        }
      }
    }
  }
}

std::vector<QuantizeRule> block_rules() {
  std::vector<QuantizeRule> rules;
  for (const Granularity granularity : {Granularity::Row128, Granularity::Block128, Granularity::Row32}) {
    for (const bool pow2 : {false, true}) {
      for (const DType colwise : {DType::E4M3, DType::E5M2}) {
        rules.push_back({.format_rowwise = DType::E4M3,
                         .format_colwise = colwise,
                         .granularity = granularity,
                         .pow2_scales = pow2});
      }
    }
  }
  return rules;
}

#ifndef OCTET_SANITIZED  // instrumented code needs more
// Threads have stacks of that size where the limit is small (ulimit -s).
TEST(Quantize, ASmallStackIsEnough) {
  Fixture f(200, 200, {.granularity = Granularity::Block128}, DType::F32, 1);
  f.fill(1);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, size_t{64} << 10), 0);
  ASSERT_EQ(pthread_attr_setguardsize(&attributes, size_t{1} << 20), 0);  // more than what it may overrun
  const auto quantize = [](void* fixture) -> void* {
    static_cast<Fixture*>(fixture)->quantize();
    return nullptr;
  };
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, &attributes, quantize, &f), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_NE(f.codes_col[0], 0xAA);
}
#endif

TEST(Quantize, BlocksMatchTheNaiveRuleBitForBit) {
  for (const QuantizeRule& rule : block_rules()) {
    for (const Shape& shape : {Shape{1, 24}, Shape{17, 100}, Shape{150, 70}}) {
      for (const DType dtype : {DType::F32, DType::BF16}) {
        Fixture f(shape[0], shape[1], rule, dtype);
        f.fill(3);
        f.quantize();
        expect_naive_blocks(f, false);
        expect_naive_blocks(f, true);
        EXPECT_EQ(f.slot.amax_last, naive_amax(f, 0, shape[0], 0, shape[1]));
      }
    }
  }
}

TEST(Quantize, BlocksWithSpecialAmaxHaveFactorOne) {
  for (const QuantizeRule& rule : block_rules()) {
    Fixture f(4, 512, rule);
    // Blocks along a row: zeros; an Inf; a NaN; denormals.
    for (int64_t r = 0; r < 4; ++r) {
      float* row = f.values.data() + r * 512;
      row[130] = 3.0f;
      row[131] = -kInf;
      row[260] = 7.0f;
      row[261] = r == 0 ? kNan : -kNan;
      row[400] = std::numeric_limits<float>::denorm_min();
      row[401] = -0x1p-130f;
    }
    f.quantize();
    expect_naive_blocks(f, false);
    expect_naive_blocks(f, true);
    EXPECT_TRUE(std::isnan(f.slot.amax_last));
    for (const float scale : f.scales_row) {
      const bool fine = rule.granularity == Granularity::Row32 || (scale >= 0x1p-126f && scale <= 1.0f);
      EXPECT_TRUE(fine) << scale;
    }
    EXPECT_EQ(f.codes_row[131], 0xFE);  // -Inf saturates
    EXPECT_EQ(f.codes_row[261], 0x7F);
  }
}

QuantizeRule tensor_rule(DType rowwise, DType colwise, bool delayed = false, int margin = 0) {
  return {.format_rowwise = rowwise, .format_colwise = colwise, .margin = margin, .delayed = delayed};
}

TEST(Quantize, CurrentScalingSetsTheScaleFromThisTensor) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    Fixture f(150, 70, tensor_rule(DType::E4M3, DType::E5M2, false, 1), dtype);
    f.fill(5);
    f.slot.amax = 1.0f;
    f.quantize();
    const float amax = naive_amax(f, 0, 150, 0, 70);
    EXPECT_EQ(f.slot.amax_last, amax);
    EXPECT_EQ(f.slot.amax, std::max(amax, 1.0f));
    EXPECT_EQ(f.slot.scale_rowwise, 224.0f / amax);
    EXPECT_EQ(f.slot.scale_colwise, 28672.0f / amax);
    EXPECT_EQ(f.slot.inverse_rowwise, 1.0f / f.slot.scale_rowwise);
    for (int64_t r = 0; r < 150; ++r) {
      for (int64_t c = 0; c < 70; ++c) {
        ASSERT_EQ(f.codes_row[static_cast<size_t>(r * 70 + c)], to_e4m3(f.at(r, c) * f.slot.scale_rowwise));
        ASSERT_EQ(f.codes_col[static_cast<size_t>(c * 150 + r)], to_e5m2(f.at(r, c) * f.slot.scale_colwise));
      }
    }
  }
}

TEST(Quantize, ColwiseIsTheTransposeWhenTheFormatIsTheSame) {
  Fixture f(130, 300, tensor_rule(DType::E4M3, DType::E4M3));
  f.fill(6);
  f.quantize();
  for (size_t r = 0; r < 130; ++r) {
    for (size_t c = 0; c < 300; ++c) ASSERT_EQ(f.codes_row[r * 300 + c], f.codes_col[c * 130 + r]);
  }
}

TEST(Quantize, DelayedScalingLeavesTheScaleAndRecordsAmax) {
  Fixture f(17, 100, tensor_rule(DType::E4M3, DType::E4M3, true));
  f.fill(7);
  f.slot.scale_rowwise = 8.0f, f.slot.inverse_rowwise = 0.125f;
  f.slot.scale_colwise = 4.0f, f.slot.inverse_colwise = 0.25f;
  f.quantize();
  EXPECT_EQ(f.slot.scale_rowwise, 8.0f);
  EXPECT_EQ(f.slot.amax, naive_amax(f, 0, 17, 0, 100));
  EXPECT_EQ(f.codes_row[5], to_e4m3(f.values[5] * 8.0f));
  EXPECT_EQ(f.codes_col[17], to_e4m3(f.values[1] * 4.0f));
}

TEST(Quantize, BadAmaxKeepsThePreviousScaleAndDenormalsStayFinite) {
  for (const float bad : {0.0f, kInf, kNan}) {
    Fixture f(3, 24, tensor_rule(DType::E4M3, DType::E5M2));
    f.slot.scale_rowwise = 32.0f;
    f.values[7] = bad;
    f.quantize();
    EXPECT_EQ(f.slot.scale_rowwise, 32.0f);
    EXPECT_EQ(f.slot.inverse_rowwise, 1.0f / 32.0f);
  }
  Fixture f(3, 24, tensor_rule(DType::E4M3, DType::E5M2));
  f.values[7] = std::numeric_limits<float>::denorm_min();
  f.quantize();
  EXPECT_TRUE(std::isnormal(f.slot.scale_rowwise) && std::isnormal(f.slot.inverse_rowwise));
  EXPECT_TRUE(std::isnormal(f.slot.scale_colwise) && std::isnormal(f.slot.inverse_colwise));
}

TEST(Quantize, StatisticsAreExact) {
  Fixture f(2, 24, tensor_rule(DType::E4M3, DType::E4M3, true));
  f.slot.scale_rowwise = 1.0f, f.slot.inverse_rowwise = 1.0f;
  f.values[0] = 1000.0f;   // saturates: error 552
  f.values[1] = -460.0f;   // rounds to -448: not saturated, error 12
  f.values[2] = 0x1p-11f;  // below half the smallest subnormal: flushed
  f.values[3] = 1.0f;      // exact
  f.values[4] = 17.0f;     // a tie: 16
  f.values[5] = kInf;      // saturates, but leaves signal and noise alone
  f.quantize();
  f.quantize();  // counts add up
  EXPECT_EQ(f.stats.elements, 96);
  EXPECT_EQ(f.stats.saturated, 4);
  EXPECT_EQ(f.stats.flushed, 2);
  EXPECT_EQ(f.stats.signal, 2 * (1e6 + 460.0 * 460.0 + 0x1p-22 + 1.0 + 289.0));
  EXPECT_EQ(f.stats.noise, 2 * (552.0 * 552.0 + 144.0 + 0x1p-22 + 1.0));
  EXPECT_EQ(f.stats.amax, HUGE_VAL);
}

// Of a large tensor only every fourth row counts: the statistics are those of these rows alone.
TEST(Quantize, StatisticsOfALargeTensorAreOfEveryFourthRow) {
  const int64_t rows = 4100, cols = 4104, few = rows / 4;
  ASSERT_GE(rows * cols, kLargeForStats);
  Fixture large(rows, cols, {.delayed = true}), part(few, cols, {.delayed = true});
  for (size_t i = 0; i < large.values.size(); ++i)
    large.values[i] = static_cast<float>(i * 2654435761u % 4096) - 2000.0f;
  for (int64_t r = 0; r < few; ++r)
    std::copy_n(large.values.begin() + 4 * r * cols, cols, part.values.begin() + r * cols);
  large.device->ops().quantize(large.operand);
  part.device->ops().quantize(part.operand);
  EXPECT_EQ(large.stats.elements, static_cast<double>(few * cols));
  EXPECT_EQ(large.stats.elements, part.stats.elements);
  EXPECT_EQ(large.stats.saturated, part.stats.saturated);
  EXPECT_GT(large.stats.saturated, 0);
  EXPECT_EQ(large.stats.flushed, part.stats.flushed);
  EXPECT_NEAR(large.stats.signal / part.stats.signal, 1.0, 1e-12);
  EXPECT_NEAR(large.stats.noise / part.stats.noise, 1.0, 1e-12);
  EXPECT_EQ(large.stats.amax, static_cast<double>(large.slot.amax_last));
}

TEST(Quantize, TheLargestValueIsNotCountedAsSaturated) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const Granularity granularity : {Granularity::Tensor, Granularity::Row128, Granularity::Block128}) {
      Fixture f(3, 24, {.granularity = granularity});
      f.fill(seed);
      f.quantize();
      EXPECT_EQ(f.stats.saturated, 0);
    }
  }
}

TEST(Quantize, SameBitsForAnyNumberOfThreads) {
  for (const Granularity granularity :
       {Granularity::Tensor, Granularity::Row128, Granularity::Block128, Granularity::Row32}) {
    Fixture one(500, 300, {.granularity = granularity}, DType::F32, 1);
    Fixture three(500, 300, {.granularity = granularity}, DType::F32, 3);
    std::vector<float> sums_one(300), sums_three(300);
    one.operand.column_sum = {sums_one.data(), DType::F32, {300}};
    three.operand.column_sum = {sums_three.data(), DType::F32, {300}};
    for (Fixture* f : {&one, &three}) {
      f->fill(9);
      f->quantize();
    }
    EXPECT_EQ(one.codes_row, three.codes_row);
    EXPECT_EQ(one.codes_col, three.codes_col);
    EXPECT_EQ(sums_one, sums_three);
    EXPECT_EQ(std::memcmp(&one.stats, &three.stats, sizeof(QuantStats)), 0);
    EXPECT_GT(one.stats.noise, 0);
  }
}

TEST(Quantize, FusedOutputsEqualASeparateQuantize) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    Fixture fused(17, 100, {.granularity = Granularity::Row128}, dtype),
        apart(17, 100, fused.fp8.rule(), dtype);
    fused.fill(2);
    std::vector<float> input(fused.values);
    std::vector<Bf16> input_rounded;
    for (const float x : input) input_rounded.push_back(to_bf16(x));
    const Tensor x = dtype == DType::F32 ? Tensor{input.data(), dtype, {17, 100}}
                                         : Tensor{input_rounded.data(), dtype, {17, 100}};
    fused.device->ops().activation_forward(Activation::Gelu, fused.operand, x);
    Operand dense = apart.operand;
    dense.fp8 = nullptr;
    apart.device->ops().activation_forward(Activation::Gelu, dense, x);
    apart.device->ops().quantize(apart.operand);
    EXPECT_EQ(fused.codes_row, apart.codes_row);
    EXPECT_EQ(fused.codes_col, apart.codes_col);
    EXPECT_EQ(fused.scales_row, apart.scales_row);
  }
}

TEST(Quantize, TheGradientOfTheLossEqualsASeparateQuantize) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const QuantizeRule& rule :
         {QuantizeRule{.delayed = true}, QuantizeRule{.format_rowwise = DType::E5M2},
          QuantizeRule{.granularity = Granularity::Row128}}) {
      Fixture fused(17, 104, rule, dtype), apart(17, 104, rule, dtype);
      const int64_t rows = 17, vocab = 100;
      std::vector<int32_t> ids(17);
      for (int32_t r = 0; r < 17; ++r) ids[static_cast<size_t>(r)] = r % 5 == 3 ? -1 : 5 * r;
      std::vector<float> losses(17);
      const Tensor targets{ids.data(), DType::I32, {rows}}, loss{losses.data(), DType::F32, {rows}};
      float scale = 0.25f;
      const LossOptions options{.vocab = vocab, .gradient_scale = {&scale, DType::F32, {1}}};
      for (Fixture* f : {&fused, &apart}) {
        for (size_t i = 0; i < f->values.size(); ++i) {
          f->values[i] = round_to_bf16(3.0f * Philox(4).normal(i));
          f->rounded[i] = to_bf16(f->values[i]);
        }
      }
      // The fused gradient beside the logits, the other in their place.
      std::vector<float> gradient(fused.values.size());
      std::vector<Bf16> gradient_rounded(fused.values.size());
      Operand beside = fused.operand;
      beside.dense.data = dtype == DType::F32 ? static_cast<void*>(gradient.data()) : gradient_rounded.data();
      fused.device->ops().cross_entropy(beside, {}, loss, {}, {}, fused.operand.dense, targets, options);
      const Tensor in_place = apart.operand.dense;
      apart.device->ops().cross_entropy({.dense = in_place}, {}, loss, {}, {}, in_place, targets, options);
      apart.device->ops().quantize(apart.operand);
      EXPECT_EQ(std::memcmp(beside.dense.data, in_place.data, static_cast<size_t>(in_place.bytes())), 0);
      EXPECT_EQ(fused.codes_row, apart.codes_row);
      EXPECT_EQ(fused.codes_col, apart.codes_col);
      EXPECT_EQ(fused.slot.amax, apart.slot.amax);
      EXPECT_EQ(fused.slot.scale_rowwise, apart.slot.scale_rowwise);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < 104; ++c) {
          if (ids[static_cast<size_t>(r)] >= 0 && c < vocab) continue;
          EXPECT_EQ(fused.codes_row[static_cast<size_t>(r * 104 + c)], 0) << r << ", " << c;
        }
      }
    }
  }
}

TEST(GemmFp8, EqualsTheProductOfDequantisedValues) {
  for (const Granularity granularity :
       {Granularity::Tensor, Granularity::Row128, Granularity::Block128, Granularity::Row32}) {
    for (const DType a_format : {DType::E4M3, DType::E5M2}) {
      const int64_t m = 70, n = 33, k = 300;
      Fixture a(m, k, {.format_rowwise = a_format, .granularity = granularity});
      Fixture b(n, k, {.granularity = granularity});
      a.fill(1), b.fill(2);
      a.quantize(), b.quantize();
      std::vector<float> c(static_cast<size_t>(m * n), kNan), bias(static_cast<size_t>(n), 0.5f);
      GemmOptions options;
      options.bias = {bias.data(), DType::F32, {n}};
      a.device->ops().gemm_fp8(Tensor{c.data(), DType::F32, {m, n}}, a.fp8.rowwise, b.fp8.rowwise, options);
      const auto value = [](const Fixture& f, int64_t r, int64_t i) {
        const QuantizedMatrix& q = f.fp8.rowwise;
        const int64_t depth = q.codes.cols(), blocks = div_up(depth, block_depth(q.granularity));
        double scale = 0;
        if (q.granularity == Granularity::Tensor) scale = static_cast<double>(f.slot.inverse_rowwise);
        if (q.granularity == Granularity::Row128)
          scale = static_cast<double>(q.scales.as<float>()[r * blocks + i / 128]);
        if (q.granularity == Granularity::Block128) {
          scale = static_cast<double>(q.scales.as<float>()[r / 128 * blocks + i / 128]);
        }
        if (q.granularity == Granularity::Row32) {
          scale = static_cast<double>(from_e8m0(q.scales.as<uint8_t>()[r * blocks + i / 32]));
        }
        return static_cast<double>(from_fp8(q.codes.as<uint8_t>()[r * depth + i], q.codes.dtype)) * scale;
      };
      double difference = 0, size = 0;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0.5;
          for (int64_t p = 0; p < k; ++p) sum += value(a, i, p) * value(b, j, p);
          difference += std::pow(static_cast<double>(c[static_cast<size_t>(i * n + j)]) - sum, 2);
          size += sum * sum;
        }
      }
      EXPECT_LT(std::sqrt(difference / size), 1e-6);
    }
  }
}

TEST(GemmFp8, RefusesTwoE5m2Operands) {
  Fixture a(3, 24, {.format_rowwise = DType::E5M2});
  float c[9];
  EXPECT_THROW(a.device->ops().gemm_fp8(Tensor{c, DType::F32, {3, 3}}, a.fp8.rowwise, a.fp8.rowwise, {}),
               Error);
}

TEST(DelayedScales, RollTheHistoryAndIgnoreBadAmax) {
  const auto device = make_cpu_device(1);
  std::vector<ScaleSlot> slots(3);
  std::vector<float> history = {4, 8, 2, 1, 1, 1, 0, 0, 0};
  std::vector<uint8_t> formats;
  for (int i = 0; i < 3; ++i) {
    formats.push_back(static_cast<uint8_t>(DType::E4M3));
    formats.push_back(static_cast<uint8_t>(DType::E5M2));
    slots[static_cast<size_t>(i)].scale_rowwise = 5.0f;
  }
  slots[0].amax = 3.0f;
  slots[1].amax = kInf;
  slots[2].amax = kNan;
  DelayedScaling state{.slots = {slots.data(), DType::U8, {3 * 64}},
                       .history = {history.data(), DType::F32, {3, 3}},
                       .formats = {formats.data(), DType::U8, {3, 2}},
                       .count = 3,
                       .margin = 0,
                       .most_recent = false};
  device->ops().update_delayed_scales(state);
  EXPECT_EQ(history, (std::vector<float>{3, 4, 8, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(slots[0].scale_rowwise, 56.0f);
  EXPECT_EQ(slots[0].scale_colwise, 7168.0f);
  EXPECT_EQ(slots[0].inverse_rowwise, 1.0f / 56.0f);
  EXPECT_EQ(slots[0].amax, 0.0f);
  EXPECT_EQ(slots[1].scale_rowwise, 448.0f);
  EXPECT_EQ(slots[2].scale_rowwise, 5.0f);
  slots[0].amax = 2.0f;
  state.most_recent = true;
  state.margin = 2;
  device->ops().update_delayed_scales(state);
  EXPECT_EQ(slots[0].scale_rowwise, 56.0f);  // 448 / 4 / 2

  // Between two updates amax goes on being collected; a step without a finite norm is dropped.
  slots[0].amax = 100.0f;
  state.due = false;
  device->ops().update_delayed_scales(state);
  EXPECT_EQ(slots[0].amax, 100.0f);
  float norm[2] = {kInf, 1};
  state.due = true;
  state.norm = {norm, DType::F32, {2}};
  const std::vector<float> before = history;
  device->ops().update_delayed_scales(state);
  EXPECT_EQ(slots[0].amax, 0.0f);
  EXPECT_EQ(slots[0].scale_rowwise, 56.0f);
  EXPECT_EQ(history, before);
}

}  // namespace
}  // namespace octet
