#include "backend/cuda/narrow_product.cuh"

// g (D, R) [+]= alpha * x (N, D)^T u (N, R), reduced over the rows of x.
//
// A lane loads words of four neighbouring columns from four neighbouring rows, and turns them into two fragments of 16
// columns and 16 rows: column 4g + 2m + h of a warp's 32 is row g + 8h of fragment m, and row 4t + 2b + i is pair t of
// half b.

namespace octet::device {
namespace {

constexpr int kRowsPerFragment = 16;

struct RowsLayout {
  int columns, pitch;    // of x in a block; of the block's tile of g^T, in fp32
  int64_t codes, stage;  // bytes in a stage: of x, and in all

  __host__ __device__ explicit RowsLayout(const NarrowSplit& split)
      : columns(split.rows()),
        pitch(columns + 4),  // lanes then store to different banks
        codes(int64_t{columns} * kNarrowStep + 32 * kNarrowStep / 4),
        stage(codes + int64_t{split.all_tiles()} * kNarrowColumnBytes) {}
  // Every fourth row is moved by 32 bytes, so that the four rows of a warp's load are in different banks.
  __device__ __forceinline__ int codes_place(int row) const { return row * columns + 32 * (row / 4); }
  __host__ __device__ int group_size(const NarrowSplit& split) const { return split.columns() * pitch; }
  __host__ int64_t shared_bytes(const NarrowSplit& split) const {
    const int64_t sums = int64_t{4} * split.depth_groups * group_size(split);
    return std::max(sums, narrow_stages(split.tiles) * stage);
  }
};

// The rows of an ldmatrix are neighbours.
__device__ __forceinline__ int dense_place(int row, int tile) {
  const int t = row >> 2 & 3, b = row >> 1 & 1, i = row & 1;
  return tile * kNarrowColumnBytes + 16 * ((row & ~(kRowsPerFragment - 1)) + 8 * b + 2 * t + i);
}

template <int tiles>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    narrow_product_over_rows_kernel(const NarrowArgs args, bool transpose_g, bool accumulate) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kStages = narrow_stages(tiles), kFragments = kNarrowStep / kRowsPerFragment;
  const NarrowSplit split = args.split;
  const RowsLayout layout(split);
  const NarrowWarp warp(split);
  const int thread = static_cast<int>(threadIdx.x);
  cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const int part = static_cast<int>(cluster.block_rank());
  const int column0 = static_cast<int>(blockIdx.x / static_cast<unsigned>(split.cluster)) * layout.columns;

  // This block's rows of x.
  const int64_t fragments = (args.rows + kRowsPerFragment - 1) / kRowsPerFragment;
  const int64_t share = kRowsPerFragment * ((fragments + split.cluster - 1) / split.cluster);
  const int64_t begin = min(args.rows, part * share), end = min(args.rows, begin + share);

  const auto load = [&](int stage, int step) {
    uint8_t* codes = shared + stage * layout.stage;
    uint8_t* dense = codes + layout.codes;
    const int64_t n0 = begin + static_cast<int64_t>(step) * kNarrowStep;
    const int chunks = layout.columns / 16, chunk = thread % chunks;
    // Columns beyond the last ones repeat them; they are not stored.
    const int column = min(column0 + 16 * chunk, args.depth - 16);
#pragma unroll 4
    for (int row = thread / chunks; row < kNarrowStep; row += kNarrowThreads / chunks) {
      const bool valid = n0 + row < end;
      copy_async16(codes + layout.codes_place(row) + 16 * chunk,
                   args.codes + (valid ? n0 + row : 0) * args.codes_stride + column, valid);
    }
    for (int i = thread; i < split.all_tiles() * kNarrowStep; i += kNarrowThreads) {
      const int row = i / split.all_tiles(), tile = i % split.all_tiles();
      copy_eight(dense + dense_place(row, tile), args.dense + (n0 + row) * args.dense_stride + 8 * tile,
                 n0 + row < end ? args.rank - 8 * tile : 0, args.dense_vectors, args.dense);
    }
  };

  NarrowSums<tiles> sums;
  clear(sums);
  uint32_t largest[2][2] = {};  // magnitudes of the rows of the fragments

  // Two neighbouring fragments of rows.
  const auto compute_pair = [&](const uint8_t* codes, const uint8_t* dense, int fragment) {
    uint32_t a[2][2][4];  // [fragment of rows][fragment of columns]
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      uint32_t words[4];
      const int row = kRowsPerFragment * (fragment + f) + 4 * warp.t;
      const uint8_t* from = codes + layout.codes_place(row) + kNarrowWarpRows * warp.row_group + 4 * warp.g;
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = *reinterpret_cast<const uint32_t*>(from + i * layout.columns);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int bytes = m == 0 ? 0x5410 : 0x7632;
        const CodePairs low = alternate_pairs(__byte_perm(words[0], words[1], bytes), args.format);
        const CodePairs high = alternate_pairs(__byte_perm(words[2], words[3], bytes), args.format);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          a[f][m][half] = low.values[half];
          a[f][m][half + 2] = high.values[half];
          largest[m][half] = __vimax3_u16x2(low.magnitudes[half], high.magnitudes[half], largest[m][half]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const int tile = warp.column_group * tiles + n;
      uint32_t b[4];
      ldmatrix_transposed(b, reinterpret_cast<const Bf16*>(dense + tile * kNarrowColumnBytes +
                                                           16 * (kRowsPerFragment * fragment + lane_id())));
#pragma unroll
      for (int f = 0; f < 2; ++f) {
#pragma unroll
        for (int m = 0; m < 2; ++m) mma(sums[m][n], a[f][m], b[2 * f], b[2 * f + 1]);
      }
    }
  };
  const auto compute = [&](int stage) {
    const uint8_t* codes = shared + stage * layout.stage;
#pragma unroll 2
    for (int fragment = 2 * warp.depth_group; fragment < kFragments; fragment += 2 * split.depth_groups)
      compute_pair(codes, codes + layout.codes, fragment);
  };
  narrow_pipeline<kStages>(static_cast<int>((end - begin + kNarrowStep - 1) / kNarrowStep), load, compute);

  spoil_rows<tiles>(sums, largest, args.format);
  auto* all = reinterpret_cast<float*>(shared);  // [depth group][column of g][row of g]
  float* own =
      all + warp.depth_group * layout.group_size(split) + kNarrowWarpRows * warp.row_group + 4 * warp.g;
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = 8 * (warp.column_group * tiles + n) + 2 * warp.t + e;
      *reinterpret_cast<float4*>(own + column * layout.pitch) =
          make_float4(sums[0][n][e], sums[0][n][2 + e], sums[1][n][e], sums[1][n][2 + e]);
    }
  }
  cluster.sync();

  // Neighbouring threads store to neighbouring places of g.
  const float factor = __fmul_rn(args.alpha, *args.scale);
  const int quads = layout.columns / 4, count = quads * split.columns();
  for (int i = count * part / split.cluster + thread; i < count * (part + 1) / split.cluster;
       i += kNarrowThreads) {
    const int quad = transpose_g ? i % quads : i / split.columns();
    const int column = transpose_g ? i / quads : i % split.columns();
    const int64_t row = column0 + 4 * quad;
    if (row >= args.depth || column >= args.rank) continue;
    const float4 total =
        sum_of_parts(cluster, all, column * layout.pitch + 4 * quad, layout.group_size(split), split);
    const float values[4] = {total.x, total.y, total.z, total.w};
    float* to = static_cast<float*>(args.result) +
                (transpose_g ? column * args.result_stride + row : row * args.result_stride + column);
    const int64_t stride = transpose_g ? 1 : args.result_stride;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float value = __fmul_rn(values[j], factor);
      to[j * stride] = accumulate ? to[j * stride] + value : value;
    }
  }
  cluster.sync();  // other blocks may still read this one's sums
}

}  // namespace

void launch_narrow_product_over_rows(CudaOps& ops, const NarrowArgs& args, bool transpose_g,
                                     bool accumulate) {
  const RowsLayout layout(args.split);
  with_tiles(args.split.tiles, [&]<int tiles>() {
    launch_clusters(ops, "narrow_product_over_rows", narrow_product_over_rows_kernel<tiles>,
                    div_up(args.depth, layout.columns), args.split.cluster, layout.shared_bytes(args.split),
                    args, transpose_g, accumulate);
  });
}

}  // namespace octet::device
