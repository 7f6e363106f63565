#include "backend/cuda/narrow_product.cuh"

// u (N, R) = alpha * x (N, D) w, reduced over the columns of x.
//
// A warp takes 16 or 32 rows of x and streams their codes straight into registers: nothing of x is read twice, so
// shared memory would not help. w comes through the L1 cache, which all warps of a block share. Parts are ranges of
// columns of x.
//
// A lane loads 16 neighbouring codes of a row at once, for four fragments. So the fragments have the columns in another
// order than x, and w is read in the same order: in a group of 64 columns, lane t of a row has the columns
// 16t + 4s + j (j < 4) of fragment s.

namespace octet::device {
namespace {

constexpr int kGroup = 64;  // columns of x in four fragments

// Four codes of the rows g and g + 8 of a fragment, and the largest magnitude of each row.
template <bool neighbours>
__device__ __forceinline__ void to_fragment(uint32_t (&a)[4], uint32_t upper, uint32_t lower,
                                            const CodeFormat& format, uint32_t (&largest)[2]) {
  const uint32_t words[2] = {upper, lower};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const CodePairs pairs =
        neighbours ? neighbour_pairs(words[half], format) : alternate_pairs(words[half], format);
    a[half] = pairs.values[0];
    a[half + 2] = pairs.values[1];
    largest[half] = __vimax3_u16x2(pairs.magnitudes[0], pairs.magnitudes[1], largest[half]);
  }
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// w stored (R, D): lane t of column g has 16 neighbours of row 8 * tile + g. Fragment s has words 2s and 2s + 1 of
// them.
template <int tiles>
struct TransposedDense {
  const Bf16* rows[tiles];
  bool exists[tiles];

  __device__ TransposedDense(const NarrowArgs& args, int rank0, int g, int t) {
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const int row = rank0 + 8 * n + g;
      exists[n] = row < args.rank;
      rows[n] = args.dense + (exists[n] ? row : 0) * args.dense_stride + 16 * t;
    }
  }
  static constexpr bool kNeighbours = true;
  __device__ int rank_of(int n, int column) const {
    return 8 * n + column;
  }

  template <class Use>
  __device__ __forceinline__ void fragments(const NarrowArgs&, int column, bool inside,
                                            const Use& use) const {
    uint4 raw[tiles][2];
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto* from = reinterpret_cast<const uint4*>(rows[n] + column + 8 * i);
        raw[n][i] = exists[n] && inside ? __ldg(from) : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t b[tiles][2];
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        b[n][0] = word_of(raw[n][s / 2], 2 * (s % 2));
        b[n][1] = word_of(raw[n][s / 2], 2 * (s % 2) + 1);
      }
      use(s, b);
    }
  }
};

// w stored (D, R): column g of all tiles is `tiles` neighbouring ranks, loaded at once. Fragment s has the rows
// (4s, 4s + 2) and (4s + 1, 4s + 3).
template <int tiles>
struct PlainDense {
  const Bf16* from;
  bool exists;  // the ranks of this lane; R is a multiple of `tiles`

  __device__ PlainDense(const NarrowArgs& args, int rank0, int g, int t)
      : from(args.dense + 16 * t * args.dense_stride + rank0 + tiles * g),
        exists(rank0 + tiles * g < args.rank) {}
  static constexpr bool kNeighbours = false;
  __device__ int rank_of(int n, int column) const { return tiles * column + n; }

  // Two ranks per word.
  static constexpr int kWords = (tiles + 1) / 2;
  __device__ __forceinline__ void load(const Bf16* row, bool inside, uint32_t (&words)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
    if (!inside || !exists) return;
    if constexpr (tiles == 1) {
      words[0] = __ldg(reinterpret_cast<const unsigned short*>(row));
    } else if constexpr (tiles == 4) {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(row));
      words[0] = v.x, words[1] = v.y;
    } else if constexpr (tiles == 8) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(row));
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = __ldg(reinterpret_cast<const uint32_t*>(row) + i);
    }
  }

  template <class Use>
  __device__ __forceinline__ void fragments(const NarrowArgs& args, int column, bool inside,
                                            const Use& use) const {
    const Bf16* rows = from + column * args.dense_stride;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t words[4][kWords];
#pragma unroll
      for (int j = 0; j < 4; ++j) load(rows + (4 * s + j) * args.dense_stride, inside, words[j]);
      uint32_t b[tiles][2];
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        const uint32_t select = n % 2 == 0 ? 0x5410 : 0x7632;
        b[n][0] = __byte_perm(words[0][n / 2], words[2][n / 2], select);
        b[n][1] = __byte_perm(words[1][n / 2], words[3][n / 2], select);
      }
      use(s, b);
    }
  }
};

template <int fragments, int tiles, class Dense>
__global__ void __launch_bounds__(kNarrowThreads, 2) narrow_product_kernel(const NarrowArgs args) {
  constexpr int kWarpRows = 16 * fragments, kRows = kWarpRows * kNarrowWarps, kColumns = 8 * tiles;
  const int g = lane_id() / 4, t = lane_id() % 4;
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(args.parts));
  const int64_t warp_row =
      static_cast<int64_t>(blockIdx.x / static_cast<unsigned>(args.parts)) * kRows + kWarpRows * warp_id();
  const int rank0 = static_cast<int>(blockIdx.y) * kColumns;
  const Dense dense(args, rank0, g, t);

  const int groups = (args.depth + kGroup - 1) / kGroup;
  const int begin = groups * part / args.parts, end = groups * (part + 1) / args.parts;
  // Rows beyond the last one repeat it; they are not stored.
  const uint8_t* rows[fragments][2];
#pragma unroll
  for (int m = 0; m < fragments; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = warp_row + 16 * m + 8 * half + g;
      rows[m][half] = args.codes + min(row, args.rows - 1) * args.codes_stride + 16 * t;
    }
  }
  uint4 next[fragments][2];
  const auto load = [&](int group) {
    const bool inside = kGroup * group + 16 * t < args.depth;
#pragma unroll
    for (int m = 0; m < fragments; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        next[m][half] = inside ? load_once(rows[m][half] + kGroup * group) : make_uint4(0, 0, 0, 0);
    }
  };

  float sums[fragments][tiles][4];
  clear(sums);
  uint32_t largest[fragments][2] = {};
  if (begin < end) load(begin);
#pragma unroll 1
  for (int group = begin; group < end; ++group) {
    uint4 codes[fragments][2];
#pragma unroll
    for (int m = 0; m < fragments; ++m) codes[m][0] = next[m][0], codes[m][1] = next[m][1];
    if (group + 1 < end) load(group + 1);
    const bool inside = kGroup * group + 16 * t < args.depth;
    dense.fragments(args, kGroup * group, inside, [&](int s, const uint32_t(&b)[tiles][2]) {
#pragma unroll
      for (int m = 0; m < fragments; ++m) {
        uint32_t a[4];
        to_fragment<Dense::kNeighbours>(a, word_of(codes[m][0], s), word_of(codes[m][1], s), args.format,
                                        largest[m]);
#pragma unroll
        for (int n = 0; n < tiles; ++n) mma(sums[m][n], a, b[n][0], b[n][1]);
      }
    });
  }

  const int64_t pitch = static_cast<int64_t>(gridDim.y) * kColumns;
  float* to = args.sums + part * args.rows * pitch + rank0;
#pragma unroll
  for (int m = 0; m < fragments; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The four lanes of a row share it.
      const unsigned spoilt_lanes = __ballot_sync(0xFFFFFFFFu, is_not_finite(largest[m][half], args.format));
      const bool spoilt = spoilt_lanes >> (4 * g) & 0xFu;
      const int64_t row = warp_row + 16 * m + 8 * half + g;
      if (row >= args.rows) continue;
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          to[row * pitch + dense.rank_of(n, 2 * t + i)] = spoilt ? quiet_nan() : sums[m][n][2 * half + i];
      }
    }
  }
}

// Twice the rows read w half as often, if there are blocks and registers enough.
constexpr int64_t kManyRows = 8192;

template <int fragments, int tiles, class Dense>
void launch(CudaOps& ops, const NarrowArgs& args) {
  const int64_t blocks = div_up(args.rows, 16 * fragments * kNarrowWarps) * args.parts;
  const dim3 grid(narrow<unsigned>(blocks), narrow<unsigned>(div_up(args.rank, 8 * tiles)));
  narrow_product_kernel<fragments, tiles, Dense><<<grid, kNarrowThreads, 0, ops.stream()>>>(args);
  check_launch("narrow_product");
}

template <int tiles, class Dense>
void launch(CudaOps& ops, const NarrowArgs& args) {
  if constexpr (tiles <= 4) {
    if (args.rows >= kManyRows) return launch<2, tiles, Dense>(ops, args);
  }
  launch<1, tiles, Dense>(ops, args);
}

template <int tiles>
void launch(CudaOps& ops, const NarrowArgs& args, bool transpose_w) {
  if (transpose_w) return launch<tiles, TransposedDense<tiles>>(ops, args);
  launch<tiles, PlainDense<tiles>>(ops, args);
}

}  // namespace

NarrowSplit split_narrow_product(int64_t rows, int64_t depth, int64_t rank, int64_t most_sums) {
  const int tiles = narrow_tiles(rank);
  const int64_t block_rows = (tiles <= 4 && rows >= kManyRows ? 32 : 16) * kNarrowWarps;
  NarrowSplit split{1, rows, round_up(rank, 8 * tiles)};
  // Two blocks per multiprocessor of a large GPU, each with at least two groups.
  const int64_t most =
      std::min({int64_t{8}, depth / (2 * kGroup), most_sums / std::max<int64_t>(split.elements(), 1)});
  while (2 * split.parts <= most && div_up(rows, block_rows) * split.parts < 256) split.parts *= 2;
  return split;
}

void launch_narrow_product(CudaOps& ops, const NarrowArgs& args, bool transpose_w) {
  switch (narrow_tiles(args.rank)) {
    case 1:
      return launch<1>(ops, args, transpose_w);
    case 2:
      return launch<2>(ops, args, transpose_w);
    case 4:
      return launch<4>(ops, args, transpose_w);
    case 6:
      return launch<6>(ops, args, transpose_w);
    default:
      return launch<8>(ops, args, transpose_w);
  }
}

}  // namespace octet::device
