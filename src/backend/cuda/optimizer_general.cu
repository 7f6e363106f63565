#include "backend/cuda/optimizer.cuh"

// AdamW for the parameters that the kernels of optimizer_tile.cu do not support: fp32 weights, rows that are not a
// whole number of vectors, unusual epsilons. The types of gradients and moments are chosen at run time.

namespace octet::device {
namespace {

using ElementTile = Tile<static_cast<int>(kAdamTile), 256>;

// ---- eight elements to and from memory ----

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

// Eight nibbles, the first in the lowest bits.
__device__ __forceinline__ uint32_t load_nibbles(const uint8_t* from, int64_t count) {
  uint32_t nibbles = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) nibbles |= (2 * j < count ? uint32_t{from[j]} : 0u) << (8 * j);
  return nibbles;
}
__device__ __forceinline__ void store_nibbles(uint8_t* to, uint32_t nibbles, int64_t count) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (2 * j < count) to[j] = static_cast<uint8_t>(nibbles >> (8 * j));
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

// The values of eight codes: value_of(code) of each.
template <class ValueOf>
__device__ __forceinline__ void load_codes(float (&x)[8], const void* data, bool vector, int64_t place,
                                           int64_t count, const ValueOf& value_of) {
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
  for (int j = 0; j < 8; ++j) x[j] = value_of(static_cast<uint8_t>(words[j / 4] >> (8 * (j % 4))));
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

// ---- a row ----

// A thread holds eight columns of a row, or twice eight where the moments have 8 bits: the eight threads of a row then hold a
// whole block of kMomentBlock columns.
template <bool small_moments>
constexpr int kHalves = small_moments ? 2 : 1;
template <bool small_moments>
constexpr int64_t kTileCols = kHalves<small_moments>* ElementTile::kCols;
static_assert(kTileCols<true> == kMomentBlock);

// Where a thread's part of a row lies.
template <bool small_moments>
struct RowPlaces {
  int64_t row;
  int64_t block;  // of 8-bit moments
  int64_t place[kHalves<small_moments>];
  int64_t count[kHalves<small_moments>];  // elements from there to the end of the row
  bool inside[kHalves<small_moments>];

  __device__ __forceinline__ RowPlaces(const AdamEntry& entry, int64_t row_, int64_t tile_col, int64_t across)
      : row(row_), block(row_ * across + tile_col / kTileCols<small_moments>) {
#pragma unroll
    for (int h = 0; h < kHalves<small_moments>; ++h) {
      const int64_t col = tile_col + h * ElementTile::kCols + ElementTile::col();
      place[h] = row * entry.cols + col;
      count[h] = entry.cols - col;
      inside[h] = row < entry.rows && count[h] > 0;
    }
  }
};

template <bool small_moments>
struct RowMoments {
  float m[kHalves<small_moments>][8];
  float v[kHalves<small_moments>][8];  // its root where moments are small
  RoundingBits random[kHalves<small_moments>];
};

// Where the nibbles of eight columns begin.
__device__ __forceinline__ uint8_t* nibbles_at(const AdamEntry& entry, int64_t row, int64_t col) {
  return static_cast<uint8_t*>(entry.remainder) + row * ((entry.cols + 1) / 2) + col / 2;
}
__device__ __forceinline__ void add_nibbles(float (&w)[8], const uint8_t* from, int64_t count) {
  const uint32_t nibbles = load_nibbles(from, count);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (j < count) w[j] = __uint_as_float(join_nibble(__float_as_uint(w[j]), nibbles >> (4 * j) & 0xFu));
  }
}
// Weights are rounded to 20 bits; the nibbles are stored, and the weights become what bf16 holds.
__device__ __forceinline__ void take_nibbles(float (&w)[8], uint8_t* to, int64_t count,
                                             const RoundingBits& random) {
  uint32_t nibbles = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t bits = to_compact_stochastic(w[j], random.weight(j));
    if (j < count) nibbles |= compact_nibble(bits) << (4 * j);
    w[j] = __uint_as_float(uint32_t{split_high(bits)} << 16);
  }
  store_nibbles(to, nibbles, count);
}

// The weights as bf16 holds them become exact.
__device__ __forceinline__ void add_remainder(float (&w)[8], const uint16_t* from, bool vector,
                                              int64_t count) {
  uint32_t low_bits[8];
  load_words(low_bits, from, vector, count);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    w[j] = __uint_as_float(join_bits(__float_as_uint(w[j]), static_cast<uint16_t>(low_bits[j])));
  }
}

// Exact weights are rounded to bf16; the remainder is stored.
__device__ __forceinline__ void take_remainder(float (&w)[8], uint16_t* to, bool vector, int64_t count) {
  uint32_t low_bits[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    low_bits[j] = __float_as_uint(w[j]);
    w[j] = __uint_as_float(uint32_t{split_high(low_bits[j])} << 16);
  }
  store_words(to, low_bits, vector, count);
}

__device__ __forceinline__ void round_stochastically(float (&w)[8], const RoundingBits& random) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    w[j] = __uint_as_float(uint32_t{to_bf16_stochastic(w[j], random.weight(j))} << 16);
  }
}

template <bool small_moments>
__device__ __forceinline__ void load_moments(float (&m)[8], float (&v)[8], const AdamEntry& entry,
                                             int64_t place, int64_t count) {
  if constexpr (small_moments) {
    load_codes(m, entry.m, entry.vector, place, count, [](uint8_t code) { return decode1(code, false); });
    load_codes(v, entry.v, entry.vector, place, count, [](uint8_t code) { return root_value(code); });
  } else {
    load_any(m, entry.m, entry.moments_bf16, entry.vector, place, count);
    load_any(v, entry.v, entry.moments_bf16, entry.vector, place, count);
  }
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

// A step of eight elements: reads gradients, moments and remainders, stores the weights and what belongs to them, and the
// moments unless they have 8 bits.
template <class W, bool compact, bool small_moments>
__device__ __forceinline__ void update_half(const AdamTable& table, const AdamEntry& entry,
                                            const RowPlaces<small_moments>& at, int h, float clip,
                                            float m_factor, float v_factor, float (&w)[8],
                                            RowMoments<small_moments>& moments) {
  constexpr bool kBf16 = sizeof(W) == 2;
  const bool vector = entry.vector, split = !compact && entry.remainder != nullptr;
  const int64_t place = at.place[h], count = at.count[h];
  float(&m)[8] = moments.m[h];
  float(&v)[8] = moments.v[h];
  float g[8];
  load_any(g, entry.gradient, entry.gradient_bf16, vector, place, count);
  load_moments<small_moments>(m, v, entry, place, count);
  if constexpr (compact) add_nibbles(w, nibbles_at(entry, at.row, entry.cols - count), count);
  if (split) add_remainder(w, static_cast<uint16_t*>(entry.remainder) + place, vector, count);
  if (small_moments || (kBf16 && !split)) {
    moments.random[h] = RoundingBits::of(table.seed, entry.stream, table.step, entry.first_row + at.row,
                                         (entry.cols + 7) / 8, (entry.cols - count) / 8);
  }
  const SmallMomentStep step = small_step(table, entry.keep, clip, __fmul_rn(m_factor, table.beta1),
                                          __fmul_rn(v_factor, table.root_beta2));
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    w[j] = small_moments ? step(w[j], g[j], m[j], v[j])
                         : adamw_update(table, entry.keep, clip, w[j], g[j], m[j], v[j]);
  }
  if constexpr (kBf16) {
    if constexpr (compact) {
      take_nibbles(w, nibbles_at(entry, at.row, entry.cols - count), count, moments.random[h]);
    } else if (split) {
      take_remainder(w, static_cast<uint16_t*>(entry.remainder) + place, vector, count);
    } else {
      round_stochastically(w, moments.random[h]);
    }
  }
  store_any(entry.weight, w, kBf16, vector, place, count);  // exact: already rounded
  if constexpr (!small_moments) {
    store_any(entry.m, m, entry.moments_bf16, vector, place, count);
    store_any(entry.v, v, entry.moments_bf16, vector, place, count);
  }
}

// The codes of a row's moments and the factors of its block. All threads of a row call this.
__device__ __forceinline__ void store_small_moments(const AdamEntry& entry, const RowPlaces<true>& at,
                                                    const RowMoments<true>& moments) {
  float m_largest = 0.0f, root_largest = 0.0f;
#pragma unroll
  for (int h = 0; h < kHalves<true>; ++h) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j >= at.count[h]) continue;  // past the end of a row that is not a whole number of vectors
      m_largest = fmaxf(m_largest, fabsf(moments.m[h][j]));
      root_largest = fmaxf(root_largest, moments.v[h][j]);
    }
  }
  m_largest = row_max(m_largest);
  root_largest = row_max(root_largest);
  if (ElementTile::lane() % 8 == 0 && at.inside[0]) {
    entry.m_scales[at.block] = moment_factor(m_largest);
    entry.v_scales[at.block] = root_factor(root_largest);
  }
  const MomentShift m_shift = MomentShift::of_m(m_largest), root_shift = MomentShift::of_root(root_largest);
#pragma unroll
  for (int h = 0; h < kHalves<true>; ++h) {
    if (!at.inside[h]) continue;
    const RoundingBits& random = moments.random[h];
    uint32_t m_codes[2] = {}, v_codes[2] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t m_code = to_e4m3_stochastic(m_shift(moments.m[h][j]), random.m(j));
      const uint32_t v_code = to_root_code(root_shift(moments.v[h][j]), random.root(j));
      m_codes[j / 4] |= m_code << (8 * (j % 4));
      v_codes[j / 4] |= v_code << (8 * (j % 4));
    }
    store_any(entry.m, make_uint2(m_codes[0], m_codes[1]), entry.vector, at.place[h], at.count[h]);
    store_any(entry.v, make_uint2(v_codes[0], v_codes[1]), entry.vector, at.place[h], at.count[h]);
  }
}

template <class W, bool compact, bool small_moments>
__device__ __forceinline__ void update_row(const AdamTable& table, const AdamEntry& entry,
                                           const RowPlaces<small_moments>& at, float clip,
                                           float (&w)[kHalves<small_moments>][8]) {
  RowMoments<small_moments> moments;
  float m_factor = 0.0f, v_factor = 0.0f;
  if (small_moments && at.inside[0]) m_factor = entry.m_scales[at.block], v_factor = entry.v_scales[at.block];
#pragma unroll
  for (int h = 0; h < kHalves<small_moments>; ++h) {
    if (at.inside[h]) {
      update_half<W, compact>(table, entry, at, h, clip, m_factor, v_factor, w[h], moments);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) moments.m[h][j] = moments.v[h][j] = 0.0f;
    }
  }
  if constexpr (small_moments) store_small_moments(entry, at, moments);
}

// New weights as they are stored, zero outside the matrix.
template <class W>
__device__ __forceinline__ Pack8<W> stored_form(const float (&w)[8], bool vector, int64_t count) {
  const Pack8<W> kept = Pack8<W>::pack(w);
  return vector ? kept : first_of(kept, count);
}

// ---- the kernel ----

// One block per tile of a parameter. W is the dtype of the weights. Their remainders are all compact, or none is.
template <class W, bool small_moments, bool compact = false>
__global__ void __launch_bounds__(ElementTile::kThreads, sizeof(W) == 2 && !small_moments ? 3 : 2)
    adamw_kernel(const __grid_constant__ AdamTable table, const float* clip) {
  constexpr int halves = kHalves<small_moments>;
  constexpr int64_t tile_cols = kTileCols<small_moments>;
  __shared__ alignas(16) uint32_t words[ElementTile::kWords];
  const bool skip = !isfinite(clip[0]);
  const float clip_factor = clip[1];
  const AdamEntry& entry = entry_of_tile(table, blockIdx.x);
  const CastTarget& cast = entry.cast;
  if (skip && !cast.record) return;  // FP8 copies are rewritten even then: their scales may have changed
  const int64_t tile = blockIdx.x - entry.first_tile;
  const int64_t across = (entry.cols + tile_cols - 1) / tile_cols;
  const int64_t tile_row = tile / across * ElementTile::kRows, tile_col = tile % across * tile_cols;
  const float row_scale = cast.rowwise ? cast.slot->scale_rowwise : 1.0f;
  const float col_scale = cast.colwise ? cast.slot->scale_colwise : 1.0f;
  Pack8<W> kept[halves][4];
  uint32_t amax = 0;

#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const RowPlaces<small_moments> at(entry, tile_row + ElementTile::row() + r, tile_col, across);
    float w[halves][8];
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      kept[h][r] = Pack8<W>::zero();
      if (at.inside[h]) load_any(w[h], entry.weight, sizeof(W) == 2, entry.vector, at.place[h], at.count[h]);
    }
    if (!skip) update_row<W, compact>(table, entry, at, clip_factor, w);
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      if (!at.inside[h]) continue;
      kept[h][r] = stored_form<W>(w[h], entry.vector, at.count[h]);
      amax = max(amax, magnitude_bits(kept[h][r]));
      if (!cast.rowwise) continue;
      store_any(cast.rowwise, encode8(kept[h][r], row_scale, cast.row_e5m2), entry.vector, at.place[h],
                at.count[h]);
    }
  }
  if (cast.colwise) {
#pragma unroll
    for (int h = 0; h < halves; ++h) {
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

int64_t general_tile_cols(bool small_moments) {
  return small_moments ? kTileCols<true> : kTileCols<false>;
}

void launch_adamw_general(CudaOps& ops, const AdamTable& table, AdamGeneral kind, int64_t tiles,
                          const float* clip) {
  const auto launch = [&](auto kernel) {
    kernel<<<narrow<unsigned>(tiles), ElementTile::kThreads, 0, ops.stream()>>>(table, clip);
  };
  const bool small = kind.small_moments;
  if (kind.compact) {
    small ? launch(adamw_kernel<Bf16, true, true>) : launch(adamw_kernel<Bf16, false, true>);
  } else if (kind.bf16) {
    small ? launch(adamw_kernel<Bf16, true>) : launch(adamw_kernel<Bf16, false>);
  } else {
    small ? launch(adamw_kernel<float, true>) : launch(adamw_kernel<float, false>);
  }
  check_launch("adamw");
}

}  // namespace octet::device
