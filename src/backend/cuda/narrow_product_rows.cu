#include "backend/cuda/narrow_product.cuh"

// g (D, R) or (R, D) [+]= alpha * x (N, D)^T u (N, R), reduced over the rows of x.
//
// The tensor cores compute u^T x: A is u^T, and B is x. A block takes eight times `lane_bytes` columns of x, and a part
// of its rows. Each warp takes every eighth step of 16 rows. Codes go straight into registers: a lane loads
// `lane_bytes` neighbouring codes of the rows 4t ... 4t + 3 of a step, so fragment n of B has the n-th column of each
// lane. The order of the rows inside a step does not matter, because u is read in the same order.

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
__global__ void __launch_bounds__(kNarrowThreads, 2) narrow_product_over_rows_kernel(const NarrowArgs args) {
  extern __shared__ __align__(128) float sums_of_warps[];  // [warp][rank][column]
  constexpr int kRanks = 16 * rank_tiles, kColumns = 8 * lane_bytes, kPitch = kColumns + 4;
  constexpr int kWarpSums = kRanks * kPitch;
  const int g = lane_id() / 4, t = lane_id() % 4;
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(args.parts));
  const int column0 = static_cast<int>(blockIdx.x / static_cast<unsigned>(args.parts)) * kColumns;
  const int rank0 = static_cast<int>(blockIdx.y) * kRanks;
  const bool has_columns = column0 + lane_bytes * g < args.depth;

  const int64_t steps = (args.rows + kStep - 1) / kStep;
  const int64_t begin = steps * part / args.parts, end = steps * (part + 1) / args.parts;
  // Four neighbouring rows of a step, whose rows advance by eight steps at a time.
  int64_t row = kStep * (begin + warp_id()) + 4 * t;
  const uint8_t* codes_from = args.codes + row * args.codes_stride + column0 + lane_bytes * g;
  const Bf16* ranks_from = args.dense + row * args.dense_stride + rank0 + 2 * g;
  LaneCodes<lane_bytes> next_codes[4];
  LaneRanks<rank_tiles> next_ranks;
  const auto load = [&] {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool exists = row + j < args.rows;
      next_codes[j] = LaneCodes<lane_bytes>::load(codes_from + j * args.codes_stride, exists && has_columns);
#pragma unroll
      for (int m = 0; m < rank_tiles; ++m) {
        const auto* from = reinterpret_cast<const uint32_t*>(ranks_from + j * args.dense_stride + 16 * m);
        next_ranks.words[j][m] = exists && rank0 + 16 * m + 2 * g < args.rank ? __ldg(from) : 0;
      }
    }
    row += kStep * kNarrowWarps;
    codes_from += kStep * kNarrowWarps * args.codes_stride;
    ranks_from += kStep * kNarrowWarps * args.dense_stride;
  };

  float sums[rank_tiles][lane_bytes][4];
  clear(sums);
  uint32_t largest = 0;
  int64_t step = begin + warp_id();
  if (step < end) load();
#pragma unroll 1
  for (; step < end; step += kNarrowWarps) {
    LaneCodes<lane_bytes> codes[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) codes[j] = next_codes[j];
    uint32_t a[rank_tiles][4];
#pragma unroll
    for (int m = 0; m < rank_tiles; ++m) next_ranks.fragment(a[m], m);
    if (step + kNarrowWarps < end) load();
#pragma unroll
    for (int word = 0; word < lane_bytes / 4; ++word) {
#pragma unroll
      for (int two = 0; two < 2; ++two) {
        // The same two columns of two rows each, so that the pairs are along the rows.
        const uint32_t select = two == 0 ? 0x5410 : 0x7632;
        const CodePairs upper =
            alternate_pairs(__byte_perm(codes[0].words[word], codes[1].words[word], select), args.format);
        const CodePairs lower =
            alternate_pairs(__byte_perm(codes[2].words[word], codes[3].words[word], select), args.format);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int n = 4 * word + 2 * two + i;
          largest = __vimax3_u16x2(upper.magnitudes[i], lower.magnitudes[i], largest);
#pragma unroll
          for (int m = 0; m < rank_tiles; ++m) mma(sums[m][n], a[m], upper.values[i], lower.values[i]);
        }
      }
    }
  }

  // A bit for each column of this lane that has a NaN or Inf. They are rare, so which columns have one is looked up
  // afterwards.
  uint32_t spoilt = 0;
  if (__any_sync(0xFFFFFFFFu, is_not_finite(largest, args.format))) {
    const uint8_t* column = args.codes + column0 + lane_bytes * g;
    for (step = begin + warp_id(); step < end && has_columns; step += kNarrowWarps) {
      for (int j = 0; j < 4; ++j) {
        const int64_t at = kStep * step + 4 * t + j;
        for (int n = 0; n < lane_bytes && at < args.rows; ++n) {
          const uint32_t magnitude = (column[at * args.codes_stride + n] & 0x7Fu) << args.format.left;
          spoilt |= static_cast<uint32_t>(is_not_finite(magnitude, args.format)) << n;
        }
      }
    }
    spoilt |= __shfl_xor_sync(0xFFFFFFFFu, spoilt, 1);
    spoilt |= __shfl_xor_sync(0xFFFFFFFFu, spoilt, 2);
  }
  float* own = sums_of_warps + warp_id() * kWarpSums;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // This lane has sums of the columns of lanes 2t and 2t + 1.
    const uint32_t spoilt_columns = __shfl_sync(0xFFFFFFFFu, spoilt, 4 * (2 * t + i));
#pragma unroll
    for (int m = 0; m < rank_tiles; ++m) {
#pragma unroll
      for (int n = 0; n < lane_bytes; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int rank = 16 * m + 2 * g + half, column = lane_bytes * (2 * t + i) + n;
          own[rank * kPitch + column] = spoilt_columns >> n & 1 ? quiet_nan() : sums[m][n][2 * half + i];
        }
      }
    }
  }
  __syncthreads();
  const int64_t all_ranks = static_cast<int64_t>(gridDim.y) * kRanks;
  constexpr int kQuads = kColumns / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kRanks * kQuads; i += kNarrowThreads) {
    const int rank = i / kQuads, column = 4 * (i % kQuads);
    if (column0 + column >= args.depth) continue;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kNarrowWarps; ++w) {
      const float4 v =
          *reinterpret_cast<const float4*>(sums_of_warps + w * kWarpSums + rank * kPitch + column);
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    float* to = args.sums + (part * all_ranks + rank0 + rank) * args.depth + column0 + column;
    *reinterpret_cast<float4*>(to) = total;
  }
}

template <int rank_tiles, int lane_bytes>
void launch(CudaOps& ops, const NarrowArgs& args) {
  constexpr const char* op = "narrow_product_over_rows";
  constexpr int kBytes = 4 * kNarrowWarps * 16 * rank_tiles * (8 * lane_bytes + 4);
  const auto kernel = narrow_product_over_rows_kernel<rank_tiles, lane_bytes>;
  // The kernel keeps the attribute, so setting it again would only cost time.
  static thread_local int allowed_on = -1;
  int device = 0;
  cuda_check(cudaGetDevice(&device), op);
  if (device != allowed_on) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), op);
    allowed_on = device;
  }
  const int64_t blocks = div_up(args.depth, 8 * lane_bytes) * args.parts;
  const dim3 grid(narrow<unsigned>(blocks), narrow<unsigned>(div_up(args.rank, 16 * rank_tiles)));
  kernel<<<grid, kNarrowThreads, kBytes, ops.stream()>>>(args);
  check_launch(op);
}

// The sums of a warp must fit into registers: more ranks, fewer columns.
bool has_few_ranks(int64_t rank) {
  return rank <= 16;
}

}  // namespace

NarrowSplit split_narrow_product_over_rows(int64_t rows, int64_t depth, int64_t rank, int64_t most_sums) {
  const bool few = has_few_ranks(rank);
  NarrowSplit split{1, round_up(rank, few ? 16 : 32), depth};
  const int64_t tiles = div_up(depth, few ? 128 : 64);
  // A block has at least two steps per warp.
  const int64_t most = std::min(
      {int64_t{16}, rows / (2 * kStep * kNarrowWarps), most_sums / std::max<int64_t>(split.elements(), 1)});
  while (2 * split.parts <= most && tiles * split.parts < 256) split.parts *= 2;
  return split;
}

void launch_narrow_product_over_rows(CudaOps& ops, const NarrowArgs& args) {
  if (has_few_ranks(args.rank)) return launch<1, 16>(ops, args);
  launch<2, 8>(ops, args);
}

}  // namespace octet::device
