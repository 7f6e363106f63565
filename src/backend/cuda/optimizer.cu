#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "backend/cuda/optimizer.cuh"

namespace octet {
namespace device {
namespace {

using ElementTile = Tile<static_cast<int>(kAdamTile), 256>;

__device__ __forceinline__ void load_any(float (&x)[8], const void* data, bool bf16, bool vector,
                                         int64_t place, int64_t count) {
  if (bf16) {
    const Bf16* from = static_cast<const Bf16*>(data) + place;
    (vector ? Pack8<Bf16>::load(from) : load_some(from, count)).unpack(x);
  } else {
    const float* from = static_cast<const float*>(data) + place;
    (vector ? Pack8<float>::load(from) : load_some(from, count)).unpack(x);
  }
}

__device__ __forceinline__ void store_any(void* data, const float (&x)[8], bool bf16, bool vector,
                                          int64_t place, int64_t count) {
  if (bf16) {
    Bf16* to = static_cast<Bf16*>(data) + place;
    const auto pack = Pack8<Bf16>::pack(x);
    vector ? pack.store(to) : store_some(to, pack, count);
  } else {
    float* to = static_cast<float*>(data) + place;
    const auto pack = Pack8<float>::pack(x);
    vector ? pack.store(to) : store_some(to, pack, count);
  }
}

// Eight 16-bit values.
__device__ __forceinline__ void load_words(uint32_t (&x)[8], const uint16_t* from, bool vector,
                                           int64_t count) {
  if (vector) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    const uint32_t parts[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = parts[j / 2] >> (16 * (j % 2)) & 0xFFFFu;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = j < count ? from[j] : 0u;
  }
}

// The low halves of eight words.
__device__ __forceinline__ void store_words(uint16_t* to, const uint32_t (&x)[8], bool vector,
                                            int64_t count) {
  if (vector) {
    uint32_t parts[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) parts[j] = (x[2 * j] & 0xFFFFu) | x[2 * j + 1] << 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(parts[0], parts[1], parts[2], parts[3]);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j < count) to[j] = static_cast<uint16_t>(x[j]);
    }
  }
}

// The values of eight e4m3 codes.
__device__ __forceinline__ void load_codes(float (&x)[8], const void* data, bool vector, int64_t place,
                                           int64_t count) {
  const uint8_t* from = static_cast<const uint8_t*>(data) + place;
  uint32_t words[2] = {};
  if (vector) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    words[0] = raw.x, words[1] = raw.y;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) words[j / 4] |= (j < count ? uint32_t{from[j]} : 0u) << (8 * (j % 4));
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] = decode1(static_cast<uint8_t>(words[j / 4] >> (8 * (j % 4))), false);
}

__device__ __forceinline__ void store_any(void* data, uint2 codes, bool vector, int64_t place,
                                          int64_t count) {
  uint8_t* to = static_cast<uint8_t*>(data) + place;
  vector ? store_codes<true>(to, codes, count) : store_codes<false>(to, codes, count);
}

// Over the eight threads that hold a row of the tile.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
  for (int offset = 1; offset < 8; offset *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}

// One step of an element, rounded after every operation as on the CPU.
__device__ __forceinline__ float adamw_update(const AdamTable& t, float keep, float clip, float w,
                                              float gradient, float& m, float& v) {
  const float g = __fmul_rn(gradient, clip);
  w = __fmul_rn(w, keep);
  m = __fadd_rn(m, __fmul_rn(t.one_minus_beta1, __fsub_rn(g, m)));
  v = __fadd_rn(__fmul_rn(v, t.beta2), __fmul_rn(__fmul_rn(t.one_minus_beta2, g), g));
  const float denominator = __fadd_rn(__fmul_rn(__fsqrt_rn(v), t.inverse_root), t.epsilon);
  return __fsub_rn(w, __fmul_rn(t.step_size, __fdiv_rn(m, denominator)));
}

// One block for each tile of each parameter. W is the dtype of the weights. A tile is one ElementTile wide, or two when
// the moments are e4m3: then the eight threads of a row hold a whole block of kMomentBlock columns.
template <class W, bool small_moments>
__global__ void __launch_bounds__(ElementTile::kThreads, 2)
    adamw_kernel(const __grid_constant__ AdamTable table, const float* clip) {
  constexpr bool kBf16 = sizeof(W) == 2;
  constexpr int kHalves = small_moments ? 2 : 1;
  constexpr int kTileCols = kHalves * ElementTile::kCols;
  static_assert(!small_moments || kTileCols == kMomentBlock);
  __shared__ alignas(16) uint32_t words[ElementTile::kWords];
  const bool skip = !isfinite(clip[0]);
  const float clip_factor = clip[1];
  const AdamEntry& entry = entry_of_tile(table, blockIdx.x);
  const CastTarget& cast = entry.cast;
  if (skip && !cast.record) return;  // FP8 copies are made anew even then: their scales may have moved
  const int64_t tile = blockIdx.x - entry.first_tile;
  const int64_t across = (entry.cols + kTileCols - 1) / kTileCols;
  const int64_t tile_row = tile / across * ElementTile::kRows, tile_col = tile % across * kTileCols;
  const float row_scale = cast.rowwise ? cast.slot->scale_rowwise : 1.0f;
  const float col_scale = cast.colwise ? cast.slot->scale_colwise : 1.0f;
  const bool vector = entry.vector, split = entry.remainder != nullptr, stochastic = kBf16 && !split;
  Pack8<W> kept[kHalves][4];
  uint32_t amax = 0;

#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = tile_row + ElementTile::row() + r;
    float w[kHalves][8];
    int64_t place[kHalves], count[kHalves];
    bool inside[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int64_t col = tile_col + h * ElementTile::kCols + ElementTile::col();
      place[h] = row * entry.cols + col;
      count[h] = entry.cols - col;
      inside[h] = row < entry.rows && count[h] > 0;
      kept[h][r] = Pack8<W>::zero();
      if (inside[h]) load_any(w[h], entry.weight, kBf16, vector, place[h], count[h]);
    }
    if (!skip) {
      float m[kHalves][8], v[kHalves][8];  // v: its root where moments are small
      RoundingBits random[kHalves];
      const int64_t block = row * across + tile_col / kTileCols;  // of small moments
      float m_factor = 0.0f, v_factor = 0.0f;
      if (small_moments && inside[0]) m_factor = entry.m_scales[block], v_factor = entry.v_scales[block];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (!inside[h]) {
#pragma unroll
          for (int j = 0; j < 8; ++j) m[h][j] = v[h][j] = 0.0f;
          continue;
        }
        float g[8];
        load_any(g, entry.gradient, entry.gradient_bf16, vector, place[h], count[h]);
        if constexpr (small_moments) {
          load_codes(m[h], entry.m, vector, place[h], count[h]);
          load_codes(v[h], entry.v, vector, place[h], count[h]);
        } else {
          load_any(m[h], entry.m, entry.moments_bf16, vector, place[h], count[h]);
          load_any(v[h], entry.v, entry.moments_bf16, vector, place[h], count[h]);
        }
        uint32_t low_bits[8];
        if (split) {
          load_words(low_bits, entry.remainder + place[h], vector, count[h]);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const auto low_part =
                static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(low_bits[j])));
            w[h][j] = __uint_as_float(__float_as_uint(w[h][j]) + low_part);
          }
        }
        if (small_moments || stochastic) {
          random[h] = RoundingBits::of(table.seed, entry.stream, table.step, row, (entry.cols + 7) / 8,
                                       (entry.cols - count[h]) / 8);
        }
        const SmallMomentStep step =
            small_step(table, entry.keep, clip_factor, __fmul_rn(m_factor, table.beta1),
                       __fmul_rn(v_factor, table.root_beta2));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          w[h][j] = small_moments
                        ? step(w[h][j], g[j], m[h][j], v[h][j])
                        : adamw_update(table, entry.keep, clip_factor, w[h][j], g[j], m[h][j], v[h][j]);
        }
        if constexpr (kBf16) {
          if (split) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              low_bits[j] = __float_as_uint(w[h][j]);
              w[h][j] = __uint_as_float((low_bits[j] + 0x8000u) & 0xFFFF0000u);
            }
            store_words(entry.remainder + place[h], low_bits, vector, count[h]);
          } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              w[h][j] = __uint_as_float(uint32_t{to_bf16_stochastic(w[h][j], random[h].weight(j))} << 16);
            }
          }
        }
        store_any(entry.weight, w[h], kBf16, vector, place[h], count[h]);  // exact: already rounded
        if constexpr (!small_moments) {
          store_any(entry.m, m[h], entry.moments_bf16, vector, place[h], count[h]);
          store_any(entry.v, v[h], entry.moments_bf16, vector, place[h], count[h]);
        }
      }
      if constexpr (small_moments) {
        float m_largest = 0.0f, root_largest = 0.0f;
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            if (j >= count[h]) continue;  // beyond a row that is no whole number of vectors
            m_largest = fmaxf(m_largest, fabsf(m[h][j]));
            root_largest = fmaxf(root_largest, v[h][j]);
          }
        }
        m_largest = row_max(m_largest);
        root_largest = row_max(root_largest);
        if (ElementTile::lane() % 8 == 0 && inside[0]) {
          entry.m_scales[block] = moment_factor(m_largest);
          entry.v_scales[block] = moment_factor(root_largest);
        }
        const MomentShift m_shift = MomentShift::of(m_largest), root_shift = MomentShift::of(root_largest);
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          if (!inside[h]) continue;
          uint32_t m_codes[2] = {}, v_codes[2] = {};
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const uint32_t m_code = to_e4m3_stochastic(m_shift(m[h][j]), random[h].m(j));
            const uint32_t v_code = root_to_e4m3_stochastic(root_shift(v[h][j]), random[h].root(j));
            m_codes[j / 4] |= m_code << (8 * (j % 4));
            v_codes[j / 4] |= v_code << (8 * (j % 4));
          }
          store_any(entry.m, make_uint2(m_codes[0], m_codes[1]), vector, place[h], count[h]);
          store_any(entry.v, make_uint2(v_codes[0], v_codes[1]), vector, place[h], count[h]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (!inside[h]) continue;
      kept[h][r] = Pack8<W>::pack(w[h]);
      if (!vector) kept[h][r] = first_of(kept[h][r], count[h]);
      amax = max(amax, magnitude_bits(kept[h][r]));
      if (!cast.rowwise) continue;
      store_any(cast.rowwise, encode8(kept[h][r], row_scale, cast.row_e5m2), vector, place[h], count[h]);
    }
  }
  if (cast.colwise) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int64_t first_col = tile_col + h * ElementTile::kCols;
      if (h > 0) __syncthreads();
      ElementTile::stage(words, kept[h], col_scale, cast.col_e5m2);
      __syncthreads();
      ElementTile::write_transposed(words, cast.colwise, entry.rows, tile_row, [&](int c) -> int64_t {
        return first_col + c < entry.cols ? first_col + c : -1;
      });
    }
  }
  if (cast.record) {
    const int64_t tiles = across * ((entry.rows + ElementTile::kRows - 1) / ElementTile::kRows);
    record_amax(amax, cast, static_cast<unsigned int>(tiles));
  }
}

}  // namespace
}  // namespace device

namespace {

bool has_small_moments(const AdamWParameter& p) {
  return p.m.dtype == DType::E4M3;
}

void check_parameter(const AdamWParameter& p) {
  const int64_t count = p.weight.numel();
  const auto real = [](const Tensor& x) { return x.dtype == DType::F32 || x.dtype == DType::BF16; };
  require(real(p.weight) && real(p.gradient) && (real(p.m) || has_small_moments(p)) && p.v.dtype == p.m.dtype,
          "[cuda] adamw: weight {}, gradient {}, m {}, v {}: expected fp32 or bf16, or e4m3 moments",
          name_of(p.weight.dtype), name_of(p.gradient.dtype), name_of(p.m.dtype), name_of(p.v.dtype));
  require(p.gradient.numel() == count && p.m.numel() == count && p.v.numel() == count,
          "[cuda] adamw: gradient {}, m {} or v {} does not fit the weight {}", p.gradient.shape.to_string(),
          p.m.shape.to_string(), p.v.shape.to_string(), p.weight.shape.to_string());
  require(!p.remainder || (p.weight.dtype == DType::BF16 && p.remainder.dtype == DType::U16 &&
                           p.remainder.numel() == count),
          "[cuda] adamw: a remainder of {} {} beside a weight of {} {}, expected uint16 beside bf16",
          name_of(p.remainder.dtype), p.remainder.shape.to_string(), name_of(p.weight.dtype),
          p.weight.shape.to_string());
  if (!has_small_moments(p)) return;
  const int64_t blocks = p.weight.rows() * div_up(p.weight.cols(), kMomentBlock);
  for (const Tensor& scales : {p.m_scales, p.v_scales}) {
    require(scales && scales.dtype == DType::F32 && scales.numel() == blocks,
            "[cuda] adamw: {} scales ({}) of e4m3 moments, expected {} in fp32", scales ? scales.numel() : 0,
            name_of(scales.dtype), blocks);
  }
}

Operand weight_operand(const AdamWParameter& p) {
  Operand operand;
  operand.dense = p.weight.reshaped({p.weight.rows(), p.weight.cols()});
  operand.fp8 = p.fp8;
  return operand;
}

// The kernel writes FP8 copies whose scale is known beforehand.
bool casts_itself(const AdamWParameter& p) {
  return p.fp8 && p.fp8->rule.granularity == Granularity::Tensor && p.fp8->rule.delayed;
}

device::AdamKind kind_of(const AdamWParameter& p) {
  using device::AdamMoments;
  return {.gradient_bf16 = p.gradient.dtype == DType::BF16,
          .moments = has_small_moments(p)       ? AdamMoments::E4M3
                     : p.m.dtype == DType::BF16 ? AdamMoments::Bf16
                                                : AdamMoments::F32,
          .split = static_cast<bool>(p.remainder)};
}

device::AdamEntry make_entry(const AdamWParameter& p, float learning_rate) {
  constexpr const char* op = "adamw";
  device::AdamEntry entry{};
  entry.weight = p.weight.data;
  entry.remainder = static_cast<uint16_t*>(p.remainder.data);
  entry.gradient = p.gradient.data;
  entry.m = p.m.data;
  entry.v = p.v.data;
  entry.m_scales = static_cast<float*>(p.m_scales.data);
  entry.v_scales = static_cast<float*>(p.v_scales.data);
  entry.rows = p.weight.rows();
  entry.cols = p.weight.cols();
  entry.stream = p.stream;
  entry.keep =
      static_cast<float>(1.0 - static_cast<double>(learning_rate) * static_cast<double>(p.weight_decay));
  entry.gradient_bf16 = p.gradient.dtype == DType::BF16;
  entry.moments_bf16 = p.m.dtype == DType::BF16;
  if (casts_itself(p)) {
    check_operand(weight_operand(p), op);
    entry.cast = cast_target(*p.fp8);
    entry.cast.record = true;
    require(!entry.cast.colwise || entry.rows % 16 != 0 || aligned16(entry.cast.colwise),
            "[cuda] {}: the transposed FP8 copy is not 16-byte aligned", op);
  }
  entry.vector = entry.cols % 8 == 0 && aligned16(entry.weight) && aligned16(entry.remainder) &&
                 aligned16(entry.gradient) && aligned16(entry.m) && aligned16(entry.v) &&
                 reinterpret_cast<uintptr_t>(entry.cast.rowwise) % 8 == 0;
  return entry;
}

}  // namespace

void CudaOps::adamw(std::span<const AdamWParameter> parameters, Tensor clip, const AdamWOptions& options) {
  using namespace device;
  constexpr const char* op = "adamw";
  require(options.step >= 1, "[cuda] {}: the step is {}, expected 1 or more", op, options.step);
  double bytes = 0;
  for (const AdamWParameter& p : parameters) {
    check_parameter(p);
    bytes += bytes_of(p.gradient) + 2 * bytes_of(p.weight, p.remainder, p.m, p.v, p.m_scales, p.v_scales);
    if (casts_itself(p)) bytes += bytes_of(p.fp8->rowwise.codes, p.fp8->colwise.codes);
  }
  const OpScope scope(profiler_, OpKind::Optimizer, op, bytes);
  const auto steps = static_cast<double>(options.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(options.beta1), steps);
  const double correction2 = 1.0 - std::pow(static_cast<double>(options.beta2), steps);
  auto table = std::make_unique<AdamTable>();
  table->beta1 = options.beta1;
  table->beta2 = options.beta2;
  table->one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(options.beta1));
  table->one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(options.beta2));
  table->root_beta2 = static_cast<float>(std::sqrt(static_cast<double>(options.beta2)));
  table->root_one_minus_beta2 = static_cast<float>(std::sqrt(1.0 - static_cast<double>(options.beta2)));
  table->step_size = static_cast<float>(static_cast<double>(options.learning_rate) / correction1);
  table->inverse_root = static_cast<float>(1.0 / std::sqrt(correction2));
  table->epsilon = options.epsilon;
  table->seed = options.seed;
  table->keys = Philox(options.seed).keys<kRoundingRounds>();
  table->step = options.step;

  // Parameters of one kind share launches. Matrices of bf16 in whole vectors have kernels of their own, the general ones
  // are for all others.
  const bool epsilon_in_range = options.epsilon >= 0x1p-30f && options.epsilon <= 1.0f;
  struct Prepared {
    AdamEntry entry;
    AdamKind kind;
    bool bf16, tiles;
  };
  std::vector<Prepared> prepared;
  for (const AdamWParameter& p : parameters) {
    if (p.weight.numel() == 0) continue;
    const AdamEntry entry = make_entry(p, options.learning_rate);
    const bool bf16 = p.weight.dtype == DType::BF16;
    const bool tiles = epsilon_in_range && entry.vector && bf16 && entry.cols < (int64_t{1} << 28);
    prepared.push_back({entry, kind_of(p), bf16, tiles});
  }
  const auto launch_all = [&](const auto& belongs, int64_t tile_cols, const auto& launch) {
    int64_t tiles = 0;
    int count = 0;
    const auto flush = [&] {
      if (count > 0) launch(tiles);
      tiles = count = 0;
      std::fill(std::begin(table->first_tiles), std::end(table->first_tiles), INT32_MAX);
    };
    flush();
    for (const Prepared& p : prepared) {
      if (!belongs(p)) continue;
      AdamEntry& entry = table->entries[count] = p.entry;
      entry.first_tile = tiles;
      table->first_tiles[count++] = narrow<int32_t>(tiles);
      tiles += div_up(entry.rows, kAdamTile) * div_up(entry.cols, tile_cols);
      if (count == kParametersPerLaunch) flush();
    }
    flush();
  };
  const auto* clip_data = static_cast<const float*>(clip.data);
  for (const bool gradient_bf16 : {false, true}) {
    for (const AdamMoments moments : {AdamMoments::F32, AdamMoments::Bf16, AdamMoments::E4M3}) {
      for (const bool split : {false, true}) {
        const AdamKind kind{gradient_bf16, moments, split};
        launch_all([&](const Prepared& p) { return p.tiles && p.kind == kind; }, kAdamTile,
                   [&](int64_t tiles) { launch_adamw_tiles(*this, *table, kind, tiles, clip_data); });
      }
    }
  }
  const auto update_others = [&]<class W, bool small_moments>() {
    launch_all(
        [&](const Prepared& p) {
          return !p.tiles && p.bf16 == (sizeof(W) == 2) &&
                 (p.kind.moments == AdamMoments::E4M3) == small_moments;
        },
        (small_moments ? 2 : 1) * ElementTile::kCols,
        [&](int64_t tiles) {
          adamw_kernel<W, small_moments>
              <<<narrow<unsigned>(tiles), ElementTile::kThreads, 0, stream()>>>(*table, clip_data);
          check_launch(op);
        });
  };
  update_others.template operator()<device::Bf16, false>();
  update_others.template operator()<device::Bf16, true>();
  update_others.template operator()<float, false>();
  update_others.template operator()<float, true>();

  for (const AdamWParameter& p : parameters) {
    if (!p.fp8) continue;
    if (!casts_itself(p)) {
      quantize(weight_operand(p));
    } else if (p.fp8->stats) {
      record_stats(weight_operand(p));
    }
  }
}

}  // namespace octet
