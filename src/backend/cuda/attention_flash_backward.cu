#include "backend/cuda/attention_flash.cuh"

// Backward in three kernels without atomics, so that the result never depends on scheduling:
//   delta: row sums of out * dout;
//   dq:    for each query tile, over the keys it sees (scores are recomputed);
//   dkv:   for each key tile, over the queries that see it, of all heads that share it.

namespace octet {
namespace device {
namespace {

constexpr int kTileRows = 64;  // queries of a dq block and keys of a dkv block: four warps of 16

template <int Width>
struct QueryTraits {
  static constexpr int kKeys = 64;
  static constexpr int kBytes = (2 * kTileRows + 4 * kKeys) * Width * static_cast<int>(sizeof(Bf16));
};

template <int Width, bool windowed>
__global__ __launch_bounds__(kAttentionThreads) void query_kernel(FlashShape shape,
                                                                  const AttentionTile* tiles, Bf16* dqkv,
                                                                  const Bf16* dout, const Bf16* qkv,
                                                                  const float* lse, const float* delta) {
  constexpr int kKeys = QueryTraits<Width>::kKeys, kColumns = kKeys / 8;
  extern __shared__ __align__(128) unsigned char memory[];
  Bf16* q_tile = reinterpret_cast<Bf16*>(memory);
  Bf16* do_tile = q_tile + kTileRows * Width;
  Bf16* k_tiles = do_tile + kTileRows * Width;  // two stages
  Bf16* v_tiles = k_tiles + 2 * kKeys * Width;  // two stages

  const AttentionTile tile = tiles[blockIdx.x / shape.heads];
  if (tile.length == 0) return;
  const int head = static_cast<int>(blockIdx.x) % shape.heads, kv_head = head / shape.group;
  const int first = tile.rank * kTileRows;
  const int valid = min(kTileRows, tile.length - first);
  const int64_t first_token = tile.start + first;
  const int64_t head_column = static_cast<int64_t>(head) * shape.depth;
  const Bf16* k = qkv + tile.start * shape.qkv_stride + shape.key_column(kv_head);
  const Bf16* v = qkv + tile.start * shape.qkv_stride + shape.value_column(kv_head);

  const auto load_keys = [&](int step) {
    const int64_t offset = static_cast<int64_t>(step) * kKeys * shape.qkv_stride;
    const int keys = tile.length - step * kKeys, stage = (step & 1) * kKeys * Width;
    load_tile<kKeys, Width>(k_tiles + stage, k + offset, shape.qkv_stride, keys, shape.depth);
    load_tile<kKeys, Width>(v_tiles + stage, v + offset, shape.qkv_stride, keys, shape.depth);
    copy_async_commit();
  };
  load_tile<kTileRows, Width>(q_tile, qkv + first_token * shape.qkv_stride + head_column, shape.qkv_stride,
                              valid, shape.depth);
  load_tile<kTileRows, Width>(do_tile, dout + first_token * shape.out_stride + head_column, shape.out_stride,
                              valid, shape.depth);
  const int first_step = windowed ? shape.first_key(first, 0) / kKeys : 0;
  load_keys(first_step);

  const int m0 = warp_id() * 16, g = lane_id() >> 2, t = lane_id() & 3;
  const float scale = shape.scale * kLog2E;
  float row_lse[2], row_delta[2];  // of rows g and g + 8; lse in units of log 2
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = m0 + g + 8 * half;
    const int64_t place = head * shape.tokens + first_token + row;
    row_lse[half] = row < valid ? lse[place] * kLog2E : INFINITY;  // no probability beyond the document
    row_delta[half] = row < valid ? delta[place] : 0.0f;
  }
  float dq[1][Width / 8][4];
  clear(dq);

  const int steps = (min(tile.length, first + kTileRows) + kKeys - 1) / kKeys;
  for (int step = first_step; step < steps; ++step) {
    if (step + 1 < steps) {
      load_keys(step + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const int stage = (step & 1) * kKeys * Width;
    float s[1][kColumns][4], dp[1][kColumns][4];
    clear(s);
    clear(dp);
    product_abt<Width>(s, q_tile, m0, k_tiles + stage);
    product_abt<Width>(dp, do_tile, m0, v_tiles + stage);
    const bool edge =
        (step + 1) * kKeys > first + m0 + 1 || (windowed && first + m0 + 16 - step * kKeys > shape.window);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[0][j][e] = exp2_approx(s[0][j][e] * scale - row_lse[e / 2]);
      }
    }
    if (edge) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = step * kKeys + 8 * j + 2 * t + e % 2, query = first + m0 + g + 8 * (e / 2);
          if (shape.hides<windowed>(key, query)) s[0][j][e] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[0][j][e] *= dp[0][j][e] - row_delta[e / 2];
    }
    product_pb<Width>(dq, s, k_tiles + stage);
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < Width / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) dq[0][j][e] *= shape.scale;
  }
  store_rows<Width>(dqkv + first_token * shape.qkv_stride + head_column, shape.qkv_stride, q_tile, m0, dq,
                    valid, shape.depth);
}

template <int Width>
struct KeyTraits {
  // Fewer queries at a time if the gradients of a key take more registers.
  static constexpr int kQueries = Width == 128 ? 32 : 64;
  static constexpr int kBytes =
      (2 * kTileRows + 4 * kQueries) * Width * static_cast<int>(sizeof(Bf16)) + 4 * kQueries * 4;
};

template <int Width, bool windowed>
__global__ __launch_bounds__(kAttentionThreads) void key_kernel(FlashShape shape, const AttentionTile* tiles,
                                                                Bf16* dqkv, const Bf16* dout, const Bf16* qkv,
                                                                const float* lse, const float* delta) {
  constexpr int kQueries = KeyTraits<Width>::kQueries, kColumns = kQueries / 8;
  extern __shared__ __align__(128) unsigned char memory[];
  Bf16* k_tile = reinterpret_cast<Bf16*>(memory);
  Bf16* v_tile = k_tile + kTileRows * Width;
  Bf16* q_tiles = v_tile + kTileRows * Width;                                   // two stages
  Bf16* do_tiles = q_tiles + 2 * kQueries * Width;                              // two stages
  float* lse_rows = reinterpret_cast<float*>(do_tiles + 2 * kQueries * Width);  // two stages, units of log 2
  float* delta_rows = lse_rows + 2 * kQueries;                                  // two stages

  const int kv_heads = shape.heads / shape.group;
  const AttentionTile tile = tiles[blockIdx.x / kv_heads];
  if (tile.length == 0) return;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const int first = (tile.tiles - 1 - tile.rank) * kTileRows;
  const int valid = min(kTileRows, tile.length - first);
  const int64_t first_token = tile.start + first;

  // Queries from the tile's first key to the last query whose window has a key of the tile, in steps of kQueries, for
  // each head of the group in turn.
  const int seen_by = windowed && tile.length - first - kTileRows >= shape.window
                          ? kTileRows - 1 + shape.window
                          : tile.length - first;
  const int steps_each = (seen_by + kQueries - 1) / kQueries;
  const int steps = steps_each * shape.group;
  const auto load_queries = [&](int step) {
    const int head = kv_head * shape.group + step / steps_each;
    const int begin = first + step % steps_each * kQueries;
    const int queries = tile.length - begin, stage = step & 1;
    const int64_t token = tile.start + begin, column = static_cast<int64_t>(head) * shape.depth;
    load_tile<kQueries, Width>(q_tiles + stage * kQueries * Width, qkv + token * shape.qkv_stride + column,
                               shape.qkv_stride, queries, shape.depth);
    load_tile<kQueries, Width>(do_tiles + stage * kQueries * Width, dout + token * shape.out_stride + column,
                               shape.out_stride, queries, shape.depth);
    copy_async_commit();
    for (int row = static_cast<int>(threadIdx.x); row < kQueries; row += kAttentionThreads) {
      const int64_t place = head * shape.tokens + token + row;
      lse_rows[stage * kQueries + row] = row < queries ? lse[place] * kLog2E : INFINITY;
      delta_rows[stage * kQueries + row] = row < queries ? delta[place] : 0.0f;
    }
  };
  const Bf16* rows = qkv + first_token * shape.qkv_stride;
  load_tile<kTileRows, Width>(k_tile, rows + shape.key_column(kv_head), shape.qkv_stride, valid, shape.depth);
  load_tile<kTileRows, Width>(v_tile, rows + shape.value_column(kv_head), shape.qkv_stride, valid,
                              shape.depth);
  load_queries(0);

  const int m0 = warp_id() * 16, g = lane_id() >> 2, t = lane_id() & 3;
  const float scale = shape.scale * kLog2E;
  float dk[1][Width / 8][4], dv[1][Width / 8][4];
  clear(dk);
  clear(dv);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      load_queries(step + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const int stage = step & 1;
    const Bf16* q_tile = q_tiles + stage * kQueries * Width;
    const Bf16* do_tile = do_tiles + stage * kQueries * Width;
    // Transposed: rows are keys, columns are queries.
    float p[1][kColumns][4], ds[1][kColumns][4];
    clear(p);
    clear(ds);
    product_abt<Width>(p, k_tile, m0, q_tile);
    product_abt<Width>(ds, v_tile, m0, do_tile);
    const int begin = first + step % steps_each * kQueries;
    const bool edge = begin < first + m0 + 15 || (windowed && begin + kQueries - first - m0 > shape.window);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const float2 columns = *reinterpret_cast<const float2*>(lse_rows + stage * kQueries + 8 * j + 2 * t);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        p[0][j][e] = exp2_approx(p[0][j][e] * scale - (e % 2 ? columns.y : columns.x));
      }
    }
    if (edge) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = first + m0 + g + 8 * (e / 2), query = begin + 8 * j + 2 * t + e % 2;
          if (shape.hides<windowed>(key, query)) p[0][j][e] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const float2 columns = *reinterpret_cast<const float2*>(delta_rows + stage * kQueries + 8 * j + 2 * t);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        ds[0][j][e] = p[0][j][e] * (ds[0][j][e] - (e % 2 ? columns.y : columns.x));
      }
    }
    product_pb<Width>(dv, p, do_tile);
    product_pb<Width>(dk, ds, q_tile);
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < Width / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) dk[0][j][e] *= shape.scale;
  }
  Bf16* gradients = dqkv + first_token * shape.qkv_stride;
  store_rows<Width>(gradients + shape.key_column(kv_head), shape.qkv_stride, k_tile, m0, dk, valid,
                    shape.depth);
  store_rows<Width>(gradients + shape.value_column(kv_head), shape.qkv_stride, v_tile, m0, dv, valid,
                    shape.depth);
}

template <int Width>
void launch_backward(CudaOps& ops, const AttentionCase& attention, const AttentionBackward& call) {
  constexpr const char* op = "attention_backward";
  Scratch scratch = ops.scratch(op);
  auto* delta = scratch.take<float>(attention.shape.heads * attention.tokens);
  attention_delta(ops, attention, call, delta);
  const OutsideRows outside = {.tokens = attention.tokens,
                               .rows = static_cast<Bf16*>(call.dqkv),
                               .width = attention.shape.qkv_width()};
  const AttentionTile* tiles = schedule_tiles(ops, scratch, attention, kTileRows, outside);
  const int64_t bound = tile_bound(attention, kTileRows);
  const FlashShape shape = flash_shape(attention);
  const auto launch = [&](auto kernel, int64_t blocks, int bytes) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), op);
    kernel<<<narrow<unsigned>(blocks), kAttentionThreads, static_cast<size_t>(bytes), ops.stream()>>>(
        shape, tiles, static_cast<Bf16*>(call.dqkv), static_cast<const Bf16*>(call.dout),
        static_cast<const Bf16*>(call.qkv), call.lse, delta);
    check_launch(op);
  };
  const bool windowed = attention.shape.window > 0;
  launch(windowed ? key_kernel<Width, true> : key_kernel<Width, false>, bound * attention.shape.kv_heads,
         KeyTraits<Width>::kBytes);
  launch(windowed ? query_kernel<Width, true> : query_kernel<Width, false>, bound * attention.shape.heads,
         QueryTraits<Width>::kBytes);
}

}  // namespace
}  // namespace device

void flash_backward(CudaOps& ops, const AttentionCase& attention, const AttentionBackward& call) {
  const int64_t depth = attention.shape.head_dim;
  if (depth <= 32) return device::launch_backward<32>(ops, attention, call);
  if (depth <= 64) return device::launch_backward<64>(ops, attention, call);
  device::launch_backward<128>(ops, attention, call);
}

}  // namespace octet
