#pragma once

#include "backend/cuda/device/copy_async.cuh"
#include "backend/cuda/device/tile.cuh"

// Norms of bf16 rows at the speed of memory: every tensor is read once, and transposed codes are written in whole
// sectors. A block takes whole rows, each thread 8 columns of them. It walks down groups of 32 rows in steps of 4 (2
// where rows are wide); the values of a step stay in registers from the statistics to the results, while the rows of
// the next step are copied to shared memory.

namespace octet::device {

constexpr int kStripGroup = 32;                    // rows: this many codes of a column are a sector
constexpr int64_t kMostStripElements = 1ll << 30;  // places are counted in 32 bits

template <int step_rows>
constexpr int kStripThreads = step_rows == 4 ? 512 : 640;

// Shared memory: each warp has the rows being copied to it and its codes of a group (if they are needed transposed).
// The sums come last.
constexpr int kStripSlotBytes = 32 * 16;  // a row of a warp
constexpr int kStripCodeBytes = kStripGroup * 256;
constexpr int strip_warp_bytes(int tensors, int step_rows, bool transposed) {
  return tensors * step_rows * kStripSlotBytes + (transposed ? kStripCodeBytes : 0);
}
constexpr int strip_sum_bytes(int step_rows, int warps) {
  return 2 * 2 * step_rows * warps * 4;  // for two reductions of two sums a row
}

// Rows that are handled together, seen by one thread.
struct StripStep {
  int row;    // the first
  int valid;  // number of rows inside the matrix; 0 if the thread's columns are outside
};

// The place of a thread in its block's strip of rows, and how it moves down.
template <int step_rows>
struct Strip {
  int rows, width;
  int lane = static_cast<int>(threadIdx.x % 32);
  int warp = static_cast<int>(threadIdx.x / 32);
  int warps = static_cast<int>(blockDim.x / 32);
  int col = static_cast<int>(8 * threadIdx.x);
  int group_rows;
  bool column_inside;  // the last warp may reach past the end of the rows
  uint8_t* slots;      // of this thread: (tensors, rows of a step)
  uint32_t* codes;     // of this warp
  float* sums;         // (2, warps, sums of a step)
  int turn = 0;

  __device__ Strip(int64_t rows_, int64_t width_, int tensors, bool transposed)
      : rows(static_cast<int>(rows_)),
        width(static_cast<int>(width_)),
        group_rows(transposed ? kStripGroup : step_rows) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int bytes = strip_warp_bytes(tensors, step_rows, transposed);
    column_inside = col < width;
    slots = shared + warp * bytes + lane * 16;
    codes = reinterpret_cast<uint32_t*>(shared + warp * bytes + tensors * step_rows * kStripSlotBytes);
    sums = reinterpret_cast<float*>(shared + warps * bytes);
  }

  __device__ StripStep step_at(int row) const {
    return {.row = row, .valid = column_inside ? rows - row : 0};
  }
  __device__ StripStep first() const { return step_at(static_cast<int>(blockIdx.x) * group_rows); }
  __device__ StripStep after(const StripStep& step) const {
    return step_at(ends_group(step) ? step.row - line(step) + static_cast<int>(gridDim.x) * group_rows
                                    : step.row + step_rows);
  }
  __device__ int line(const StripStep& step) const { return step.row & (group_rows - 1); }  // in its group
  __device__ bool ends_group(const StripStep& step) const {
    return line(step) + step_rows == group_rows || step.row + step_rows >= rows;
  }
  __device__ uint32_t place(const StripStep& step, int r) const {
    return static_cast<uint32_t>((step.row + r) * width + col);
  }

  // A thread copies only what it will read itself, so no barrier is needed. Outside the matrix everything is zero.
  __device__ __forceinline__ void fetch(int tensor, int r, const Bf16* from, const StripStep& step) const {
    copy_async16(slot(tensor, r), from + place(step, r), r < step.valid);
  }
  __device__ __forceinline__ Pack8<Bf16> fetched(int tensor, int r) const {
    return {*reinterpret_cast<const uint4*>(slot(tensor, r))};
  }
  __device__ __forceinline__ uint8_t* slot(int tensor, int r) const {
    return slots + (tensor * step_rows + r) * kStripSlotBytes;
  }

  // Sums over all threads of the block, added in fixed order: lane l gets that of values[l / (32 / count)].
  template <int count>
  __device__ __forceinline__ float block_sum(float (&values)[count]) {
    constexpr int kSpan = 32 / count;
    // After every exchange a lane has half as many values.
#pragma unroll
    for (int half = count / 2; half > 0; half /= 2) {
      const bool upper = (lane & (half * kSpan)) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float given = upper ? values[i] : values[i + half];
        const float kept = upper ? values[i + half] : values[i];
        values[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, half * kSpan);
      }
    }
    const auto sum_over_span = [](float x) {
#pragma unroll
      for (int offset = kSpan / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
      return x;
    };
    const float warp_total = sum_over_span(values[0]);
    // Two places alternate: when one is written again, all threads have passed the barrier of the other and have read
    // it.
    float* const place = sums + turn * warps * count + lane / kSpan;
    turn ^= 1;
    if (lane % kSpan == 0) place[warp * count] = warp_total;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kStripThreads<step_rows> / 32; i += kSpan) {
      const int w = i + lane % kSpan;
      if (w < warps) total += place[w * count];
    }
    return sum_over_span(total);
  }
  // The result of block_sum for value `index` of `count`, or what was made of it.
  template <int count>
  __device__ __forceinline__ static float value_of(float lanes, int index) {
    return __shfl_sync(0xFFFFFFFFu, lanes, index * (32 / count));
  }
};

// Writes the results of steps in all their forms.
template <int step_rows>
class StripOutput {
 public:
  __device__ StripOutput(const Strip<step_rows>& strip, const CastTarget& cast, Bf16* dense)
      : strip_(strip), cast_(cast), dense_(dense) {
    if (cast.rowwise) row_scale_ = cast.slot->scale_rowwise;
    if (cast.colwise) col_scale_ = cast.slot->scale_colwise;
    same_codes_ = cast.rowwise && row_scale_ == col_scale_ && cast.row_e5m2 == cast.col_e5m2;
  }

  // `values` outside the matrix may be anything.
  __device__ __forceinline__ void write(const Pack8<Bf16> (&values)[step_rows], const StripStep& step) {
#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      if (r < step.valid) amax_.add(values[r]);
    }
    if (dense_) {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) {
        if (r < step.valid) values[r].store(dense_ + strip_.place(step, r));
      }
    }
    uint2 codes[step_rows] = {};
    if (cast_.rowwise) {
      encode(codes, values, row_scale_, cast_.row_e5m2);
#pragma unroll
      for (int r = 0; r < step_rows; ++r) {
        if (r < step.valid) store_codes<true>(cast_.rowwise + strip_.place(step, r), codes[r], 8);
      }
    }
    if (!cast_.colwise) return;
    if (!same_codes_) encode(codes, values, col_scale_, cast_.col_e5m2);
    const int line = strip_.line(step), quad = line / 4;
    const bool ends = strip_.ends_group(step);
    if constexpr (step_rows == 4) {
      stage(quad, codes[0], codes[1], codes[2], codes[3]);
    } else if (line % 4 != 0) {
      stage(quad, waiting_[0], waiting_[1], codes[0], codes[1]);
    } else if (ends) {
      stage(quad, codes[0], codes[1], uint2{}, uint2{});
    } else {
      waiting_[0] = codes[0];
      waiting_[1] = codes[1];
    }
    if (ends) write_columns(step.row - line);
  }

  __device__ uint32_t amax() const {
    return amax_.bits();
  }

 private:
  __device__ __forceinline__ static void encode(uint2 (&codes)[step_rows],
                                                const Pack8<Bf16> (&values)[step_rows], float scale,
                                                bool e5m2) {
    with_format(e5m2, [&]<bool as_e5m2>() {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) codes[r] = encode8(values[r], scale, as_e5m2);
    });
  }

  // Words of 4 rows of a column lie as (row / 4, upper columns or lower, lane, column % 4) in the warp's part. Lanes are
  // swapped in fours for the lower 16 rows, so that write_columns meets each bank once.
  __device__ __forceinline__ void stage(int quad, uint2 a, uint2 b, uint2 c, uint2 d) const {
    uint32_t low[4] = {a.x, b.x, c.x, d.x}, high[4] = {a.y, b.y, c.y, d.y};
    transpose_bytes(low);
    transpose_bytes(high);
    uint4* const to = reinterpret_cast<uint4*>(strip_.codes) + 64 * quad + (strip_.lane ^ (quad & 4));
    to[0] = make_uint4(low[0], low[1], low[2], low[3]);
    to[32] = make_uint4(high[0], high[1], high[2], high[3]);
  }

  // Two neighbouring lanes write 32 rows of a column, and a warp 16 columns at a time: 4 columns from each of 4
  // lanes.
  __device__ __forceinline__ void write_columns(int group_row) const {
    __syncwarp();
    const int part = strip_.lane % 2, column_of_four = strip_.lane / 2 % 4, owner = strip_.lane / 8;
    const int left = strip_.rows - group_row - 16 * part;
    const int first_column = 256 * strip_.warp + 8 * owner + column_of_four;
    const int columns = left > 0 ? strip_.width - first_column : 0;
    uint8_t* const to = cast_.colwise + (first_column * strip_.rows + group_row + 16 * part);
    const uint32_t* const from = strip_.codes + 4 * (256 * part + owner) + column_of_four;
    const auto for_round = [&](int round, const auto& store) {
      const int column = 32 * (round / 2) + 4 * (round % 2);
      if (column >= columns) return;
      const uint32_t* const words = from + 4 * (32 * (round % 2) + ((4 * (round / 2)) ^ (4 * part)));
      store(to + column * strip_.rows, make_uint4(words[0], words[256], words[512], words[768]));
    };
    if (strip_.rows % 16 == 0) {
#pragma unroll 4
      for (int round = 0; round < 16; ++round) {
        for_round(round, [](uint8_t* place, uint4 codes) { store16(place, codes); });
      }
    } else {
#pragma unroll 1
      for (int round = 0; round < 16; ++round) {
        for_round(round, [&](uint8_t* place, uint4 codes) { store_some_codes(place, codes, left); });
      }
    }
    __syncwarp();
  }

  const Strip<step_rows>& strip_;
  const CastTarget& cast_;
  Bf16* dense_;
  float row_scale_ = 1.0f, col_scale_ = 1.0f;
  bool same_codes_;
  uint2 waiting_[2];  // of a step of two rows, for the next
  MagnitudeMax<Bf16> amax_;
};

}  // namespace octet::device
