#include <algorithm>

#include "backend/cuda/attention_flash.cuh"

namespace octet {
namespace device {
namespace {

constexpr int kScheduleThreads = 1024;

// Rare, so the single block of the schedule does it.
__device__ inline void clear_between(const OutsideRows& outside, int64_t begin, int64_t end) {
  for (int64_t i = begin * outside.width + threadIdx.x; i < end * outside.width; i += kScheduleThreads) {
    outside.rows[i] = __float2bfloat16_rn(0.0f);
  }
  for (int head = 0; head < outside.lse_heads; ++head) {
    for (int64_t i = begin + threadIdx.x; i < end; i += kScheduleThreads)
      outside.lse[head * outside.tokens + i] = 0.0f;
  }
}

// One block. counts and cursors: (most tiles of a document) ints each.
__global__ void schedule_kernel(AttentionTile* tiles, int bound, int* counts, int* cursors, int most,
                                const int* starts, int documents, int rows, OutsideRows outside) {
  const int thread = static_cast<int>(threadIdx.x);
  clear_between(outside, 0, documents > 0 ? starts[0] : outside.tokens);
  if (documents > 0) clear_between(outside, starts[documents], outside.tokens);
  for (int i = thread; i < most; i += kScheduleThreads) counts[i] = 0;
  __syncthreads();
  for (int d = thread; d < documents; d += kScheduleThreads) {
    const int n = (starts[d + 1] - starts[d] + rows - 1) / rows;
    if (n > 0 && n <= most) atomicAdd(&counts[n - 1], 1);
  }
  __syncthreads();
  // Rank r has as many tiles as there are documents with more than r tiles; it begins where the higher ranks
  // end.
  if (thread == 0) {
    int longer = 0, total = 0;
    for (int r = most - 1; r >= 0; --r) {
      longer += counts[r];
      cursors[r] = total;
      total += longer;
    }
    counts[0] = total;
  }
  __syncthreads();
  for (int i = counts[0] + thread; i < bound; i += kScheduleThreads) tiles[i] = {0, 0, 0, 0};
  // The order of documents within a rank is random; no result depends on it.
  for (int d = thread; d < documents; d += kScheduleThreads) {
    const int start = starts[d], length = starts[d + 1] - start;
    const int n = (length + rows - 1) / rows;
    if (n > most) continue;
    for (int r = 0; r < n; ++r) {
      const int place = atomicAdd(&cursors[r], 1);
      if (place < bound) tiles[place] = {start, length, r, n};
    }
  }
}

template <int Width, int MTiles>
struct ForwardTraits {
  static constexpr int kRows = 64 * MTiles;  // queries of a block: four warps of 16 * MTiles
  static constexpr int kKeys = 64;
  static constexpr int kBytes = (kRows + 4 * kKeys) * Width * static_cast<int>(sizeof(Bf16));
};

template <int Width, int MTiles, bool windowed>
__global__ __launch_bounds__(kAttentionThreads) void forward_kernel(FlashShape shape,
                                                                    const AttentionTile* tiles, Bf16* out,
                                                                    float* lse, const Bf16* qkv) {
  using Traits = ForwardTraits<Width, MTiles>;
  constexpr int kRows = Traits::kRows, kKeys = Traits::kKeys, kColumns = kKeys / 8;
  extern __shared__ __align__(128) unsigned char memory[];
  Bf16* q_tile = reinterpret_cast<Bf16*>(memory);
  Bf16* k_tiles = q_tile + kRows * Width;       // two stages
  Bf16* v_tiles = k_tiles + 2 * kKeys * Width;  // two stages

  const AttentionTile tile = tiles[blockIdx.x / shape.heads];
  if (tile.length == 0) return;
  const int head = static_cast<int>(blockIdx.x) % shape.heads, kv_head = head / shape.group;
  const int first = tile.rank * kRows;
  const int valid = min(kRows, tile.length - first);
  const int64_t first_token = tile.start + first;
  const Bf16* q = qkv + first_token * shape.qkv_stride + static_cast<int64_t>(head) * shape.depth;
  const Bf16* k = qkv + tile.start * shape.qkv_stride + shape.key_column(kv_head);
  const Bf16* v = qkv + tile.start * shape.qkv_stride + shape.value_column(kv_head);

  const auto load_keys = [&](int step) {
    const int64_t offset = static_cast<int64_t>(step) * kKeys * shape.qkv_stride;
    const int keys = tile.length - step * kKeys, stage = (step & 1) * kKeys * Width;
    load_tile<kKeys, Width>(k_tiles + stage, k + offset, shape.qkv_stride, keys, shape.depth);
    load_tile<kKeys, Width>(v_tiles + stage, v + offset, shape.qkv_stride, keys, shape.depth);
    copy_async_commit();
  };
  load_tile<kRows, Width>(q_tile, q, shape.qkv_stride, valid, shape.depth);
  const int first_step = windowed ? shape.first_key(first, 0) / kKeys : 0;
  load_keys(first_step);

  const int m0 = warp_id() * 16 * MTiles, g = lane_id() >> 2, t = lane_id() & 3;
  const float scale = shape.scale * kLog2E;
  float o[MTiles][Width / 8][4];
  clear(o);
  float highest[MTiles][2],
      total[MTiles][2];  // of rows g and g + 8; in units of log 2; totals of this lane only
#pragma unroll
  for (int i = 0; i < MTiles; ++i) {
    highest[i][0] = highest[i][1] = -INFINITY;
    total[i][0] = total[i][1] = 0.0f;
  }

  const int steps = (min(tile.length, first + kRows) + kKeys - 1) / kKeys;
  for (int step = first_step; step < steps; ++step) {
    if (step + 1 < steps) {
      load_keys(step + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const int stage = (step & 1) * kKeys * Width;
    float s[MTiles][kColumns][4];
    clear(s);
    product_abt<Width>(s, q_tile, m0, k_tiles + stage);

    // Keys after the query and before its window are masked. Rows beyond the document are not, and are never stored.
    const bool edge = (step + 1) * kKeys > first + m0 + 1 ||
                      (windowed && first + m0 + 16 * MTiles - step * kKeys > shape.window);
#pragma unroll
    for (int i = 0; i < MTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = first + m0 + 16 * i + g + 8 * half;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          s[i][j][2 * half] *= scale;
          s[i][j][2 * half + 1] *= scale;
        }
        if (edge) {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int key = step * kKeys + 8 * j + 2 * t + e;
              if (shape.hides<windowed>(key, query)) s[i][j][2 * half + e] = -INFINITY;
            }
          }
        }
        const float before = highest[i][half];
        float largest = before;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          largest = fmaxf(largest, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
        highest[i][half] = largest;
        // Key 0 is seen by every query, so `largest` is finite from the first step on. For a query whose window
        // begins in a later step, nothing was seen yet.
        if (windowed && largest == -INFINITY) largest = 0.0f;
        const float shrink = exp2_approx(before - largest);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[i][j][2 * half + e];
            x = exp2_approx(x - largest);
            sum += x;
          }
        }
        total[i][half] = total[i][half] * shrink + sum;
#pragma unroll
        for (int j = 0; j < Width / 8; ++j) {
          o[i][j][2 * half] *= shrink;
          o[i][j][2 * half + 1] *= shrink;
        }
      }
    }
    product_pb<Width>(o, s, v_tiles + stage);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < MTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[i][half];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      const float inverse = 1.0f / sum;
#pragma unroll
      for (int j = 0; j < Width / 8; ++j) {
        o[i][j][2 * half] *= inverse;
        o[i][j][2 * half + 1] *= inverse;
      }
      const int row = m0 + 16 * i + g + 8 * half;
      if (t == 0 && row < valid) {
        lse[head * shape.tokens + first_token + row] = (highest[i][half] + log2f(sum)) * kLn2;
      }
    }
  }
  store_rows<Width>(out + first_token * shape.out_stride + static_cast<int64_t>(head) * shape.depth,
                    shape.out_stride, q_tile, m0, o, valid, shape.depth);
}

template <int Width, int MTiles>
void launch_forward(CudaOps& ops, const AttentionCase& attention, const AttentionForward& call) {
  using Traits = ForwardTraits<Width, MTiles>;
  Scratch scratch = ops.scratch("attention_forward");
  const OutsideRows outside = {.tokens = attention.tokens,
                               .rows = static_cast<Bf16*>(call.out),
                               .width = attention.shape.out_width(),
                               .lse = call.lse,
                               .lse_heads = narrow<int>(attention.shape.heads)};
  const AttentionTile* tiles = schedule_tiles(ops, scratch, attention, Traits::kRows, outside);
  const int64_t blocks = tile_bound(attention, Traits::kRows) * attention.shape.heads;
  const auto kernel =
      attention.shape.window > 0 ? forward_kernel<Width, MTiles, true> : forward_kernel<Width, MTiles, false>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kBytes),
             "attention_forward");
  kernel<<<narrow<unsigned>(blocks), kAttentionThreads, Traits::kBytes, ops.stream()>>>(
      flash_shape(attention), tiles, static_cast<Bf16*>(call.out), call.lse,
      static_cast<const Bf16*>(call.qkv));
  check_launch("attention_forward");
}

}  // namespace
}  // namespace device

device::FlashShape flash_shape(const AttentionCase& attention) {
  const AttentionShape& shape = attention.shape;
  return {.tokens = attention.tokens,
          .qkv_stride = shape.qkv_width(),
          .out_stride = shape.out_width(),
          .heads = narrow<int>(shape.heads),
          .group = narrow<int>(shape.heads / shape.kv_heads),
          .depth = narrow<int>(shape.head_dim),
          .scale = shape.scale,
          .window = shape.window > 0 ? narrow<int>(std::min<int64_t>(shape.window, INT_MAX)) : INT_MAX};
}

// Each document has at most one tile that is not full.
int64_t tile_bound(const AttentionCase& attention, int rows) {
  return (attention.tokens + attention.documents.count * (rows - 1)) / rows;
}

static_assert(sizeof(device::AttentionTile) == kAttentionTileBytes);

const device::AttentionTile* schedule_tiles(CudaOps& ops, Scratch& scratch, const AttentionCase& attention,
                                            int rows, const device::OutsideRows& outside) {
  const Documents& documents = attention.documents;
  const int bound = narrow<int>(tile_bound(attention, rows));
  const int most = narrow<int>(div_up(documents.max_length, rows));
  auto* tiles = scratch.take<device::AttentionTile>(bound);
  int* counts = scratch.take<int>(most + 1);
  int* cursors = scratch.take<int>(most + 1);
  device::schedule_kernel<<<1, device::kScheduleThreads, 0, ops.stream()>>>(
      tiles, bound, counts, cursors, most, static_cast<const int*>(documents.starts.data),
      narrow<int>(documents.count), rows, outside);
  check_launch("attention schedule");
  return tiles;
}

void flash_forward(CudaOps& ops, const AttentionCase& attention, const AttentionForward& call) {
  const int64_t depth = attention.shape.head_dim;
  if (depth <= 32) return device::launch_forward<32, 2>(ops, attention, call);
  if (depth <= 64) return device::launch_forward<64, 2>(ops, attention, call);
  return device::launch_forward<128, 2>(ops, attention, call);
}

}  // namespace octet
