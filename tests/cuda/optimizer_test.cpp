#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>

#include "fixture.h"
#include "ops/stochastic.h"
#include "tensor/split_fp32.h"

namespace octet::test {
namespace {

using CudaAdamW = CudaTest;

struct Kind {
  DType weight;
  RemainderKind remainder;
  DType gradient;
  DType moments;
};

std::string describe(const Kind& kind) {
  return fmt::format("weight {}{}, gradient {}, moments {}", name_of(kind.weight),
                     kind.weight == DType::F32                  ? ""
                     : kind.remainder == RemainderKind::Exact   ? " exact"
                     : kind.remainder == RemainderKind::Compact ? " compact"
                                                                : " stochastic",
                     name_of(kind.gradient), name_of(kind.moments));
}

AdamWParameter make_parameter(Side& side, const Kind& kind, const Shape& shape, uint64_t seed) {
  AdamWParameter p;
  p.weight = side.upload(kind.weight, shape, normal_values(shape.numel(), seed));
  const auto zeros = [&](DType dtype, Shape of) {
    const Tensor x = side.tensor(dtype, of);
    side->zero(x);
    return x;
  };
  // A vector is a row, so its nibbles are one, too.
  if (kind.remainder == RemainderKind::Exact) p.remainder = zeros(DType::U16, shape);
  if (kind.remainder == RemainderKind::Compact)
    p.remainder = zeros(DType::U8, {p.weight.rows(), compact_row_bytes(p.weight.cols())});
  p.m = zeros(kind.moments, shape);
  p.v = zeros(dtype_of_v(kind.moments), shape);
  if (kind.moments == DType::E4M3) {
    const Shape scales{p.weight.rows(), div_up(p.weight.cols(), 128)};
    p.m_scales = zeros(DType::F32, scales);
    p.v_scales = zeros(DType::F32, scales);
  }
  p.weight_decay = 0.1f;
  return p;
}

// What a step changes. The last three are there with FP8 copies only.
constexpr const char* kStateNames[] = {"weight",        "remainder",     "m",   "v", "m scales", "v scales",
                                       "rowwise codes", "colwise codes", "slot"};
std::vector<std::vector<uint8_t>> state_of(Side& side, const AdamWParameter& p) {
  std::vector<std::vector<uint8_t>> result;
  for (const Tensor& x : {p.weight, p.remainder, p.m, p.v, p.m_scales, p.v_scales})
    result.push_back(side.bytes(x));
  if (p.fp8) {
    const Tensor slot{p.fp8->slot, DType::U8, {static_cast<int64_t>(sizeof(ScaleSlot))}};
    for (const Tensor& x : {p.fp8->rowwise.codes, p.fp8->colwise.codes, slot})
      result.push_back(side.bytes(x));
  }
  return result;
}

enum class Fp8Copies : uint8_t { None, One, Two };

// With one copy, the transposed one is absent.
Quantized make_copies(Side& side, Fp8Copies copies, int64_t rows, int64_t cols, const ScaleSlot& slot,
                      DType format = DType::E4M3) {
  Quantized made = make_quantized(
      side, rows, cols, {.format_rowwise = format, .format_colwise = format, .delayed = true}, slot);
  if (copies == Fp8Copies::One) made.colwise = {};
  return made;
}

// The state after a few steps.
std::vector<std::vector<uint8_t>> train(Side& side, const Kind& kind, int64_t rows, int64_t cols,
                                        Fp8Copies copies, DType format) {
  const Shape shape{rows, cols};
  AdamWParameter p = make_parameter(side, kind, shape, 1);
  p.stream = 77;
  Quantized fp8;
  if (copies != Fp8Copies::None) {
    fp8 = make_copies(side, copies, rows, cols, kEqualSlot, format);
    p.fp8 = &fp8;
  }
  const Tensor clip = side.upload(DType::F32, {2}, {3.0f, 0.7f});
  for (int64_t step = 1; step <= 4; ++step) {
    // Gradients over many powers of two (some so small that their squares are denormal or nothing, some large), and a
    // stretch of exact zeros.
    std::vector<float> gradient = normal_values(shape.numel(), 10 + static_cast<uint64_t>(step));
    for (size_t i = 0; i < gradient.size(); ++i) {
      const int exponent = i % 577 == 5  ? 75
                           : i % 41 == 7 ? 60 + static_cast<int>(i % 53)
                                         : static_cast<int>(i % 23);
      gradient[i] = i % 300 < 140 && i >= 600 ? 0.0f : std::ldexp(gradient[i], -exponent);
      if (i % 4099 == 3) gradient[i] = std::ldexp(1.5f, 62);
    }
    p.gradient = side.upload(kind.gradient, shape, gradient);
    side->ops().adamw(std::span(&p, 1), clip, {.learning_rate = 3e-3f, .step = step, .seed = 5});
  }
  return state_of(side, p);
}

// Where the first of the bytes that differ stands, and how many do.
std::string difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& expected) {
  if (got.size() != expected.size()) return fmt::format("{} bytes, expected {}", got.size(), expected.size());
  int64_t count = 0, first = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    if (count++ == 0) first = static_cast<int64_t>(i);
  }
  if (count == 0) return "";
  const auto at = static_cast<size_t>(first);
  return fmt::format("{} of {} bytes differ, first byte {}: {:#x}, expected {:#x}", count, got.size(), first,
                     got[at], expected[at]);
}

// Every kind of state has the CPU's bits, in rows that are whole vectors, whole blocks, and neither.
TEST_F(CudaAdamW, HasTheBitsOfTheCpu) {
  constexpr Kind kKinds[] = {
      {DType::F32, RemainderKind::None, DType::F32, DType::F32},
      {DType::F32, RemainderKind::None, DType::F32, DType::E4M3},
      {DType::BF16, RemainderKind::Exact, DType::F32, DType::F32},
      {DType::BF16, RemainderKind::Exact, DType::BF16, DType::BF16},
      {DType::BF16, RemainderKind::Exact, DType::BF16, DType::E4M3},
      {DType::BF16, RemainderKind::None, DType::BF16, DType::F32},
      {DType::BF16, RemainderKind::None, DType::F32, DType::BF16},
      {DType::BF16, RemainderKind::None, DType::BF16, DType::E4M3},
      {DType::BF16, RemainderKind::Exact, DType::F32, DType::BF16},
      {DType::BF16, RemainderKind::None, DType::F32, DType::E4M3},
      {DType::BF16, RemainderKind::Exact, DType::F32, DType::E4M3},
      {DType::BF16, RemainderKind::Compact, DType::F32, DType::F32},
      {DType::BF16, RemainderKind::Compact, DType::BF16, DType::F32},
      {DType::BF16, RemainderKind::Compact, DType::F32, DType::BF16},
      {DType::BF16, RemainderKind::Compact, DType::BF16, DType::BF16},
      {DType::BF16, RemainderKind::Compact, DType::F32, DType::E4M3},
      {DType::BF16, RemainderKind::Compact, DType::BF16, DType::E4M3},
  };
  constexpr std::pair<int64_t, int64_t> kSizes[] = {{1, 1},     {3, 200},   {130, 136}, {129, 77},
                                                    {256, 384}, {17, 1000}, {141, 640}};
  constexpr std::pair<Fp8Copies, DType> kCopies[] = {{Fp8Copies::None, DType::E4M3},
                                                     {Fp8Copies::One, DType::E4M3},
                                                     {Fp8Copies::Two, DType::E4M3},
                                                     {Fp8Copies::One, DType::E5M2},
                                                     {Fp8Copies::Two, DType::E5M2}};
  for (const Kind& kind : kKinds) {
    for (const auto& [rows, cols] : kSizes) {
      for (const auto& [copies, format] : kCopies) {
        // For the kernel, sizes with copies differ only in being whole tiles, having edges, or odd rows.
        if (copies != Fp8Copies::None && (rows < 128 || cols > 384)) continue;
        const size_t cuda_mark = cuda->mark(), cpu_mark = cpu->mark();
        const auto got = train(*cuda, kind, rows, cols, copies, format),
                   expected = train(*cpu, kind, rows, cols, copies, format);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(difference(got[i], expected[i]), "")
              << describe(kind) << " (" << rows << ", " << cols << "), " << static_cast<int>(copies)
              << " copies in " << name_of(format) << ": " << kStateNames[i];
        }
        cuda->release(cuda_mark);
        cpu->release(cpu_mark);
      }
    }
  }
}

// Compact weights next to Inf are never rounded up to it, and Inf stays as it is; their neighbours are rounded as ever.
TEST_F(CudaAdamW, TheLargestCompactWeightsHaveTheBitsOfTheCpu) {
  constexpr int64_t kRows = 128, kCols = 256;
  constexpr size_t kEvery = 37;  // a large one in about every fifth group of eight
  const float largest = std::bit_cast<float>(kCompactLargest & 0xFFFF0000u);
  std::vector<float> weights = normal_values(kRows * kCols, 1);
  std::vector<uint8_t> nibbles(weights.size() / 2, 0);
  for (size_t i = 0; i < weights.size(); i += kEvery) {
    weights[i] = std::copysign(i % 5 == 0 ? HUGE_VALF : largest, i % 2 == 0 ? 1.0f : -1.0f);
    if (i % 5 != 0) nibbles[i / 2] = pair_of_nibbles(i % 2 == 0 ? 7 : 0, i % 2 == 0 ? 0 : 7);
  }
  for (const DType moments : {DType::E4M3, DType::F32}) {
    for (const Fp8Copies copies : {Fp8Copies::None, Fp8Copies::One, Fp8Copies::Two}) {
      const auto update = [&](Side& side) {
        const Kind kind{DType::BF16, RemainderKind::Compact, DType::BF16, moments};
        AdamWParameter p = make_parameter(side, kind, {kRows, kCols}, 1);
        p.weight = side.upload(DType::BF16, {kRows, kCols}, weights);
        side->copy_to_device(p.remainder, nibbles.data());
        p.gradient = side.upload(DType::BF16, {kRows, kCols}, normal_values(kRows * kCols, 2));
        p.weight_decay = 0;
        Quantized fp8;
        if (copies != Fp8Copies::None) {
          fp8 = make_copies(side, copies, kRows, kCols, kEqualSlot);
          p.fp8 = &fp8;
        }
        const Tensor clip = side.upload(DType::F32, {2}, {3.0f, 0.7f});
        side->ops().adamw(std::span(&p, 1), clip, {.learning_rate = 3e-3f, .step = 1, .seed = 5});
        return state_of(side, p);
      };
      const auto got = update(*cuda), expected = update(*cpu);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(difference(got[i], expected[i]), "")
            << name_of(moments) << ", " << static_cast<int>(copies) << " FP8 copies: " << kStateNames[i];
      }
    }
  }
}

struct OneOfMany {
  Kind kind;
  Shape shape;
  bool fp8, equal_scales;
  float rate_scale;
};

// 213 of one kind and learning rate, more than the 192 that a launch takes, and others of every sort in between.
std::vector<OneOfMany> many_parameters() {
  constexpr Kind kMost{DType::BF16, RemainderKind::Exact, DType::BF16, DType::BF16};
  constexpr Kind kOthers[] = {{DType::BF16, RemainderKind::Exact, DType::BF16, DType::F32},
                              {DType::BF16, RemainderKind::Exact, DType::F32, DType::F32},
                              {DType::BF16, RemainderKind::None, DType::BF16, DType::E4M3},
                              {DType::BF16, RemainderKind::Exact, DType::BF16, DType::E4M3},
                              {DType::BF16, RemainderKind::None, DType::F32, DType::BF16},
                              {DType::F32, RemainderKind::None, DType::F32, DType::F32},
                              {DType::F32, RemainderKind::None, DType::F32, DType::E4M3},
                              {DType::BF16, RemainderKind::Compact, DType::BF16, DType::E4M3},
                              {DType::BF16, RemainderKind::Compact, DType::F32, DType::F32}};
  const Shape shapes[] = {{130, 136}, {64}, {5, 8}, {128, 128}, {1, 64}, {24, 264}, {8}, {16, 264}, {96, 16}};
  const Shape odd_shapes[] = {{5, 7}, {33, 77}, {3}};  // not whole vectors
  std::vector<OneOfMany> many;
  for (size_t i = 0; i < 320; ++i) {
    const bool other = i % 4 == 3, odd = i % 20 == 3;
    const Shape& shape =
        odd ? odd_shapes[i / 20 % std::size(odd_shapes)] : shapes[(5 * i + i / 28) % std::size(shapes)];
    many.push_back({.kind = other ? kOthers[i / 4 % std::size(kOthers)] : kMost,
                    .shape = shape,
                    .fp8 = shape.rank() == 2 && i % 3 != 1,
                    .equal_scales = i % 5 < 3,
                    .rate_scale = i % 6 == 5 ? 16.0f : 1.0f});
  }
  return many;
}

// Tiles find their parameter among all of a launch, and launches go on where one is full. Some parameters have a
// learning rate of their own.
TEST_F(CudaAdamW, UpdatesManyParametersInOneCall) {
  const std::vector<OneOfMany> many = many_parameters();
  EXPECT_EQ(std::ranges::count_if(many,
                                  [&](const OneOfMany& one) {
                                    return one.rate_scale == 1.0f && one.kind.moments == DType::BF16 &&
                                           one.kind.gradient == DType::BF16;
                                  }),
            213);
  std::deque<Quantized> copies;
  const auto update = [&](Side& side) {
    std::vector<AdamWParameter> parameters;
    for (size_t i = 0; i < many.size(); ++i) {
      const OneOfMany& one = many[i];
      AdamWParameter p = make_parameter(side, one.kind, one.shape, 2 * i);
      p.gradient = side.upload(one.kind.gradient, one.shape, normal_values(one.shape.numel(), 2 * i + 1));
      p.stream = i;
      p.learning_rate_scale = one.rate_scale;
      if (one.fp8) {
        p.fp8 = &copies.emplace_back(make_copies(side, i % 7 == 2 ? Fp8Copies::One : Fp8Copies::Two,
                                                 p.weight.rows(), p.weight.cols(),
                                                 one.equal_scales ? kEqualSlot : kUsedSlot));
      }
      parameters.push_back(p);
    }
    const Tensor clip = side.upload(DType::F32, {2}, {3.0f, 0.7f});
    for (const int64_t step : {1, 2})
      side->ops().adamw(parameters, clip, {.learning_rate = 3e-3f, .step = step, .seed = 5});
    return parameters;
  };
  const auto got = update(*cuda), expected = update(*cpu);
  int differing = 0;
  for (size_t i = 0; i < many.size(); ++i) {
    const auto got_state = state_of(*cuda, got[i]), expected_state = state_of(*cpu, expected[i]);
    std::string differences;
    for (size_t part = 0; part < got_state.size(); ++part) {
      const std::string found = difference(got_state[part], expected_state[part]);
      if (!found.empty()) differences += fmt::format("\n  {}: {}", kStateNames[part], found);
    }
    if (differences.empty() || ++differing > 12) continue;  // the first ones tell enough
    ADD_FAILURE() << "parameter " << i << " " << many[i].shape.to_string() << ", " << describe(many[i].kind)
                  << (many[i].fp8 ? many[i].equal_scales ? ", fp8 of equal scales" : ", fp8" : "")
                  << differences;
  }
  EXPECT_EQ(differing, 0) << "parameters of " << many.size() << " differ";
}

// The FP8 copies that the kernel writes next to rounded weights and e4m3 moments are those of the separate op.
TEST_F(CudaAdamW, WritesFp8CopiesOfRoundedWeights) {
  ScaleSlot equal = kUsedSlot;  // as in training, where both copies have one format
  equal.scale_colwise = equal.scale_rowwise;
  equal.inverse_colwise = equal.inverse_rowwise;
  struct Case {
    int64_t rows, cols;
    ScaleSlot slot;
  };
  for (const auto& [kind, copies] :
       {std::pair{RemainderKind::None, Fp8Copies::Two}, std::pair{RemainderKind::Compact, Fp8Copies::Two},
        std::pair{RemainderKind::Compact, Fp8Copies::One}})
    for (const auto& [rows, cols, slot] :
         {Case{256, 384, kUsedSlot}, Case{256, 384, equal}, Case{48, 200, equal}, Case{200, 136, kUsedSlot},
          Case{44, 136, equal}, Case{33, 77, equal}}) {
      Quantized fused = make_copies(*cuda, copies, rows, cols, slot);
      Quantized separate = make_copies(*cuda, copies, rows, cols, slot);
      const Shape shape{rows, cols}, scales{rows, div_up(cols, 128)};
      AdamWParameter p;
      p.weight = cuda->upload(DType::BF16, shape, normal_values(rows * cols, 1));
      p.gradient = cuda->upload(DType::BF16, shape, normal_values(rows * cols, 2));
      p.m = cuda->tensor(DType::E4M3, shape), p.v = cuda->tensor(DType::U8, shape);
      p.m_scales = cuda->tensor(DType::F32, scales), p.v_scales = cuda->tensor(DType::F32, scales);
      for (const Tensor& x : {p.m, p.v, p.m_scales, p.v_scales}) (*cuda)->zero(x);
      if (kind == RemainderKind::Compact) {
        p.remainder = cuda->tensor(DType::U8, {rows, compact_row_bytes(cols)});
        (*cuda)->zero(p.remainder);
      }
      p.fp8 = &fused;
      const Tensor clip = cuda->upload(DType::F32, {2}, {1.0f, 1.0f});
      (*cuda)->ops().adamw(std::span(&p, 1), clip, {.learning_rate = 1e-2f, .step = 1, .seed = 9});
      (*cuda)->ops().quantize({.dense = p.weight, .fp8 = &separate});
      expect_same(*cuda, fused, *cuda, separate, fmt::format("({}, {})", rows, cols));
      // A skipped step changes nothing but the copies, which are made of weights that something else has changed.
      const std::vector<uint8_t> m = cuda->bytes(p.m), scales_before = cuda->bytes(p.v_scales);
      const Tensor infinite = cuda->upload(DType::F32, {2}, {HUGE_VALF, 1.0f});
      p.weight = cuda->upload(DType::BF16, shape, normal_values(rows * cols, 3));
      (*cuda)->ops().adamw(std::span(&p, 1), infinite, {.learning_rate = 1e-2f, .step = 2, .seed = 9});
      (*cuda)->ops().quantize({.dense = p.weight, .fp8 = &separate});
      expect_same(*cuda, fused, *cuda, separate, fmt::format("({}, {}) skipped", rows, cols));
      EXPECT_EQ(difference(cuda->bytes(p.m), m), "") << "m of a skipped step";
      EXPECT_EQ(difference(cuda->bytes(p.v_scales), scales_before), "") << "scales of a skipped step";
    }
}

}  // namespace
}  // namespace octet::test
