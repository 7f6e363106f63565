#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

// 1 / (1 + e^-x). For bf16 the fast exponential and inverse are exact enough, and the kernels stay memory-bound.
template <class T>
__device__ __forceinline__ float sigmoid_of(float x) {
  if constexpr (sizeof(T) == 2) return inverse_approx(1.0f + exp2_approx(-kLog2E * x));
  return 1.0f / (1.0f + expf(-x));
}

// 1 - sigmoid(x) = sigmoid(-x). In fp32 it must not lose digits where the sigmoid is nearly 1.
template <class T>
__device__ __forceinline__ float complement_of(float x, float sigmoid) {
  if constexpr (sizeof(T) == 2) return 1.0f - sigmoid;
  return sigmoid_of<T>(-x);
}

// gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3): the tanh form without a tanh.
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

template <class T>
struct GeluForward {
  using Type = T;
  static constexpr int kOutputs = 1;
  static constexpr int kAhead = 4;
  static constexpr bool kCopies = false;
  static constexpr bool kBlocks = true;
  static constexpr bool kSums = true;
  using Raw = Pack8<T>;
  const T* x;
  int width;

  __device__ GeluForward at(int64_t row, int64_t col) const { return {x + row * width + col, width}; }
  template <bool vector>
  __device__ Raw load(int line, int64_t count) const {
    return load8<vector>(x + line * width, count);
  }
  __device__ void compute(const Raw& raw, float (&out)[1][8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float v = raw.at(j);
      const float u2 = kTwoRootTwoOverPi * v * (1.0f + kCubic * v * v);
      out[0][j] = v * sigmoid_of<T>(u2);
    }
  }
  __device__ int64_t column(int64_t col, int) const {
    return col;
  }
};

template <class T>
struct GeluBackward {
  using Type = T;
  static constexpr int kOutputs = 1;
  static constexpr int kAhead = 2;
  static constexpr bool kCopies = false;
  static constexpr bool kBlocks = true;
  static constexpr bool kSums = true;
  struct Raw {
    Pack8<T> dh, x;
  };
  const T* dh;
  const T* x;
  int width;

  __device__ GeluBackward at(int64_t row, int64_t col) const {
    return {dh + row * width + col, x + row * width + col, width};
  }
  template <bool vector>
  __device__ Raw load(int line, int64_t count) const {
    return {load8<vector>(dh + line * width, count), load8<vector>(x + line * width, count)};
  }
  __device__ void compute(const Raw& raw, float (&out)[1][8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float v = raw.x.at(j), square = v * v;
      const float u2 = kTwoRootTwoOverPi * v * (1.0f + kCubic * square);
      const float sigmoid = sigmoid_of<T>(u2);
      const float u2_slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * square);
      out[0][j] = raw.dh.at(j) * sigmoid * (1.0f + v * u2_slope * complement_of<T>(u2, sigmoid));
    }
  }
  __device__ int64_t column(int64_t col, int) const {
    return col;
  }
};

template <class T>
struct SwiGluForward {
  using Type = T;
  static constexpr int kOutputs = 1;
  static constexpr int kAhead = 2;
  static constexpr bool kCopies = false;
  static constexpr bool kBlocks = true;
  static constexpr bool kSums = true;
  struct Raw {
    Pack8<T> gate, up;
  };
  const T* x;  // (rows, 2 * width)
  int width;

  __device__ SwiGluForward at(int64_t row, int64_t col) const { return {x + row * 2 * width + col, width}; }
  template <bool vector>
  __device__ Raw load(int line, int64_t count) const {
    const T* gate = x + 2 * line * width;
    return {load8<vector>(gate, count), load8<vector>(gate + width, count)};
  }
  __device__ void compute(const Raw& raw, float (&out)[1][8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float g = raw.gate.at(j);
      out[0][j] = g * sigmoid_of<T>(g) * raw.up.at(j);
    }
  }
  __device__ int64_t column(int64_t col, int) const {
    return col;
  }
};

// Two results per column of dh: the gradients of the gate and of the up projection.
template <class T>
struct SwiGluBackward {
  using Type = T;
  static constexpr int kOutputs = 2;
  static constexpr int kAhead = 2;
  static constexpr bool kCopies = false;
  static constexpr bool kBlocks = true;
  static constexpr bool kSums = false;  // there are no registers left, and gated layers have no bias
  struct Raw {
    Pack8<T> dh, gate, up;
  };
  const T* dh;  // (rows, width)
  const T* x;   // (rows, 2 * width)
  int width;

  __device__ SwiGluBackward at(int64_t row, int64_t col) const {
    return {dh + row * width + col, x + row * 2 * width + col, width};
  }
  template <bool vector>
  __device__ Raw load(int line, int64_t count) const {
    const T* gate = x + 2 * line * width;
    return {load8<vector>(dh + line * width, count), load8<vector>(gate, count),
            load8<vector>(gate + width, count)};
  }
  __device__ void compute(const Raw& raw, float (&out)[2][8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float g = raw.gate.at(j), d = raw.dh.at(j);
      const float sigmoid = sigmoid_of<T>(g), scaled = d * sigmoid;
      out[0][j] = scaled * raw.up.at(j) * (1.0f + g * complement_of<T>(g, sigmoid));
      out[1][j] = scaled * g;
    }
  }
  __device__ int64_t column(int64_t col, int output) const {
    return col + output * width;
  }
};

}  // namespace
}  // namespace device

namespace {

void check_shapes(const char* op, Activation activation, const Tensor& h, const Tensor& x) {
  const int64_t expected = activation == Activation::SwiGlu ? 2 * h.cols() : h.cols();
  require(x.rows() == h.rows() && x.cols() == expected && x.dtype == h.dtype,
          "[cuda] {}: x is {} {} for h {} {}, expected as many rows, {} columns and the same dtype", op,
          name_of(x.dtype), x.shape.to_string(), name_of(h.dtype), h.shape.to_string(), expected);
}

}  // namespace

void CudaOps::activation_forward(Activation activation, const Operand& h, Tensor x) {
  constexpr const char* op = "activation_forward";
  const OpScope scope(profiler_, OpKind::Activation, op, bytes_of(h, x));
  check_shapes(op, activation, h.dense, x);
  dispatch_real(op, x.dtype, [&]<class T>(T) {
    const int64_t rows = h.dense.rows(), width = h.dense.cols();
    const bool vector = width % 8 == 0 && aligned16(x.data);
    auto plan = plan_operand<T>(h, op);
    fuse_blocks<device::GeluForward<T>>(plan, h, vector, width);
    const device::TileOutput<T> out{.rows = rows,
                                    .cols = width,
                                    .width = width,
                                    .dense = plan.dense,
                                    .cast = plan.cast,
                                    .blocks = plan.blocks};
    const T* in = static_cast<const T*>(x.data);
    if (activation == Activation::Gelu) {
      launch_tiles(*this, op, device::GeluForward<T>{in, narrow<int>(width)}, out, vector, h.column_sum);
    } else {
      launch_tiles(*this, op, device::SwiGluForward<T>{in, narrow<int>(width)}, out, vector, h.column_sum);
    }
    finish_operand(h, plan);
  });
}

void CudaOps::activation_backward(Activation activation, const Operand& dx, Tensor dh, Tensor x) {
  constexpr const char* op = "activation_backward";
  const OpScope scope(profiler_, OpKind::Activation, op, bytes_of(dx, dh, x));
  check_shapes(op, activation, dh, x);
  require(dx.dense.rows() == x.rows() && dx.dense.cols() == x.cols() && dx.dense.dtype == x.dtype,
          "[cuda] {}: dx is {}, expected {}", op, dx.dense.shape.to_string(), x.shape.to_string());
  dispatch_real(op, x.dtype, [&]<class T>(T) {
    const int64_t rows = dh.rows(), width = dh.cols();
    const bool gelu = activation == Activation::Gelu;
    const bool vector = width % 8 == 0 && aligned16(x.data) && aligned16(dh.data);
    auto plan = plan_operand<T>(dx, op);
    gelu ? fuse_blocks<device::GeluBackward<T>>(plan, dx, vector, width)
         : fuse_blocks<device::SwiGluBackward<T>>(plan, dx, vector, width);
    const bool sum_after = dx.column_sum && !gelu;
    if (sum_after) plan.dense = static_cast<T*>(dx.dense.data);
    const device::TileOutput<T> out{.rows = rows,
                                    .cols = width,
                                    .width = x.cols(),
                                    .dense = plan.dense,
                                    .cast = plan.cast,
                                    .blocks = plan.blocks};
    const T* dout = static_cast<const T*>(dh.data);
    const T* in = static_cast<const T*>(x.data);
    if (gelu) {
      launch_tiles(*this, op, device::GeluBackward<T>{dout, in, narrow<int>(width)}, out, vector,
                   dx.column_sum);
    } else {
      launch_tiles(*this, op, device::SwiGluBackward<T>{dout, in, narrow<int>(width)}, out, vector);
      if (sum_after) add_column_sum(dx.column_sum, dx.dense, {}, 1.0f);
    }
    finish_operand(dx, plan);
  });
}

}  // namespace octet
