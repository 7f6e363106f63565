#include "backend/cuda/narrow_product.cuh"

// g (D, R) or (R, D) [+]= alpha * x (N, D)^T u (N, R), reduced over the rows of x.
//
// The tensor cores compute u^T x: A is u^T, and B is x. A warp takes eight times `lane_bytes` columns of x and every
// eighth step of 16 rows of the block's part. Codes go straight into registers. A lane loads `lane_bytes` neighbouring codes of the four rows
// 4t ... 4t + 3 of a step, so fragment n of B has the n-th column of each lane. The order of the rows inside a step does
// not matter, because u is read in the same order.

namespace octet::device {
namespace {

constexpr int kStep = 16;  // rows of x in a fragment

template <int lane_bytes>
struct LaneCodes {
  uint32_t words[lane_bytes / 4];

  __device__ __forceinline__ static LaneCodes load(const uint8_t* from, bool exists) {
    LaneCodes codes;
    if constexpr (lane_bytes == 16) {
      const uint4 v = exists ? load_once(from) : make_uint4(0, 0, 0, 0);
      codes.words[0] = v.x, codes.words[1] = v.y, codes.words[2] = v.z, codes.words[3] = v.w;
    } else {
      const uint2 v = exists ? load_once8(from) : make_uint2(0, 0);
      codes.words[0] = v.x, codes.words[1] = v.y;
    }
    return codes;
  }
};

// A[m] from four rows of u: lane g has the ranks 2g and 2g + 1 of every 16 as the rows g and g + 8 of the fragment.
template <int rank_tiles>
struct LaneRanks {
  uint32_t words[4][rank_tiles];

  __device__ __forceinline__ void fragment(uint32_t (&a)[4], int m) const {
    a[0] = __byte_perm(words[0][m], words[1][m], 0x5410);
    a[1] = __byte_perm(words[0][m], words[1][m], 0x7632);
    a[2] = __byte_perm(words[2][m], words[3][m], 0x5410);
    a[3] = __byte_perm(words[2][m], words[3][m], 0x7632);
  }
};

template <int rank_tiles, int lane_bytes>
__global__ void __launch_bounds__(kNarrowThreads, 2)
    narrow_product_over_rows_kernel(const NarrowArgs args, bool transpose_g, bool accumulate) {
  extern __shared__ __align__(128) float sums_of_block[];  // [warp][rank][column]
  constexpr int kRanks = 16 * rank_tiles, kColumns = 8 * lane_bytes, kPitch = kColumns + 4;
  constexpr int kWarpSums = kRanks * kPitch;
  cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const int part = static_cast<int>(cluster.block_rank()), parts = args.cluster;
  const int g = lane_id() / 4, t = lane_id() % 4;
  const int column0 = static_cast<int>(blockIdx.x / static_cast<unsigned>(parts)) * kColumns;
  const int rank0 = static_cast<int>(blockIdx.y) * kRanks;
  const bool has_columns = column0 + lane_bytes * g < args.depth;

  const int64_t steps = (args.rows + kStep - 1) / kStep;
  const int64_t begin = steps * part / parts, end = steps * (part + 1) / parts;
  const uint8_t* codes_from = args.codes + column0 + lane_bytes * g;
  const Bf16* ranks_from = args.dense + rank0 + 2 * g;

  LaneCodes<lane_bytes> next_codes[4];
  LaneRanks<rank_tiles> next_ranks;
  const auto load = [&](int64_t step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t row = kStep * step + 4 * t + j;
      const bool exists = row < args.rows;
      next_codes[j] =
          LaneCodes<lane_bytes>::load(codes_from + row * args.codes_stride, exists && has_columns);
#pragma unroll
      for (int m = 0; m < rank_tiles; ++m) {
        const auto* from = reinterpret_cast<const uint32_t*>(ranks_from + row * args.dense_stride + 16 * m);
        next_ranks.words[j][m] = exists && rank0 + 16 * m + 2 * g < args.rank ? __ldg(from) : 0;
      }
    }
  };

  float sums[rank_tiles][lane_bytes][4];
  clear(sums);
  uint32_t largest = 0;
  int64_t step = begin + warp_id();
  if (step < end) load(step);
#pragma unroll 1
  for (; step < end; step += kNarrowWarps) {
    LaneCodes<lane_bytes> codes[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) codes[j] = next_codes[j];
    const LaneRanks<rank_tiles> ranks = next_ranks;
    if (step + kNarrowWarps < end) load(step + kNarrowWarps);
    uint32_t a[rank_tiles][4];
#pragma unroll
    for (int m = 0; m < rank_tiles; ++m) ranks.fragment(a[m], m);
#pragma unroll
    for (int word = 0; word < lane_bytes / 4; ++word) {
#pragma unroll
      for (int two = 0; two < 2; ++two) {
        // The same two columns of two rows each, so that the pairs below are along the rows.
        const uint32_t select = two == 0 ? 0x5410 : 0x7632;
        const CodePairs upper =
            alternate_pairs(__byte_perm(codes[0].words[word], codes[1].words[word], select), args.format);
        const CodePairs lower =
            alternate_pairs(__byte_perm(codes[2].words[word], codes[3].words[word], select), args.format);
        largest = __vimax3_u16x2(upper.magnitudes[0], upper.magnitudes[1], largest);
        largest = __vimax3_u16x2(lower.magnitudes[0], lower.magnitudes[1], largest);
#pragma unroll
        for (int m = 0; m < rank_tiles; ++m) {
#pragma unroll
          for (int i = 0; i < 2; ++i)
            mma(sums[m][4 * word + 2 * two + i], a[m], upper.values[i], lower.values[i]);
        }
      }
    }
  }
  if (warp_saw_not_finite(largest, args.format)) fill(sums, __uint_as_float(0x7FC00000u));

  float* own = sums_of_block + warp_id() * kWarpSums;
#pragma unroll
  for (int m = 0; m < rank_tiles; ++m) {
#pragma unroll
    for (int n = 0; n < lane_bytes; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int rank = 16 * m + 2 * g + i / 2, column = lane_bytes * (2 * t + i % 2) + n;
        own[rank * kPitch + column] = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  // The sum over the warps takes the place of the first.
  constexpr int kQuads = kColumns / 4, kCount = kRanks * kQuads;
  const auto place_of = [](int i) { return i / kQuads * kPitch + 4 * (i % kQuads); };
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kNarrowThreads) {
    const int place = place_of(i);
    float4 total = *reinterpret_cast<const float4*>(sums_of_block + place);
#pragma unroll
    for (int w = 1; w < kNarrowWarps; ++w) {
      const float4 values = *reinterpret_cast<const float4*>(sums_of_block + w * kWarpSums + place);
      total.x += values.x, total.y += values.y, total.z += values.z, total.w += values.w;
    }
    *reinterpret_cast<float4*>(sums_of_block + place) = total;
  }
  cluster.sync();

  const float factor = __fmul_rn(args.alpha, *args.scale);
  for (int i = kCount * part / parts + static_cast<int>(threadIdx.x); i < kCount * (part + 1) / parts;
       i += kNarrowThreads) {
    const int rank = rank0 + i / kQuads, column = column0 + 4 * (i % kQuads);
    if (rank >= args.rank || column >= args.depth) continue;
    const float4 total = sum_over_cluster(cluster, sums_of_block, place_of(i), parts);
    const float values[4] = {total.x, total.y, total.z, total.w};
    auto* result = static_cast<float*>(args.result);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float* to = transpose_g ? result + rank * args.result_stride + column + j
                              : result + (column + j) * args.result_stride + rank;
      const float value = __fmul_rn(values[j], factor);
      *to = accumulate ? *to + value : value;
    }
  }
  cluster.sync();  // other blocks may still read this one's sums
}

template <int rank_tiles, int lane_bytes>
void launch(CudaOps& ops, NarrowArgs args, bool transpose_g, bool accumulate) {
  const int64_t tiles = div_up(args.depth, 8 * lane_bytes);
  args.cluster = cluster_size(tiles, div_up(args.rows, kStep * kNarrowWarps), ops.sm_count());
  const dim3 grid(narrow<unsigned>(tiles * args.cluster),
                  narrow<unsigned>(div_up(args.rank, 16 * rank_tiles)));
  constexpr int64_t kBytes = int64_t{4} * kNarrowWarps * 16 * rank_tiles * (8 * lane_bytes + 4);
  launch_clusters(ops, "narrow_product_over_rows", narrow_product_over_rows_kernel<rank_tiles, lane_bytes>,
                  grid, args.cluster, kBytes, args, transpose_g, accumulate);
}

}  // namespace

// The sums of a warp must fit into registers: more ranks, fewer columns.
void launch_narrow_product_over_rows(CudaOps& ops, const NarrowArgs& args, bool transpose_g,
                                     bool accumulate) {
  if (args.rank <= 16) return launch<1, 16>(ops, args, transpose_g, accumulate);
  launch<2, 8>(ops, args, transpose_g, accumulate);
}

}  // namespace octet::device
