#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/vector_math.h"

namespace octet {

using cpu::load;
using cpu::store;

namespace {

// gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3): the tanh form without a tanh.
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

inline float gelu(float x) {
  const float u2 = kTwoRootTwoOverPi * x * (1.0f + kCubic * x * x);
  return x * cpu::fast_sigmoid(u2).value;
}

inline float gelu_slope(float x) {
  const float square = x * x;
  const float u2 = kTwoRootTwoOverPi * x * (1.0f + kCubic * square);
  const auto [sigmoid, complement] = cpu::fast_sigmoid(u2);
  const float u2_slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * square);
  return sigmoid + x * sigmoid * complement * u2_slope;
}

void require_shapes(std::string_view op, Activation activation, const Tensor& h, const Tensor& x) {
  const int64_t expected = activation == Activation::SwiGlu ? 2 * h.cols() : h.cols();
  require(x.rows() == h.rows() && x.cols() == expected,
          "[{}] x is {} for h {}, expected as many rows and {} columns", op, x.shape.to_string(),
          h.shape.to_string(), expected);
  cpu::require_dtype(op, "h", h, x.dtype);
}

}  // namespace

void CpuOps::activation_forward(Activation activation, const Operand& h, Tensor x) {
  const cpu::HostScope scope = timed({.kind = OpKind::Activation, .op = "activation_forward"});
  require_shapes("activation_forward", activation, h.dense, x);
  const int64_t rows = h.dense.rows(), width = h.dense.cols();
  cpu::dispatch_real("activation_forward", x.dtype, [&]<class T>(T) {
    if (activation == Activation::Gelu) {
      const T* in = x.as<T>();
      T* out = h.dense.as<T>();
      parallel_.for_range(rows * width, 1 << 14, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = store<T>(gelu(load(in[i])));
      });
      return;
    }
    parallel_.for_range(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* __restrict gate = x.as<T>() + r * 2 * width;
        const T* __restrict up = gate + width;
        T* __restrict out = h.dense.as<T>() + r * width;
        for (int64_t c = 0; c < width; ++c) {
          const float g = load(gate[c]);
          out[c] = store<T>(g * cpu::fast_sigmoid(g).value * load(up[c]));
        }
      }
    });
  });
  finish(h);
}

void CpuOps::activation_backward(Activation activation, const Operand& dx, Tensor dh, Tensor x) {
  const cpu::HostScope scope = timed({.kind = OpKind::Activation, .op = "activation_backward"});
  require_shapes("activation_backward", activation, dh, x);
  require(dx.dense.numel() == x.numel(), "[activation_backward] dx is {}, expected {}",
          dx.dense.shape.to_string(), x.shape.to_string());
  cpu::require_dtype("activation_backward", "dx", dx.dense, x.dtype);
  const int64_t rows = dh.rows(), width = dh.cols();
  cpu::dispatch_real("activation_backward", x.dtype, [&]<class T>(T) {
    if (activation == Activation::Gelu) {
      const T* in = x.as<T>();
      const T* dout = dh.as<T>();
      T* din = dx.dense.as<T>();
      parallel_.for_range(rows * width, 1 << 14, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) din[i] = store<T>(load(dout[i]) * gelu_slope(load(in[i])));
      });
      return;
    }
    parallel_.for_range(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* __restrict gate = x.as<T>() + r * 2 * width;
        const T* __restrict up = gate + width;
        const T* __restrict dout = dh.as<T>() + r * width;
        T* __restrict dgate = dx.dense.as<T>() + r * 2 * width;
        T* __restrict dup = dgate + width;
        for (int64_t c = 0; c < width; ++c) {
          const float g = load(gate[c]), d = load(dout[c]);
          const auto [sigmoid, complement] = cpu::fast_sigmoid(g);
          dgate[c] = store<T>(d * load(up[c]) * sigmoid * (1.0f + g * complement));
          dup[c] = store<T>(d * g * sigmoid);
        }
      }
    });
  });
  finish(dx);
}

}  // namespace octet
