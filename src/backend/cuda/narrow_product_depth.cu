#include "backend/cuda/narrow_product.cuh"

// u (N, R) = alpha * x (N, D) w, reduced over the columns of x.
//
// A lane loads 16 neighbouring codes of a row at once, for four fragments. So the fragments have the columns in another
// order than x, and w is read in the same order: in a group of 64 columns, lane t of a row has the columns
// 16t + 4s + j (j < 4) of fragment s.

namespace octet::device {
namespace {

constexpr int kGroup = 64;  // columns of x in four fragments
constexpr int kGroups = kNarrowStep / kGroup;

struct DepthLayout {
  int rows, pitch;       // of the block's tile of u, in fp32
  int64_t codes, stage;  // bytes in a stage: of x, and in all

  __host__ __device__ explicit DepthLayout(const NarrowSplit& split)
      : rows(split.rows()),
        // Neighbouring rows are then in different banks.
        pitch(split.columns() + (split.all_tiles() % 2 == 0 ? 8 : 0)),
        codes(int64_t{rows} * kNarrowStep),
        stage(codes + int64_t{split.all_tiles()} * kNarrowColumnBytes) {}
  __host__ __device__ int group_size() const { return rows * pitch; }
  __host__ int64_t shared_bytes(const NarrowSplit& split) const {
    const int64_t sums = int64_t{4} * split.depth_groups * group_size();
    return std::max(sums, narrow_stages(split.tiles) * stage);
  }
};

// 16-byte chunks of a row of codes are permuted so that two rows with the same columns are in different banks.
__device__ __forceinline__ int codes_place(int row, int chunk) {
  return row * kNarrowStep + 16 * (chunk ^ (4 * (row & 1)));
}
// w stored (R, D): likewise.
__device__ __forceinline__ int transposed_place(int row, int chunk) {
  return row * (2 * kNarrowStep) + 16 * (chunk ^ (row & 1));
}
// w stored (D, R): the rows of an ldmatrix are neighbours. Row 16t + 4s + 2i + b of a group belongs to pair t of half b
// of fragment s.
__device__ __forceinline__ int plain_place(int row, int tile) {
  const int t = row >> 4 & 3, s = row >> 2 & 3, i = row >> 1 & 1, b = row & 1;
  return tile * kNarrowColumnBytes + 16 * ((row & ~(kGroup - 1)) + 8 * (2 * s + b) + 2 * t + i);
}

template <int tiles, bool transposed>
__global__ void __launch_bounds__(kNarrowThreads, 1) narrow_product_kernel(const NarrowArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kStages = narrow_stages(tiles);
  const NarrowSplit split = args.split;
  const DepthLayout layout(split);
  const NarrowWarp warp(split);
  const int thread = static_cast<int>(threadIdx.x);
  cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const int part = static_cast<int>(cluster.block_rank());
  const int64_t row0 = static_cast<int64_t>(blockIdx.x / static_cast<unsigned>(split.cluster)) * layout.rows;

  // This block's columns of x.
  const int groups = (args.depth + kGroup - 1) / kGroup;
  const int begin = kGroup * (groups * part / split.cluster);
  const int end = min(args.depth, kGroup * (groups * (part + 1) / split.cluster));

  const auto load = [&](int stage, int step) {
    uint8_t* codes = shared + stage * layout.stage;
    uint8_t* dense = codes + layout.codes;
    const int k0 = begin + step * kNarrowStep;
    {
      constexpr int kChunks = kNarrowStep / 16, kRows = kNarrowThreads / kChunks;
      const int row = thread / kChunks, chunk = thread % kChunks, k = k0 + 16 * chunk;
#pragma unroll
      for (int i = 0; i < kNarrowWarps * kNarrowWarpRows / kRows; ++i) {
        if (i * kRows >= layout.rows) break;
        // Rows beyond the last one repeat it; they are not stored.
        const int64_t from = min(row0 + row + i * kRows, args.rows - 1);
        copy_async16(codes + codes_place(row + i * kRows, chunk),
                     args.codes + from * args.codes_stride + (k < end ? k : 0), k < end);
      }
    }
    for (int i = thread; i < split.all_tiles() * kNarrowStep; i += kNarrowThreads) {
      if constexpr (transposed) {
        constexpr int kChunks = kNarrowStep / 8;
        const int row = i / kChunks, chunk = i % kChunks, k = k0 + 8 * chunk;
        copy_eight(dense + transposed_place(row, chunk), args.dense + row * args.dense_stride + k,
                   row < args.rank ? end - k : 0, args.dense_vectors, args.dense);
      } else {
        const int row = i / split.all_tiles(), tile = i % split.all_tiles();
        copy_eight(dense + plain_place(row, tile), args.dense + (k0 + row) * args.dense_stride + 8 * tile,
                   k0 + row < end ? args.rank - 8 * tile : 0, args.dense_vectors, args.dense);
      }
    }
  };

  NarrowSums<tiles> sums;
  clear(sums);
  uint32_t largest[2][2] = {};  // magnitudes of the rows of the fragments

  const auto compute_group = [&](const uint8_t* codes, const uint8_t* dense, int group) {
    uint32_t a[2][4][4];  // [fragment of rows][fragment of columns]
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = kNarrowWarpRows * warp.row_group + 16 * m + 8 * half + warp.g;
        const uint4 raw = *reinterpret_cast<const uint4*>(codes + codes_place(row, 4 * group + warp.t));
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const CodePairs pairs =
              transposed ? neighbour_pairs(words[s], args.format) : alternate_pairs(words[s], args.format);
          a[m][s][half] = pairs.values[0];
          a[m][s][half + 2] = pairs.values[1];
          largest[m][half] = __vimax3_u16x2(pairs.magnitudes[0], pairs.magnitudes[1], largest[m][half]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const int tile = warp.column_group * tiles + n;
      uint32_t b[2][4];  // two fragments of columns each
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (transposed) {
          const int place = transposed_place(8 * tile + warp.g, 8 * group + 2 * warp.t + i);
          const uint4 raw = *reinterpret_cast<const uint4*>(dense + place);
          b[i][0] = raw.x, b[i][1] = raw.y, b[i][2] = raw.z, b[i][3] = raw.w;
        } else {
          const int place = tile * kNarrowColumnBytes + 16 * (kGroup * group + 32 * i + lane_id());
          ldmatrix_transposed(b[i], reinterpret_cast<const Bf16*>(dense + place));
        }
      }
#pragma unroll
      for (int s = 0; s < 4; ++s) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
          mma(sums[m][n], a[m][s], b[s / 2][2 * (s % 2)], b[s / 2][2 * (s % 2) + 1]);
      }
    }
  };
  const auto compute = [&](int stage) {
    const uint8_t* codes = shared + stage * layout.stage;
    for (int group = warp.depth_group; group < kGroups; group += split.depth_groups)
      compute_group(codes, codes + layout.codes, group);
  };
  narrow_pipeline<kStages>((end - begin + kNarrowStep - 1) / kNarrowStep, load, compute);

  spoil_rows<tiles>(sums, largest, args.format);
  auto* all = reinterpret_cast<float*>(shared);  // [depth group][row][column]
  float* own = all + warp.depth_group * layout.group_size();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = kNarrowWarpRows * warp.row_group + 16 * m + 8 * half + warp.g;
        const int column = 8 * (warp.column_group * tiles + n) + 2 * warp.t;
        *reinterpret_cast<float2*>(own + row * layout.pitch + column) =
            make_float2(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
      }
    }
  }
  cluster.sync();

  const float factor = __fmul_rn(args.alpha, *args.scale);
  const int quads = split.columns() / 4, count = layout.rows * quads;
  for (int i = count * part / split.cluster + thread; i < count * (part + 1) / split.cluster;
       i += kNarrowThreads) {
    const int row = i / quads, column = 4 * (i % quads);
    if (row0 + row >= args.rows || column >= args.rank) continue;
    const float4 total = sum_of_parts(cluster, all, row * layout.pitch + column, layout.group_size(), split);
    Bf16* to = static_cast<Bf16*>(args.result) + (row0 + row) * args.result_stride + column;
    const uint2 rounded =
        make_uint2(pack(total.x * factor, total.y * factor), pack(total.z * factor, total.w * factor));
    if (args.result_vectors && column + 4 <= args.rank) {
      *reinterpret_cast<uint2*>(to) = rounded;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = j < 2 ? rounded.x : rounded.y;
        if (column + j < args.rank)
          to[j] = __ushort_as_bfloat16(static_cast<unsigned short>(j % 2 ? word >> 16 : word & 0xFFFFu));
      }
    }
  }
  cluster.sync();  // other blocks may still read this one's sums
}

}  // namespace

void launch_narrow_product(CudaOps& ops, const NarrowArgs& args, bool transpose_w) {
  const DepthLayout layout(args.split);
  with_tiles(args.split.tiles, [&]<int tiles>() {
    const auto kernel =
        transpose_w ? narrow_product_kernel<tiles, true> : narrow_product_kernel<tiles, false>;
    launch_clusters(ops, "narrow_product", kernel, div_up(args.rows, layout.rows), args.split.cluster,
                    layout.shared_bytes(args.split), args);
  });
}

}  // namespace octet::device
