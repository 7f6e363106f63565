#include <algorithm>

#include "backend/cuda/optimizer_tile.cuh"

// AdamW for nearly all parameters of a model: matrices with bf16 weights whose rows are whole vectors. An element
// takes 12 to 30 bytes of traffic and about sixty instructions, so both matter. Rows are loaded ahead of time. The
// loop over rows is unrolled only for pairs that share random bits, because the code must fit the instruction cache.
// Types are compile-time constants, offsets have 32 bits, and square root and division have one check per eight
// elements or none. Results have the same bits as the general kernel.

namespace octet::device {
namespace {

// The elements of a thread: eight columns of kRowsPerThread neighbouring rows. Threads beyond an edge do the same
// work as a thread inside, so that nothing branches, but store nothing.
struct ThreadShare {
  int64_t rows, cols;  // of the matrix
  int64_t tile_row, tile_col;
  int64_t row, col;  // the first
  uint32_t across;   // tiles side by side
  uint32_t tile_across;
  int lane, warp;
  int first_line, word;  // in the tile: of rows, and of words of four columns
  int rows_here;         // may be negative
  int last_line;         // last line with data to load
  bool column_inside;

  __device__ __forceinline__ explicit ThreadShare(const AdamEntry& entry)
      : rows(entry.rows),
        cols(entry.cols),
        across(static_cast<uint32_t>((cols + kAdamTile - 1) / kAdamTile)),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        first_line(kRowsPerWarp * warp + kRowsPerThread * (lane / 16)),
        word(2 * (lane % 16)) {
    const uint32_t tile = blockIdx.x - static_cast<uint32_t>(entry.first_tile);
    tile_across = tile % across;
    tile_row = tile / across * kAdamTile, tile_col = tile_across * kAdamTile;
    rows_here = static_cast<int>(min(rows - tile_row - first_line, int64_t{kRowsPerThread}));
    last_line = max(rows_here, 1) - 1;
    row = min(tile_row + first_line, rows - 1);
    column_inside = tile_col + 4 * word < cols;
    col = tile_col + (column_inside ? 4 * word : 0);
  }
  __device__ __forceinline__ int64_t place() const { return row * cols + col; }
  __device__ __forceinline__ int64_t block() const { return row * across + tile_across; }
  __device__ __forceinline__ uint32_t width() const { return static_cast<uint32_t>(cols); }
  __device__ __forceinline__ uint32_t line(int i) const { return static_cast<uint32_t>(min(i, last_line)); }
  // Rows to store: none beyond the columns.
  __device__ __forceinline__ int lines() const { return column_inside ? rows_here : 0; }
  // Rows whose factors are stored; also for the second lane if it has no columns.
  __device__ __forceinline__ int factor_lines() const { return lane % 16 < 2 ? rows_here : 0; }
};

// The FP8 copies of the new weights of a thread's rows.
struct RowCast {
  const CastTarget& cast;
  const ThreadShare& share;
  float row_scale, col_scale;
  bool same_codes;
  uint32_t* staged;  // the thread's place in the tile of codes
  uint32_t amax = 0;

  __device__ __forceinline__ RowCast(const CastTarget& cast_, const ThreadShare& share_, uint32_t* words)
      : cast(cast_),
        share(share_),
        row_scale(cast.rowwise ? cast.slot->scale_rowwise : 1.0f),
        col_scale(cast.colwise ? cast.slot->scale_colwise : 1.0f),
        same_codes(cast.rowwise && row_scale == col_scale && cast.row_e5m2 == cast.col_e5m2),
        staged(words + CodeTile::place(share.warp, share.first_line, share.word)) {}

  // The usual case: e4m3, and the same codes in both directions if there is a transposed copy.
  __device__ __forceinline__ bool plain() const {
    return cast.record && cast.rowwise && !cast.row_e5m2 && (!cast.colwise || same_codes);
  }

  template <bool plain>
  __device__ __forceinline__ void row(const Pack8<Bf16>& kept, int i) {
    if (i < share.lines()) amax = max(amax, magnitude_bits(kept));
    uint2 codes{};
    if (plain || cast.rowwise) {
      codes = encode8(kept, row_scale, !plain && cast.row_e5m2);
      if (i < share.lines()) {
        *reinterpret_cast<uint2*>(cast.rowwise + share.place() + static_cast<uint32_t>(i) * share.width()) =
            codes;
      }
    }
    if (plain || cast.colwise) {  // plain rows are always staged, even if nobody reads them
      if (!plain && !same_codes) codes = encode8(kept, col_scale, cast.col_e5m2);
      *reinterpret_cast<uint2*>(staged + 32 * i) = codes;
    }
  }

  // Work that is left when all rows of the block are done: the amax and the transposed copy. No thread waits for the atomic,
  // so that a block ends early and the next one begins. finish_amax_kernel does the rest.
  __device__ __forceinline__ void finish(const uint32_t* words) const {
    if (!cast.record) return;
    const uint32_t largest = __reduce_max_sync(0xFFFFFFFFu, amax);
    if (share.lane == 0) add_amax(largest, cast.slot);
    if (!cast.colwise) return;
    __syncthreads();
    CodeTile::write_transposed(words, cast.colwise, share.rows, share.tile_row, [&](int c) {
      return share.tile_col + c < share.cols ? share.tile_col + c : -1;
    });
  }
};

// The bits of two rows.
struct PairBits {
  std::array<uint32_t, 4> words{};

  __device__ __forceinline__ RoundingBits of(int parity) const {  // no run-time index
    return parity == 0 ? RoundingBits{{words[0], words[1]}} : RoundingBits{{words[2], words[3]}};
  }
};

// Weights in bf16 and their remainders.
template <RemainderKind kind>
struct StoredWeights {
  Pack8<Bf16> kept;
  Remainders<kind> remainder;
};

// Two steps of compact_nibble: the second bytes of a pair, then, from those of four pairs, the upper half of each.
__device__ __forceinline__ uint32_t second_bytes(uint32_t even, uint32_t odd) {
  return __byte_perm(even, odd, 0x0051);
}
__device__ __forceinline__ uint32_t pack_nibbles(const uint32_t (&pairs)[4]) {
  const uint32_t first = __byte_perm(pairs[0], pairs[1], 0x5410),
                 last = __byte_perm(pairs[2], pairs[3], 0x5410);
  return (__byte_perm(first, last, 0x6420) >> 4 & 0x0F0F0F0Fu) |
         (__byte_perm(first, last, 0x7531) & 0xF0F0F0F0u);
}

template <RemainderKind kind>
__device__ __forceinline__ StoredWeights<kind> round_weights(const float (&w)[8], const RoundingBits& bits) {
  constexpr bool kCompact = kind == RemainderKind::Compact;
  // compact_sum with a check of one instruction
  const auto bits_of = [&](int j) {
    constexpr float kLargest = std::bit_cast<float>(kCompactLargest);
    return __float_as_uint(w[j]) + (kCompact && fabsf(w[j]) < kLargest ? noise_of(bits, j) >> 12 : 0u);
  };
  const auto added = [&](int j) { return kind == RemainderKind::None ? noise_of(bits, j) >> 8 : kSplitHalf; };
  uint32_t upper[4], lower[4];
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t a = bits_of(2 * pair), b = bits_of(2 * pair + 1);
    upper[pair] = __byte_perm(a + added(2 * pair), b + added(2 * pair + 1), 0x7632);
    lower[pair] = kCompact ? second_bytes(a, b) : __byte_perm(a, b, 0x5410);
  }
  StoredWeights<kind> stored{{make_uint4(upper[0], upper[1], upper[2], upper[3])}, {}};
  if constexpr (kCompact) stored.remainder = pack_nibbles(lower);
  if constexpr (kind == RemainderKind::Exact)
    stored.remainder = make_uint4(lower[0], lower[1], lower[2], lower[3]);
  return stored;
}

// The weights as bf16 holds them get the bits of their remainders.
__device__ __forceinline__ void add_remainder(float (&w)[8], uint32_t nibbles) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    w[j] = __uint_as_float(join_nibble(__float_as_uint(w[j]), nibbles >> (4 * j) & 0xFu));
  }
}
__device__ __forceinline__ void add_remainder(float (&w)[8], uint4 remainder) {
  const uint32_t low[4] = {remainder.x, remainder.y, remainder.z, remainder.w};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const auto part = static_cast<uint16_t>(j % 2 ? low[j / 2] >> 16 : low[j / 2] & 0xFFFFu);
    w[j] = __uint_as_float(join_bits(__float_as_uint(w[j]), part));
  }
}

// All work of a thread, row by row.
template <class G, AdamMoments moments, RemainderKind kind>
struct TileUpdate {
  using M = typename MomentPacks<moments>::Element;
  static constexpr bool small = moments == AdamMoments::Small;
  static constexpr bool kDraws = small || kind != RemainderKind::Exact;  // random bits
  // Whether they are drawn before the step, for this row and the next. There are too few registers for that where rows
  // are longest.
  static constexpr bool kKeepsBits =
      kDraws && !(kind == RemainderKind::Compact && moments == AdamMoments::F32);

  const AdamTable& table;
  const AdamEntry& entry;
  const ThreadShare& share;
  const AdamPlaces<G, moments> places;
  AdamRows<G, moments, kind> ahead;
  bool odd;
  float clip_factor = 0, beta = 0;
  uint64_t index = 0;  // of the random bits of the first row
  PairBits random;

  __device__ __forceinline__ TileUpdate(const AdamTable& table_, const AdamEntry& entry_,
                                        const ThreadShare& share_, uint8_t* shared)
      : table(table_),
        entry(entry_),
        share(share_),
        places{entry, share.place(), (share.lane % 2 == 0 ? entry.m_scales : entry.v_scales) + share.block()},
        ahead(shared),
        odd(share.lane % 2 == 1) {}

  __device__ __forceinline__ void load(int i) {
    if (i < kRowsPerThread) {
      const uint32_t line = share.line(i);
      ahead.load(i, places, line * share.width(), line * share.across);
    } else {
      ahead.no_load();
    }
  }
  __device__ __forceinline__ void load_first() {
#pragma unroll
    for (int i = 0; i < ahead.kAhead; ++i) load(i);
  }
  __device__ __forceinline__ void prepare(float clip) {
    clip_factor = clip;
    beta = odd ? table.root_beta2 : table.beta1;
    index = RoundingBits::index(entry.first_row + share.row, share.cols / 8, share.col / 8);
  }

  // Steps of 8-bit moments, which stay in m and v (as a root) until their codes are made.
  __device__ __forceinline__ void step_small(const AdamRaw<G, moments, kind>& raw, float (&w)[8],
                                             const float (&g)[8], float (&m)[8], float (&v)[8]) const {
    decode8(m, raw.m);
    root_values8(v, raw.v);
    const OfMoments kept = exchange(__fmul_rn(raw.factor, beta), odd);
    const SmallMomentStep step = small_step(table, entry.keep, clip_factor, kept.m, kept.root);
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = step.template operator()<QuickMath>(w[j], g[j], m[j], v[j]);
  }
  // Steps of other moments, which are stored at once.
  __device__ __forceinline__ void step_plain(const AdamRaw<G, moments, kind>& raw, float (&w)[8],
                                             const float (&g)[8], float (&m)[8], float (&v)[8],
                                             uint32_t offset, bool inside) const {
    raw.m.unpack(m);
    raw.v.unpack(v);
    adamw_update8(table, entry.keep, clip_factor, w, g, m, v);
    if (inside) {
      Pack8<M>::pack(m).store(places.m(offset));
      Pack8<M>::pack(v).store(places.v(offset));
    }
  }
  __device__ __forceinline__ void store_small(int i, float (&m)[8], float (&v)[8], const RoundingBits& bits,
                                              uint32_t offset, bool inside) const {
    const float factor = shift_moments(m, v, odd);
    if (i < share.factor_lines()) places.factors[static_cast<uint32_t>(i) * share.across] = factor;
    uint32_t m_codes[8], v_codes[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      m_codes[j] = e4m3_magnitude(m[j], noise_of(bits, j ^ 4)) | (__float_as_uint(m[j]) & 0x80000000u);
      v_codes[j] = flipped_root_word(__float_as_uint(fmaxf(v[j], kRootFloor)), noise_of(bits, j ^ 2));
    }
    if (inside) {
      *reinterpret_cast<uint2*>(places.m(offset)) = upper_bytes(m_codes);
      *reinterpret_cast<uint2*>(places.v(offset)) = root_codes(v_codes);
    }
  }

  __device__ __forceinline__ void draw(int i) {
    random.words =
        Philox::words(table.keys, entry.stream, index + static_cast<uint32_t>(i / 2) * (share.width() / 8));
#pragma unroll
    for (uint32_t& word : random.words) word += RoundingBits::turn(table.step);
  }

  template <bool plain>
  __device__ __forceinline__ void row(RowCast& cast, int i, int parity) {
    const AdamRaw<G, moments, kind> raw = ahead.take(i);
    load(i + ahead.kAhead);
    const auto offset = static_cast<uint32_t>(i) * share.width();
    const bool inside = i < share.lines();
    if constexpr (kKeepsBits) {
      if (parity == 0) draw(i);
    }
    float w[8], g[8], m[8], v[8];
    raw.weight.unpack(w);
    raw.gradient.unpack(g);
    if constexpr (kind != RemainderKind::None) add_remainder(w, raw.remainder);
    if constexpr (small) {
      step_small(raw, w, g, m, v);
    } else {
      step_plain(raw, w, g, m, v, offset, inside);
    }
    if constexpr (kDraws && !kKeepsBits) draw(i);
    const RoundingBits bits = random.of(parity);
    const StoredWeights<kind> stored = round_weights<kind>(w, bits);
    if (inside) {
      stored.kept.store(places.weight(offset));
      if constexpr (kind != RemainderKind::None) {
        *static_cast<Remainders<kind>*>(places.template remainder<kind>(offset)) = stored.remainder;
      }
    }
    if constexpr (small) store_small(i, m, v, bits, offset, inside);
    if (plain || cast.cast.record) cast.template row<plain>(stored.kept, i);
  }

  template <bool plain>
  __device__ __forceinline__ void all_rows(RowCast& cast) {
#pragma unroll 1
    for (int i = 0; i < kRowsPerThread; i += small ? 2 : 1) {
      row<plain>(cast, i, small ? 0 : i % 2);
      if constexpr (small) row<plain>(cast, i + 1, 1);
    }
  }
  // For a skipped step: FP8 copies are rewritten even then, because their scales may have changed.
  __device__ __forceinline__ void cast_rows(RowCast& cast) const {
    copy_async_wait_all();
    if (!cast.cast.record) return;
#pragma unroll 1
    for (int i = 0; i < kRowsPerThread; ++i)
      cast.template row<false>(Pack8<Bf16>::load(places.weight(share.line(i) * share.width())), i);
  }
};

// One block per tile of a parameter.
template <class G, AdamMoments moments, RemainderKind kind>
__global__ void __launch_bounds__(kTileThreads, 3)
    adamw_tile_kernel(const __grid_constant__ AdamTable table, const float* clip) {
  __shared__ alignas(16) uint32_t words[CodeTile::kWords];
  extern __shared__ __align__(16) uint8_t shared[];
  const AdamEntry& entry = entry_of_tile(table, blockIdx.x);
  const ThreadShare share(entry);
  TileUpdate<G, moments, kind> update(table, entry, share, shared);
  update.load_first();  // before waiting for anything

  const bool skip = !isfinite(clip[0]);
  update.prepare(clip[1]);
  RowCast cast(entry.cast, share, words);
  if (skip) {
    update.cast_rows(cast);
  } else if (update.small && cast.plain()) {
    update.template all_rows<true>(cast);
  } else {
    update.template all_rows<false>(cast);
  }
  cast.finish(words);
}

// After all blocks of adamw_tile_kernel: one thread per parameter.
__global__ void __launch_bounds__(kParametersPerLaunch)
    finish_amax_kernel(const __grid_constant__ AdamTable table) {
  const AdamEntry& entry = table.entries[threadIdx.x];
  if (table.first_tiles[threadIdx.x] != INT32_MAX && entry.cast.record) take_amax(entry.cast);
}

}  // namespace

void launch_adamw_tiles(CudaOps& ops, const AdamTable& table, AdamKind kind, int64_t tiles,
                        const float* clip) {
  const auto launch = [&]<class G, AdamMoments moments, RemainderKind remainder>() {
    constexpr auto kernel = adamw_tile_kernel<G, moments, remainder>;
    constexpr int bytes = AdamRows<G, moments, remainder>::kSharedBytes;
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "adamw");
    kernel<<<narrow<unsigned>(tiles), kTileThreads, bytes, ops.stream()>>>(table, clip);
  };
  const auto with_moments = [&]<class G, RemainderKind remainder>() {
    switch (kind.moments) {
      case AdamMoments::F32:
        return launch.template operator()<G, AdamMoments::F32, remainder>();
      case AdamMoments::Bf16:
        return launch.template operator()<G, AdamMoments::Bf16, remainder>();
      case AdamMoments::Small:
        return launch.template operator()<G, AdamMoments::Small, remainder>();
    }
  };
  const auto with_remainder = [&]<class G>() {
    switch (kind.remainder) {
      case RemainderKind::None:
        return with_moments.template operator()<G, RemainderKind::None>();
      case RemainderKind::Compact:
        return with_moments.template operator()<G, RemainderKind::Compact>();
      case RemainderKind::Exact:
        return with_moments.template operator()<G, RemainderKind::Exact>();
    }
  };
  kind.gradient_bf16 ? with_remainder.template operator()<Bf16>()
                     : with_remainder.template operator()<float>();
  check_launch("adamw");
  // Entries behind the last parameter are those of an earlier launch; the kernel skips them.
  if (std::ranges::none_of(table.entries, [](const AdamEntry& entry) { return entry.cast.record; })) return;
  finish_amax_kernel<<<1, kParametersPerLaunch, 0, ops.stream()>>>(table);
  check_launch("adamw");
}

}  // namespace octet::device
