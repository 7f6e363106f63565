// The ops between ranks, apart from what the op table says of them: order of sums, special values, what is refused.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "base/hash.h"
#include "ops/device.h"
#include "support/error_of.h"

namespace octet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class RankOps : public testing::Test {
 protected:
  RankOps() : device(make_cpu_device(2)) {}
  Ops& ops() { return device->ops(); }

  std::vector<float> sum_of(std::vector<float> parts, int64_t count, std::vector<float> before = {}) {
    std::vector<float> sum = before.empty() ? std::vector<float>(static_cast<size_t>(count), kNan) : before;
    ops().sum_parts(view(sum), {parts.data(), DType::F32, {std::ssize(parts) / count, count}},
                    !before.empty());
    return sum;
  }
  uint64_t hash_of(std::vector<uint8_t> bytes, uint64_t seed, uint64_t before = 0) {
    ops().add_hash({&before, DType::U8, {8}}, {bytes.data(), DType::U8, {std::ssize(bytes)}}, seed);
    return before;
  }
  static Tensor view(std::vector<float>& x) { return {x.data(), DType::F32, {std::ssize(x)}}; }
  static Tensor view(std::vector<ScaleSlot>& x) {
    return {x.data(), DType::U8, {std::ssize(x) * static_cast<int64_t>(sizeof(ScaleSlot))}};
  }

  std::unique_ptr<Device> device;
};

// ---- sum_parts ----

// 1 next to 1e8 is lost in fp32, so every order has its own sum.
TEST_F(RankOps, PartsAreAddedInOrder) {
  EXPECT_EQ(sum_of({1e8f, 1, -1e8f}, 1), std::vector<float>{0});
  EXPECT_EQ(sum_of({1e8f, -1e8f, 1}, 1), std::vector<float>{1});
  EXPECT_EQ(sum_of({1, 1e8f, -1e8f}, 1), std::vector<float>{0});
  // Four parts in pairs would give 2, from the last one on 0.
  EXPECT_EQ(sum_of({1, 1e8f, -1e8f, 1}, 1), std::vector<float>{1});
}

TEST_F(RankOps, WhatASumHeldIsAddedLast) {
  EXPECT_EQ(sum_of({1e8f, -1e8f}, 1, {1}), std::vector<float>{1});
  EXPECT_EQ(sum_of({1, 1}, 1, {1e8f}), std::vector<float>{1e8f});          // + 2 rounds to even
  EXPECT_EQ(sum_of({3, 3}, 1, {1e8f}), std::vector<float>{100000008.0f});  // 3 and 3 apart would give 1e8
  EXPECT_EQ(sum_of({1, 2, 10, 20}, 2, {100, 200}), (std::vector<float>{111, 222}));
  EXPECT_EQ(sum_of({1, 2}, 2), (std::vector<float>{1, 2}));
}

TEST_F(RankOps, PartsOfBf16AreAddedInFp32) {
  // 256 + 1 is not a bf16 number: bf16 sums would stay at 256.
  std::vector<Bf16> parts;
  for (const float x : {256.0f, 1.0f, 1.0f, 1.0f, 1.0f, 0x1p-10f}) parts.push_back(to_bf16(x));
  std::vector<float> sum = {kNan};
  ops().sum_parts(view(sum), {parts.data(), DType::BF16, {6, 1}}, false);
  EXPECT_EQ(sum[0], 260.0f + 0x1p-10f);
}

TEST_F(RankOps, OneBadPartIsSeenInTheSum) {
  EXPECT_TRUE(std::isnan(sum_of({1, kNan, 2}, 1)[0]));
  EXPECT_TRUE(std::isnan(sum_of({kInf, 1, -kInf}, 1)[0]));
  EXPECT_EQ(sum_of({1, kInf, 2}, 1)[0], kInf);
}

TEST_F(RankOps, SumPartsRefusesWhatDoesNotFit) {
  std::vector<float> four(4), three(3);
  const auto refusal = [&](Tensor sum, Tensor parts) {
    return error_of([&] { ops().sum_parts(sum, parts, false); });
  };
  EXPECT_EQ(refusal(view(three), {four.data(), DType::F32, {1, 4}}),
            "[sum_parts] parts (1, 4) for a sum of 3 elements, expected a multiple");
  EXPECT_EQ(refusal(view(four), view(three)),
            "[sum_parts] parts (3) for a sum of 4 elements, expected a multiple");
  EXPECT_EQ(refusal({four.data(), DType::BF16, {4}}, view(four)),
            "[sum_parts] the sum is bf16, expected fp32");
  EXPECT_EQ(refusal(view(four), {four.data(), DType::I32, {4}}),
            "[sum_parts] the parts are int32, expected fp32 or bf16");
  ops().sum_parts({four.data(), DType::F32, {0}}, {four.data(), DType::F32, {2, 0}}, false);  // nothing
}

// ---- convert ----

TEST_F(RankOps, ConvertRoundsOnceToNearestEven) {
  std::vector<float> from = {1.0f,      1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, -1.0f - 0x1.1p-8f,
                             0x1p-140f, kInf,           3.4e38f};
  const std::vector<float> expected = {1.0f, 1.0f, 1.0f + 0x1p-6f, -1.0f - 0x1p-7f, 0.0f, kInf, kInf};
  std::vector<Bf16> to(from.size());
  std::vector<float> back(from.size());
  ops().convert({to.data(), DType::BF16, {7}}, view(from));
  ops().convert(view(back), {to.data(), DType::BF16, {7}});
  // The smallest bf16 is 2^-133: 2^-140 becomes nothing.
  EXPECT_EQ(back, expected);
}

TEST_F(RankOps, ConvertKeepsBitsBetweenEqualDtypes) {
  // A NaN of its own, signalling and negative.
  std::vector<uint32_t> from = {0xFF812345, 0x00000001, 0x80000000}, to(3);
  ops().convert({to.data(), DType::F32, {3}}, {from.data(), DType::F32, {3}});
  EXPECT_EQ(to, from);
  std::vector<uint16_t> from16 = {0xFF81, 0x0001, 0x8000}, to16(3);
  ops().convert({to16.data(), DType::BF16, {3}}, {from16.data(), DType::BF16, {3}});
  EXPECT_EQ(to16, from16);
  ops().convert({to16.data(), DType::BF16, {3}}, {from.data(), DType::F32, {3}});
  EXPECT_EQ(to16, (std::vector<uint16_t>{0xFFC1, 0, 0x8000}));  // a NaN stays one
}

TEST_F(RankOps, ConvertRefusesWhatDoesNotFit) {
  std::vector<float> four(4), three(3);
  const auto refusal = [&](Tensor to, Tensor from) { return error_of([&] { ops().convert(to, from); }); };
  EXPECT_EQ(refusal(view(three), view(four)), "[convert] 4 elements to 3, expected equally many");
  EXPECT_EQ(refusal(view(four), {four.data(), DType::I32, {4}}),
            "[convert] the source is int32, expected fp32 or bf16");
  EXPECT_EQ(refusal({four.data(), DType::E4M3, {4}}, view(four)),
            "[convert] the result is e4m3, expected fp32 or bf16");
}

// ---- records ----

TEST_F(RankOps, NormsOfPartsGiveTheNormOfAll) {
  const auto norm = [&](std::vector<float> records, int64_t width, float max_norm) {
    std::vector<float> result(2, kNan);
    const Shape shape{std::ssize(records) / width, width};
    ops().combine_norms(view(result), {records.data(), DType::F32, shape}, max_norm);
    return result;
  };
  EXPECT_EQ(norm({3, 99, 4, -99}, 2, 0), (std::vector<float>{5, 1}));
  EXPECT_EQ(norm({3, 4}, 1, 2), (std::vector<float>{5, 0.4f}));
  EXPECT_EQ(norm({3, 4}, 1, 5), (std::vector<float>{5, 1}));
  EXPECT_EQ(norm({3e30f, 4e30f}, 1, 0), (std::vector<float>{5e30f, 1}));  // the squares fit double alone
  // In fp32 the ones would be lost next to 1e8 squared; in double their squares add up.
  std::vector<float> many(65, 1e4f);
  many[0] = 1e8f;
  EXPECT_EQ(norm(many, 1, 0)[0], static_cast<float>(std::sqrt(1e16 + 64 * 1e8)));
  // One part: its norm, bit for bit.
  for (const float x : {0.0f, 1.1754942e-38f, 0x1p-149f, 0.1f, 1.2345678f, 3.3333333e38f, kInf}) {
    EXPECT_EQ(norm({x}, 1, 0)[0], x);
  }
  for (const auto& records : {std::vector<float>{kNan, 1}, {1, kNan}}) {
    EXPECT_TRUE(std::isnan(norm(records, 1, 1)[0]));
    EXPECT_EQ(norm(records, 1, 1)[1], 1.0f);
  }
  std::vector<float> result(2), flat(4);
  EXPECT_EQ(error_of([&] { ops().combine_norms(view(result), view(flat), 1); }),
            "[combine_norms] records are fp32 (4), expected (ranks, values) fp32");
  EXPECT_EQ(error_of([&] {
              ops().combine_norms(view(flat), {flat.data(), DType::F32, {2, 2}}, 1);
            }),
            "[combine_norms] the result is fp32 (4), expected (2) fp32");
}

TEST_F(RankOps, ReciprocalOfCounts) {
  const auto reciprocal = [&](std::vector<int32_t> counts) {
    float scale = kNan;
    ops().reciprocal_of_sum({&scale, DType::F32, {1}}, {counts.data(), DType::I32, {std::ssize(counts)}});
    return scale;
  };
  EXPECT_EQ(reciprocal({3}), 1.0f / 3.0f);
  EXPECT_EQ(reciprocal({5, 0, 2}), 1.0f / 7.0f);
  EXPECT_EQ(reciprocal({0, 0}), 0.0f);
  EXPECT_EQ(reciprocal({2147483647, 2147483647, 2}), 0x1p-32f);  // more than int32 holds
  float scale = 0;
  std::vector<float> counts = {1};
  EXPECT_EQ(error_of([&] {
              ops().reciprocal_of_sum({&scale, DType::F32, {1}}, view(counts));
            }),
            "[reciprocal_of_sum] fp32 (1) from fp32 (1), expected (1) fp32 from (ranks) int32");
}

// ---- merge_slots ----

// Rank r's slot: its scales tell whose it is.
ScaleSlot slot_of(float scale, float amax_last, float amax = 0.0f) {
  return {.scale_rowwise = scale,
          .scale_colwise = 10 * scale,
          .amax = amax,
          .amax_last = amax_last,
          .inverse_rowwise = 100 * scale,
          .inverse_colwise = 1000 * scale};
}

TEST_F(RankOps, SlotsTakeTheLargestAmaxAndTheSmallestScale) {
  const auto merge = [&](std::vector<ScaleSlot> gathered) {
    std::vector<ScaleSlot> own = {slot_of(7, 0.125f, 0.0625f)};
    own[0].op_blocks = 3;
    ops().merge_slots(view(own), view(gathered));
    EXPECT_EQ(own[0].scale_colwise, 10 * own[0].scale_rowwise);
    EXPECT_EQ(own[0].inverse_rowwise, 100 * own[0].scale_rowwise);
    EXPECT_EQ(own[0].inverse_colwise, 1000 * own[0].scale_rowwise);
    EXPECT_EQ(own[0].op_blocks, 3u);
    return own[0];
  };
  ScaleSlot got = merge({slot_of(4, 1, 8), slot_of(2, 3, 5), slot_of(3, 2, 9)});
  EXPECT_EQ(got.scale_rowwise, 2);
  EXPECT_EQ(got.amax_last, 3);
  EXPECT_EQ(got.amax, 9);
  // Own values count only as far as they were gathered.
  EXPECT_EQ(merge({slot_of(1024, 0.001f)}).amax_last, 0.001f);
  EXPECT_EQ(merge({slot_of(1024, 0.001f)}).scale_rowwise, 1024);
  // A rank whose last amax is zero, Inf or NaN kept an older scale: it does not count.
  for (const float bad : {0.0f, kInf, kNan, -1.0f}) {
    EXPECT_EQ(merge({slot_of(1, bad), slot_of(5, 2), slot_of(6, 3)}).scale_rowwise, 5) << bad;
    EXPECT_EQ(merge({slot_of(6, 2), slot_of(5, 2), slot_of(1, bad)}).scale_rowwise, 5) << bad;
    EXPECT_EQ(merge({slot_of(1, bad), slot_of(2, bad)}).scale_rowwise, 7) << bad;  // none: as before
  }
  // NaN is larger than Inf, wherever it is.
  for (const auto& order : {std::vector<float>{kNan, kInf, 1}, {kInf, kNan, 1}, {1, kInf, kNan}}) {
    std::vector<ScaleSlot> gathered;
    for (const float amax : order) gathered.push_back(slot_of(3, amax, amax));
    got = merge(gathered);
    EXPECT_TRUE(std::isnan(got.amax) && std::isnan(got.amax_last));
  }
  EXPECT_EQ(merge({slot_of(3, 1, 1), slot_of(3, kInf, kInf)}).amax, kInf);
  // The first rank of those with the smallest scale: the two differ in the other scale.
  std::vector<ScaleSlot> own(1), gathered = {slot_of(4, 1), slot_of(2, 1), slot_of(2, 1)};
  gathered[2].scale_colwise = 99;
  ops().merge_slots(view(own), view(gathered));
  EXPECT_EQ(own[0].scale_colwise, 20);
}

// Gathered in the order of ranks, and of slots within a rank; merging twice changes nothing more.
TEST_F(RankOps, SlotsOfManyTensors) {
  std::vector<ScaleSlot> gathered;
  for (int rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 5; ++i)
      gathered.push_back(slot_of(static_cast<float>(10 * i + rank + 1), 1.0f + 3.0f * static_cast<float>(i)));
  }
  std::vector<ScaleSlot> own(5), again;
  ops().merge_slots(view(own), view(gathered));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(own[i].scale_rowwise, static_cast<float>(10 * i + 1));
    EXPECT_EQ(own[i].amax_last, 1.0f + 3.0f * static_cast<float>(i));
  }
  gathered = own;
  gathered.insert(gathered.end(), own.begin(), own.end());
  again = own;
  ops().merge_slots(view(again), view(gathered));
  EXPECT_EQ(std::memcmp(own.data(), again.data(), 5 * sizeof(ScaleSlot)), 0);
}

TEST_F(RankOps, MergeSlotsRefusesWhatDoesNotFit) {
  std::vector<ScaleSlot> two(2), three(3);
  EXPECT_EQ(error_of([&] { ops().merge_slots(view(two), view(three)); }),
            "[merge_slots] 192 bytes of gathered slots for 128 bytes of slots, expected a multiple");
  EXPECT_EQ(error_of([&] {
              ops().merge_slots({two.data(), DType::U8, {32}}, view(three));
            }),
            "[merge_slots] 192 bytes of gathered slots for 32 bytes of slots, expected a multiple");
  auto* inside = reinterpret_cast<std::byte*>(two.data()) + 16;
  EXPECT_EQ(error_of([&] {
              ops().merge_slots({inside, DType::U8, {64}}, view(two));
            }),
            "[merge_slots] the slots do not begin at a multiple of 64 bytes");
}

// ---- add_hash ----

TEST_F(RankOps, HashFollowsItsFormula) {
  const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const uint64_t expected = mix_bits(0x0807060504030201 + mix_bits(77)) + mix_bits(0x0B0A09 + mix_bits(78));
  EXPECT_EQ(hash_of(bytes, 77), expected);
  EXPECT_EQ(hash_of(bytes, 77, 0xFFFFFFFFFFFFFFFF), expected - 1);  // it is added to, and wraps around
  EXPECT_EQ(hash_of({}, 77, 5), 5);
}

// Every bit of every byte, the whole tail, the seed and the order of words.
TEST_F(RankOps, HashSeesEveryBit) {
  for (const size_t size : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{37}}) {
    std::vector<uint8_t> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(31 * i + 5);
    std::set<uint64_t> seen = {hash_of(bytes, 3), hash_of(bytes, 4), hash_of(bytes, uint64_t{1} << 63)};
    EXPECT_EQ(seen.size(), 3);
    for (size_t i = 0; i < size; ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::vector<uint8_t> other = bytes;
        other[i] = static_cast<uint8_t>(other[i] ^ (1 << bit));
        EXPECT_TRUE(seen.insert(hash_of(other, 3)).second) << size << ", byte " << i << ", bit " << bit;
      }
    }
  }
  std::vector<uint8_t> words(24);
  for (size_t i = 0; i < 24; ++i) words[i] = static_cast<uint8_t>(i / 8);
  std::vector<uint8_t> swapped = words;
  std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + 16);
  EXPECT_NE(hash_of(words, 3), hash_of(swapped, 3));
  // Zeros are not nothing: their number counts in words.
  EXPECT_NE(hash_of(std::vector<uint8_t>(8), 3), hash_of(std::vector<uint8_t>(16), 3));
}

// The seed of a piece is that of the whole plus its first word, so pieces add up to the hash of the whole.
TEST_F(RankOps, HashesOfPiecesAddUp) {
  std::vector<uint8_t> bytes(43);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i);
  const uint64_t first = hash_of({bytes.begin(), bytes.begin() + 16}, 9);
  EXPECT_EQ(hash_of({bytes.begin() + 16, bytes.end()}, 9 + 2, first), hash_of(bytes, 9));
}

TEST_F(RankOps, HashRefusesWhatDoesNotFit) {
  alignas(8) uint8_t bytes[32] = {};
  const auto refusal = [&](Tensor hash, Tensor x) { return error_of([&] { ops().add_hash(hash, x, 0); }); };
  EXPECT_EQ(refusal({bytes, DType::U8, {4}}, {bytes, DType::U8, {8}}),
            "[add_hash] the hash has 4 bytes, expected 8");
  EXPECT_EQ(refusal({bytes + 4, DType::U8, {8}}, {bytes + 16, DType::U8, {8}}),
            "[add_hash] the hash does not begin at a multiple of 8 bytes");
  EXPECT_EQ(refusal({bytes, DType::U8, {8}}, {}), "[add_hash] x is absent");
  ops().add_hash({bytes, DType::U8, {8}}, {bytes + 9, DType::U8, {8}}, 0);  // x lies anywhere
}

// ---- bytes ----

TEST_F(RankOps, TransposeTakesAnyBytes) {
  for (const DType dtype : {DType::E8M0, DType::U8}) {
    std::vector<uint8_t> from(200 * 3), to(200 * 3);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i % 251);
    ops().transpose_fp8({.codes = {to.data(), dtype, {3, 200}}}, {.codes = {from.data(), dtype, {200, 3}}});
    for (size_t r = 0; r < 200; ++r) {
      for (size_t c = 0; c < 3; ++c) ASSERT_EQ(to[c * 200 + r], from[r * 3 + c]) << r << " " << c;
    }
    EXPECT_EQ(error_of([&] {
                ops().transpose_fp8(
                    {.codes = {to.data(), dtype, {3, 200}}, .granularity = Granularity::Block128},
                    {.codes = {from.data(), dtype, {200, 3}}, .granularity = Granularity::Block128});
              }),
              fmt::format("[transpose_fp8] scales per block for {}, expected FP8", name_of(dtype)));
  }
  std::vector<uint8_t> bytes(1200);
  EXPECT_EQ(error_of([&] {
              ops().transpose_fp8({.codes = {bytes.data(), DType::BF16, {3, 4}}},
                                  {.codes = {bytes.data() + 600, DType::BF16, {4, 3}}});
            }),
            "[transpose_fp8] bf16 from bf16, expected one dtype of one byte");
}

}  // namespace
}  // namespace octet
