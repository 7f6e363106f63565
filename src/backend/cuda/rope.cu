#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

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
        out[0][j] = a * cosine[i] - b * s;
        out[1][j] = b * cosine[i] + a * s;
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
      out[0][j] = a * cosines[j] - b * s;
      out[1][j] = b * cosines[j] + a * s;
    }
  }
};

}  // namespace
}  // namespace device

namespace {

void rotate(CudaOps& ops, const char* op, const Operand& qkv, const device::CastTarget& cast, bool store,
            Tensor positions, Tensor table, const AttentionShape& shape, float direction) {
  const Tensor& x = qkv.dense;
  require(x.cols() == shape.qkv_width() && positions.numel() == x.rows() && shape.head_dim % 2 == 0,
          "[cuda] {}: qkv {} and {} positions do not fit {} + 2 * {} heads of width {}", op,
          x.shape.to_string(), positions.numel(), shape.heads, shape.kv_heads, shape.head_dim);
  require(table.cols() == shape.head_dim && table.dtype == DType::F32 && positions.dtype == DType::I32,
          "[cuda] {}: the table is {} {}, expected fp32, width {}", op, name_of(table.dtype),
          table.shape.to_string(), shape.head_dim);
  dispatch_real(op, x.dtype, [&]<class T>(T) {
    const int half = narrow<int>(shape.head_dim / 2);
    const int64_t rotated = shape.heads + shape.kv_heads;
    device::RopeVectorOp<T> rope;
    rope.x = static_cast<const T*>(x.data);
    rope.positions = static_cast<const int32_t*>(positions.data);
    rope.table = static_cast<const float*>(table.data);
    rope.width = narrow<int>(x.cols());
    rope.half = half;
    rope.rotated = narrow<int>(rotated);
    rope.direction = direction;
    // The values are read only if an output needs them.
    const bool all = cast.slot || qkv.column_sum;
    device::TileOutput<T> out{.rows = x.rows(),
                              .cols = (all ? rotated + shape.kv_heads : rotated) * half,
                              .width = x.cols(),
                              .dense = store ? static_cast<T*>(x.data) : nullptr,
                              .cast = cast};
    if (half % 8 == 0 && aligned16(x.data) && aligned16(table.data)) {
      launch_tiles(ops, op, rope, out, true, qkv.column_sum);
    } else {
      launch_tiles<false>(ops, op, static_cast<const device::RopeOp<T>&>(rope), out, false, qkv.column_sum);
    }
  });
}

}  // namespace

void CudaOps::rope_forward(Tensor qkv, Tensor positions, Tensor table, const AttentionShape& shape) {
  const OpScope scope(profiler_, OpKind::Rope, "rope_forward", 2 * bytes_of(qkv));
  Operand operand;
  operand.dense = qkv;
  rotate(*this, "rope_forward", operand, {}, true, positions, table, shape, 1.0f);
}

void CudaOps::rope_backward(const Operand& dqkv, Tensor positions, Tensor table,
                            const AttentionShape& shape) {
  constexpr const char* op = "rope_backward";
  const OpScope scope(profiler_, OpKind::Rope, op, bytes_of(dqkv, dqkv.dense));
  dispatch_real(op, dqkv.dense.dtype, [&]<class T>(T) {
    const auto plan = plan_operand<T>(dqkv, op);
    rotate(*this, op, dqkv, plan.cast, plan.dense != nullptr, positions, table, shape, -1.0f);
    finish_operand(dqkv, plan);
  });
}

}  // namespace octet
