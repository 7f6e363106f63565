#include <cmath>

#include "cuda/fixture.h"
#include "ops/stochastic.h"
#include "tensor/split_fp32.h"

// The ops between ranks, beyond what the op table has: any size and any place in memory, every NaN, a second queue,
// recordings, and shares of matrices. All of it has the bits of the CPU.

namespace octet::test {
namespace {

using CudaRankOps = CudaTest;

// `shift` elements behind an aligned place.
Tensor shifted(Side& side, DType dtype, const Shape& shape, int64_t shift) {
  const Tensor room = side.tensor(dtype, {shape.numel() + shift});
  return {static_cast<std::byte*>(room.data) + shift * static_cast<int64_t>(size_of(dtype)), dtype, shape};
}

// Normal numbers; they repeat after a while, at other places of the parts.
Tensor shifted_values(Side& side, DType dtype, const Shape& shape, int64_t shift, int64_t first) {
  static const std::vector<float> normals = normal_values(100003, 1);
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = normals[(static_cast<size_t>(first) + i) % normals.size()];
  const Tensor result = shifted(side, dtype, shape, shift);
  side->copy(result, side.upload(dtype, shape, values));
  return result;
}

struct SumCase {
  DType dtype;
  int64_t parts, size;
  bool accumulate;
  int64_t sum_shift, parts_shift;
};

std::vector<uint8_t> run_sum(Side& side, const SumCase& sizes) {
  const size_t mark = side.mark();
  const Tensor sum = shifted_values(side, DType::F32, {sizes.size}, sizes.sum_shift, 0);
  const Tensor parts = shifted_values(side, sizes.dtype, {sizes.parts, sizes.size}, sizes.parts_shift, 77);
  side->ops().sum_parts(sum, parts, sizes.accumulate);
  std::vector<uint8_t> result = side.bytes(sum);
  side.release(mark);
  return result;
}

TEST_F(CudaRankOps, SumPartsTakesAnySizeAndPlace) {
  constexpr std::pair<int64_t, int64_t> kShifts[] = {{0, 0}, {1, 0}, {0, 1}, {4, 8}};
  constexpr int64_t kManyRounds = 2400008;  // more than all threads take at once
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const bool accumulate : {false, true}) {
      std::vector<SumCase> all;
      for (const int64_t parts : {1, 2, 3, 4, 7, 8, 16}) {
        for (const int64_t size : {1, 7, 8, 252, 4096, 4100, 30003}) {
          for (const auto& [sum, in] : kShifts) all.push_back({dtype, parts, size, accumulate, sum, in});
        }
        if (parts < 16 && !under_sanitizer()) all.push_back({dtype, parts, kManyRounds, accumulate, 0, 0});
      }
      for (const SumCase& x : all) {
        EXPECT_TRUE(run_sum(*cuda, x) == run_sum(*cpu, x))
            << name_of(dtype) << ", " << x.parts << " parts of " << x.size << ", shifts " << x.sum_shift
            << " and " << x.parts_shift << ", accumulate " << accumulate;
      }
    }
  }
}

// All numbers of bf16, and fp32 numbers of every upper half: among them every kind of NaN and ties.
TEST_F(CudaRankOps, ConvertKnowsEveryNumber) {
  std::vector<uint16_t> halves(65536);
  std::vector<uint32_t> words;
  for (uint32_t i = 0; i < 65536; ++i) {
    halves[i] = static_cast<uint16_t>(i);
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) words.push_back(i << 16 | low);
  }
  for (const int64_t shift : {0, 1}) {
    std::vector<std::vector<uint8_t>> results[2];
    for (const int side_index : {0, 1}) {
      Side& side = side_index == 0 ? *cuda : *cpu;
      for (const DType from : {DType::F32, DType::BF16}) {
        const int64_t count = from == DType::F32 ? std::ssize(words) : std::ssize(halves);
        const Tensor in = shifted(side, from, {count}, shift);
        side->copy_to_device(in, from == DType::F32 ? static_cast<const void*>(words.data()) : halves.data());
        for (const DType to : {DType::F32, DType::BF16}) {
          const Tensor out = shifted(side, to, {count}, shift);
          side->ops().convert(out, in);
          results[side_index].push_back(side.bytes(out));
        }
      }
    }
    EXPECT_TRUE(results[0] == results[1]) << "shift " << shift;
  }
}

TEST_F(CudaRankOps, AddHashTakesAnySizeAndPlace) {
  for (const int64_t bytes : {1, 5, 8, 15, 4096, 4097, 3000001}) {
    for (const int64_t shift : {0, 1, 4, 8}) {
      std::vector<std::vector<uint8_t>> results;
      for (Side* side : {cuda, cpu}) {
        const Tensor x = shifted(*side, DType::U8, {bytes}, shift), hash = side->tensor(DType::U8, {8});
        std::vector<uint8_t> content(static_cast<size_t>(bytes));
        for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<uint8_t>(i * i / 7);
        (*side)->copy_to_device(x, content.data());
        (*side)->ops().add_hash(hash, x, ~uint64_t{4});
        (*side)->ops().add_hash(hash, x, 12345);
        results.push_back(side->bytes(hash));
      }
      EXPECT_EQ(results[0], results[1]) << bytes << " bytes, shift " << shift;
    }
  }
}

// Tensors and calls of all ops between ranks.
struct AllOps {
  static constexpr int64_t kRanks = 4, kCount = 40000, kSlots = 300;
  explicit AllOps(Side& side)
      : parts(side.tensor(DType::F32, {kRanks, kCount})),
        wire(side.tensor(DType::BF16, {kRanks, kCount})),
        sum(side.tensor(DType::F32, {kCount})),
        norm(side.tensor(DType::F32, {2})),
        counts(side.tensor(DType::I32, {kRanks})),
        scale(side.tensor(DType::F32, {1})),
        slots(side.tensor(DType::U8, {kSlots * int64_t{sizeof(ScaleSlot)}})),
        gathered(side.tensor(DType::U8, {kRanks, kSlots * int64_t{sizeof(ScaleSlot)}})),
        hash(side.tensor(DType::U8, {8})) {}
  void set(Side& side, uint64_t seed) {
    const std::vector<float> values = normal_values(kRanks * kCount, seed);
    side->copy_to_device(parts, values.data());
    std::vector<ScaleSlot> all(kRanks * kSlots);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = slot_with_scales(std::fabs(values[i]) + 0.5f, 3.0f);
      all[i].amax_last = i % 5 == 2 ? INFINITY : std::fabs(values[i + all.size()]);
    }
    side->copy_to_device(gathered, all.data());
    const int32_t tokens[kRanks] = {static_cast<int32_t>(seed), 17, 0, 900};
    side->copy_to_device(counts, tokens);
    for (const Tensor& x : {sum, slots, hash}) side->zero(x);
    side->synchronize();
  }
  void run(Ops& ops) const {
    ops.convert(wire, parts);
    ops.sum_parts(sum, wire, true);
    ops.combine_norms(norm, parts, 1.0f);
    ops.reciprocal_of_sum(scale, counts);
    ops.merge_slots(slots, gathered);
    ops.add_hash(hash, sum, 3);
  }
  std::vector<std::vector<uint8_t>> results(Side& side) const {
    std::vector<std::vector<uint8_t>> all;
    for (const Tensor& x : {wire, sum, norm, scale, slots, hash}) all.push_back(side.bytes(x));
    return all;
  }
  Tensor parts, wire, sum, norm, counts, scale, slots, gathered, hash;
};

TEST_F(CudaRankOps, RunOnASecondQueue) {
  const std::unique_ptr<Queue> queue = (*cuda)->make_queue();
  const std::unique_ptr<Ops> ops = (*cuda)->make_ops(*queue);
  const std::unique_ptr<Event> done = (*cuda)->make_event();
  AllOps there(*cuda), here(*cpu);
  there.set(*cuda, 1);
  here.set(*cpu, 1);
  there.run(*ops);
  (*cuda)->record(*done, *queue);
  (*cuda)->synchronize(*done);
  here.run((*cpu)->ops());
  EXPECT_TRUE(there.results(*cuda) == here.results(*cpu));
}

TEST_F(CudaRankOps, CanBeRecorded) {
  AllOps there(*cuda), here(*cpu);
  const int64_t replayed = (*cuda)->graph_counts().replayed;
  for (uint64_t pass = 0; pass < 4; ++pass) {
    there.set(*cuda, 10 + pass);
    here.set(*cpu, 10 + pass);
    (*cuda)->repeat("rank ops", [&] { there.run((*cuda)->ops()); });
    here.run((*cpu)->ops());
    EXPECT_TRUE(there.results(*cuda) == here.results(*cpu)) << "pass " << pass;
  }
  EXPECT_GE((*cuda)->graph_counts().replayed, replayed + 2);
}

// ---- shares of matrices ----

struct ShareRule {
  QuantizeRule rule;
  int64_t unit;  // of rows
};
const ShareRule kShareRules[] = {{{.delayed = true}, 2},
                                 {{.granularity = Granularity::Block128}, 128},
                                 {{.granularity = Granularity::Row32}, 32}};

// Rows [begin, begin + count) of the rowwise copy, with a slot of their own and no other copy.
Quantized rows_of(Side& side, const Quantized& whole, int64_t begin, int64_t count) {
  Quantized part = whole;
  part.slot = side.upload_struct(kEqualSlot);
  part.colwise = {};
  part.rowwise.codes = whole.rowwise.codes.row_range(begin, count);
  const Granularity granularity = whole.rule().granularity;
  if (granularity == Granularity::Block128) {
    part.rowwise.scales = whole.rowwise.scales.row_range(begin / 128, div_up(count, 128));
  } else if (granularity == Granularity::Row32) {
    part.rowwise.scales = whole.rowwise.scales.row_range(begin, count);
  }
  return part;
}

// fn(begin, count) for shares of one unit, of no rows and of the rest.
template <class Function>
void for_shares(int64_t rows, int64_t unit, const Function& fn) {
  fn(0, unit);
  fn(unit, 0);
  fn(unit, rows - unit);
}

TEST_F(CudaRankOps, SharesAreQuantizedAsTheWhole) {
  for (const auto& [rule, unit] : kShareRules) {
    for (const int64_t cols : {256, 300, 77}) {
      const int64_t rows = 300;
      std::vector<uint8_t> codes[2], scales[2];
      float amax[2] = {};
      for (const int side_index : {0, 1}) {
        Side& side = side_index == 0 ? *cuda : *cpu;
        const Tensor x = side.upload(DType::BF16, {rows, cols}, normal_values(rows * cols, 1));
        Quantized whole = make_quantized(side, rows, cols, rule, kEqualSlot);
        const auto quantize = [&](int64_t begin, int64_t count) {
          Quantized part = rows_of(side, whole, begin, count);
          side->ops().quantize({.dense = x.row_range(begin, count), .fp8 = &part});
          const ScaleSlot slot = side.value(part.slot);
          EXPECT_EQ(slot.amax_last > 0.0f, count > 0);
          amax[side_index] = std::max(amax[side_index], slot.amax);
        };
        side_index == 0 ? for_shares(rows, unit, quantize) : quantize(0, rows);
        codes[side_index] = side.bytes(whole.rowwise.codes);
        scales[side_index] = side.bytes(whole.rowwise.scales);
      }
      EXPECT_TRUE(codes[0] == codes[1]) << describe(rule) << ", " << cols << " columns";
      EXPECT_TRUE(scales[0] == scales[1]) << describe(rule) << ", " << cols << " columns";
      EXPECT_EQ(amax[0], amax[1]);
    }
  }
}

TEST_F(CudaRankOps, AdamWOnSharesIsAdamWOnTheWhole) {
  const int64_t rows = 300;
  for (const auto& [rule, unit] : kShareRules) {
    for (const int64_t cols : {256, 136, 77}) {
      for (const DType moments : {DType::F32, DType::BF16, DType::E4M3}) {
        for (const RemainderKind kind : {RemainderKind::None, RemainderKind::Compact, RemainderKind::Exact}) {
          std::vector<std::vector<uint8_t>> results[2];
          float amax[2] = {};
          for (const int side_index : {0, 1}) {
            Side& side = side_index == 0 ? *cuda : *cpu;
            const auto zeros = [&](DType dtype, int64_t width) {
              const Tensor x = side.tensor(dtype, {rows, width});
              side->zero(x);
              return x;
            };
            const Tensor weight = side.upload(DType::BF16, {rows, cols}, normal_values(rows * cols, 1));
            const Tensor gradient = side.upload(DType::F32, {rows, cols}, normal_values(rows * cols, 2));
            const Tensor clip = side.upload(DType::F32, {2}, {3.0f, 0.7f});
            const Tensor m = zeros(moments, cols), v = zeros(dtype_of_v(moments), cols),
                         words = zeros(DType::U16, cols), nibbles = zeros(DType::U8, compact_row_bytes(cols));
            const Tensor m_scales = zeros(DType::F32, div_up(cols, 128)),
                         v_scales = zeros(DType::F32, div_up(cols, 128));
            Quantized whole = make_quantized(side, rows, cols, rule, kEqualSlot);
            const auto update = [&](int64_t begin, int64_t count) {
              Quantized part = rows_of(side, whole, begin, count);
              const auto some = [&](const Tensor& x) { return x.row_range(begin, count); };
              AdamWParameter parameter{.weight = some(weight),
                                       .gradient = some(gradient),
                                       .m = some(m),
                                       .v = some(v),
                                       .weight_decay = 0.1f,
                                       .stream = 77,
                                       .first_row = begin,
                                       .fp8 = &part};
              if (kind == RemainderKind::Exact) parameter.remainder = some(words);
              if (kind == RemainderKind::Compact) parameter.remainder = some(nibbles);
              if (moments == DType::E4M3)
                parameter.m_scales = some(m_scales), parameter.v_scales = some(v_scales);
              for (int64_t step = 1; step <= 2; ++step) {
                side->ops().adamw({&parameter, 1}, clip, {.learning_rate = 3e-3f, .step = step, .seed = 5});
              }
              const ScaleSlot slot = side.value(part.slot);
              EXPECT_EQ(slot.amax_last > 0.0f, count > 0);
              amax[side_index] = std::max(amax[side_index], slot.amax);
            };
            side_index == 0 ? for_shares(rows, unit, update) : update(0, rows);
            for (const Tensor& x : {weight, words, nibbles, m, v, m_scales, v_scales, whole.rowwise.codes,
                                    whole.rowwise.scales}) {
              results[side_index].push_back(side.bytes(x));
            }
          }
          EXPECT_TRUE(results[0] == results[1])
              << describe(rule) << ", " << cols << " columns, moments " << name_of(moments) << ", remainder "
              << static_cast<int>(kind);
          EXPECT_EQ(amax[0], amax[1]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::test
