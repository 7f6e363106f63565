#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

// One of a pair after the rotation: own * cosine + other * sine, with the sine's sign. Rounded as written, so that the bits
// are the same in every op that uses this.
__device__ __forceinline__ float rotated_value(float own, float other, float cosine, float sine) {
  return fmaf(own, cosine, __fmul_rn(other, sine));
}

// A column of the op is a pair: columns i and i + head_dim / 2 of one head. Value heads pass unchanged.
template <class T>
struct RopeOp {
  using Type = T;
  static constexpr int kOutputs = 2;
  static constexpr int kAhead = 2;
  static constexpr bool kCopies = false;
  static constexpr bool kBlocks = false;
  static constexpr bool kSums = true;
  struct Raw {
    Pack8<T> low, high;
    int32_t position;  // known early, so that loads of the table need not wait
  };
  const T* x;
  const int32_t* positions;
  const float* table;
  int width;
  int half;     // of the head
  int rotated;  // heads
  float direction;
  int first = 0;  // column of the thread

  __device__ int64_t column(int64_t col, int output) const {
    const int c = static_cast<int>(col);
    return static_cast<int64_t>(c / half) * (2 * half) + c % half + output * half;
  }
  __device__ RopeOp at(int64_t row, int64_t col) const {
    RopeOp op = *this;
    op.x += row * width;
    op.positions += row;
    op.first = static_cast<int>(col);
    return op;
  }
  template <bool vector>
  __device__ Raw load(int line, int64_t count) const {
    const T* from = x + line * width;
    float low[8], high[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      low[j] = j < count ? to_float(from[column(first + j, 0)]) : 0.0f;
      high[j] = j < count ? to_float(from[column(first + j, 1)]) : 0.0f;
    }
    return {Pack8<T>::pack(low), Pack8<T>::pack(high), positions[line]};
  }
  __device__ void compute(const Raw& raw, float (&out)[2][8]) const {
    const float* cosine = table + static_cast<int64_t>(raw.position) * (2 * half);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int c = first + j, i = c % half;
      const float a = raw.low.at(j), b = raw.high.at(j);
      if (c / half < rotated) {
        const float s = direction * cosine[half + i];
        out[0][j] = rotated_value(a, b, cosine[i], -s);
        out[1][j] = rotated_value(b, a, cosine[i], s);
      } else {
        out[0][j] = a;
        out[1][j] = b;
      }
    }
  }
};

// The same with whole vectors of data and table, for head widths that are a multiple of 16. `x` and `table` point at
// the thread's own columns, and `rotated` says whether they are rotated at all.
template <class T>
struct RopeVectorOp : RopeOp<T> {
  using Raw = typename RopeOp<T>::Raw;
  __device__ RopeVectorOp at(int64_t row, int64_t col) const {
    const int c = static_cast<int>(col);
    RopeVectorOp op = *this;
    op.x += row * this->width + this->column(col, 0);
    op.positions += row;
    op.table += c % this->half;
    op.rotated = c / this->half < this->rotated;
    return op;
  }
  template <bool vector>
  __device__ Raw load(int line, int64_t) const {
    const T* from = this->x + line * this->width;
    return {Pack8<T>::load(from), Pack8<T>::load(from + this->half), this->positions[line]};
  }
  __device__ void compute(const Raw& raw, float (&out)[2][8]) const {
    raw.low.unpack(out[0]);
    raw.high.unpack(out[1]);
    if (!this->rotated) return;
    const float* cosine = this->table + static_cast<int64_t>(raw.position) * (2 * this->half);
    float cosines[8], sines[8];
    Pack8<float>::load(cosine).unpack(cosines);
    Pack8<float>::load(cosine + this->half).unpack(sines);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float a = out[0][j], b = out[1][j], s = this->direction * sines[j];
      out[0][j] = rotated_value(a, b, cosines[j], -s);
      out[1][j] = rotated_value(b, a, cosines[j], s);
    }
  }
};

// The same column by column, for results whose blocks lie across pairs: reads both of a pair for each of its columns. The
// result must not be stored where it is read.
template <class T>
struct RopeColumnOp {
  using Type = T;
  static constexpr int kOutputs = 1;
  static constexpr int kAhead = 1;
  static constexpr bool kCopies = false;
  static constexpr bool kBlocks = true;
  static constexpr bool kSums = true;
  struct Raw {
    Pack8<T> own, other;
    int32_t position;
  };
  const T* x;
  const int32_t* positions;
  const float* table;
  int width;
  int half;         // of the head
  int rotated;      // heads; seen from a place: whether it is rotated
  float direction;  // seen from a place: sign of the sine
  int other = 0;    // from a column to the other of its pair

  __device__ int64_t column(int64_t col, int) const { return col; }
  __device__ RopeColumnOp at(int64_t row, int64_t col) const {
    const int head = static_cast<int>(col) / (2 * half), place = static_cast<int>(col) % (2 * half);
    const bool low = place < half;
    RopeColumnOp op = *this;
    op.x += row * width + col;
    op.positions += row;
    op.table += place % half;
    op.rotated = head < rotated;
    op.direction = low ? -direction : direction;
    op.other = low ? half : -half;
    return op;
  }
  template <bool vector>
  __device__ Raw load(int line, int64_t) const {
    const T* from = x + line * width;
    return {Pack8<T>::load(from), Pack8<T>::load(from + other), positions[line]};
  }
  __device__ void compute(const Raw& raw, float (&out)[1][8]) const {
    raw.own.unpack(out[0]);
    if (!rotated) return;
    const float* cosine = table + static_cast<int64_t>(raw.position) * (2 * half);
    // In two halves: registers are scarce.
#pragma unroll
    for (int h = 0; h < 8; h += 4) {
      const float4 c = *reinterpret_cast<const float4*>(cosine + h);
      const float4 s = *reinterpret_cast<const float4*>(cosine + half + h);
      float* const to = out[0] + h;
      to[0] = rotated_value(to[0], raw.other.at(h), c.x, direction * s.x);
      to[1] = rotated_value(to[1], raw.other.at(h + 1), c.y, direction * s.y);
      to[2] = rotated_value(to[2], raw.other.at(h + 2), c.z, direction * s.z);
      to[3] = rotated_value(to[3], raw.other.at(h + 3), c.w, direction * s.w);
    }
  }
};

}  // namespace
}  // namespace device

namespace {

template <class T>
void rotate(CudaOps& ops, const char* op, const Operand& qkv, OperandPlan<T>& plan, Tensor positions,
            Tensor table, const AttentionShape& shape, float direction) {
  const Tensor& x = qkv.dense;
  require(x.cols() == shape.qkv_width() && positions.numel() == x.rows() && shape.head_dim % 2 == 0,
          "[cuda] {}: qkv {} and {} positions do not fit {} + 2 * {} heads of width {}", op,
          x.shape.to_string(), positions.numel(), shape.heads, shape.kv_heads, shape.head_dim);
  require(table.cols() == shape.head_dim && table.dtype == DType::F32 && positions.dtype == DType::I32,
          "[cuda] {}: the table is {} {}, expected fp32, width {}", op, name_of(table.dtype),
          table.shape.to_string(), shape.head_dim);
  const int half = narrow<int>(shape.head_dim / 2);
  const int64_t rotated = shape.heads + shape.kv_heads;
  const bool vector = half % 8 == 0 && aligned16(x.data) && aligned16(table.data);
  const auto* from = static_cast<const T*>(x.data);
  const auto* where = static_cast<const int32_t*>(positions.data);
  const auto* angles = static_cast<const float*>(table.data);

  // Not where the dense form is kept: it is written over what is read.
  if constexpr (sizeof(T) == 2) {
    using Columns = device::RopeColumnOp<T>;
    if (!qkv.keep_dense && qkv.fp8 && !qkv.fp8->stats()) fuse_blocks<Columns>(plan, qkv, vector, x.cols());
    if (plan.blocks.slot) {
      const Columns rope{.x = from,
                         .positions = where,
                         .table = angles,
                         .width = narrow<int>(x.cols()),
                         .half = half,
                         .rotated = narrow<int>(rotated),
                         .direction = direction};
      return launch_block_tiles(
          ops, op, rope, {.rows = x.rows(), .cols = x.cols(), .width = x.cols(), .blocks = plan.blocks},
          qkv.column_sum);
    }
  }
  device::RopeVectorOp<T> rope;
  rope.x = from;
  rope.positions = where;
  rope.table = angles;
  rope.width = narrow<int>(x.cols());
  rope.half = half;
  rope.rotated = narrow<int>(rotated);
  rope.direction = direction;
  // The values are read only if an output needs them.
  const bool all = plan.cast.slot || qkv.column_sum;
  const device::TileOutput<T> out{.rows = x.rows(),
                                  .cols = (all ? rotated + shape.kv_heads : rotated) * half,
                                  .width = x.cols(),
                                  .dense = plan.dense,
                                  .cast = plan.cast};
  if (vector) {
    launch_tiles(ops, op, rope, out, true, qkv.column_sum);
  } else {
    launch_tiles<false>(ops, op, static_cast<const device::RopeOp<T>&>(rope), out, false, qkv.column_sum);
  }
}

}  // namespace

void CudaOps::rope_forward(Tensor qkv, Tensor positions, Tensor table, const AttentionShape& shape) {
  constexpr const char* op = "rope_forward";
  const OpScope scope(profiler_, OpKind::Rope, op, 2 * bytes_of(qkv));
  dispatch_real(op, qkv.dtype, [&]<class T>(T) {
    OperandPlan<T> plan{.dense = static_cast<T*>(qkv.data)};
    rotate(*this, op, {.dense = qkv}, plan, positions, table, shape, 1.0f);
  });
}

void CudaOps::rope_backward(const Operand& dqkv, Tensor positions, Tensor table,
                            const AttentionShape& shape) {
  constexpr const char* op = "rope_backward";
  const OpScope scope(profiler_, OpKind::Rope, op, bytes_of(dqkv, dqkv.dense));
  dispatch_real(op, dqkv.dense.dtype, [&]<class T>(T) {
    auto plan = plan_operand<T>(dqkv, op);
    rotate(*this, op, dqkv, plan, positions, table, shape, -1.0f);
    finish_operand(dqkv, plan);
  });
}

}  // namespace octet
