#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"

namespace octet {

using cpu::load;
using cpu::store;

namespace {

constexpr int64_t kRowsPerTask = 16;

// One row of norm_backward. It is a separate function because only then does the compiler use __restrict.
template <class T>
void backward_row(T* __restrict dx, float* __restrict dgain, float* __restrict dbias, const T* __restrict dy,
                  const T* __restrict x, const T* __restrict gain, int64_t width, bool layer_norm,
                  float centre, float scale) {
  const auto n = static_cast<float>(width);
  const float mean_g =
      layer_norm ? cpu::lane_sum(width, [=](int64_t c) { return load(dy[c]) * load(gain[c]); }) / n : 0.0f;
  const float sum_gx = cpu::lane_sum(
      width, [=](int64_t c) { return load(dy[c]) * load(gain[c]) * ((load(x[c]) - centre) * scale); });
  const float mean_gx = sum_gx / n;
  for (int64_t c = 0; c < width; ++c) {
    const float normed = (load(x[c]) - centre) * scale;
    const float g = load(dy[c]);
    dgain[c] += g * normed;
    dbias[c] += g;
    dx[c] = store<T>(load(dx[c]) + scale * (g * load(gain[c]) - mean_g - normed * mean_gx));
  }
}

}  // namespace

void CpuOps::norm_forward(NormKind kind, const Operand& y, Tensor residual, Tensor mean, Tensor inv, Tensor x,
                          Tensor delta, Tensor gain, Tensor bias, float epsilon) {
  const cpu::HostScope scope = timed({.kind = OpKind::Norm, .op = "norm_forward"});
  constexpr std::string_view op = "norm_forward";
  const int64_t rows = x.rows(), width = x.cols();
  const bool layer_norm = kind == NormKind::LayerNorm;
  require(y.dense.rows() == rows && y.dense.cols() == width, "[{}] y is {}, x is {}", op,
          y.dense.shape.to_string(), x.shape.to_string());
  cpu::require_dtype(op, "y", y.dense, x.dtype);
  cpu::require_dtype(op, "gain", gain, x.dtype);
  require(gain.numel() == width && (!bias || bias.numel() == width),
          "[{}] gain and bias do not have {} elements", op, width);
  require(inv.numel() == rows && (!layer_norm || mean.numel() == rows),
          "[{}] mean and inv do not have {} elements", op, rows);
  if (delta) {
    require(delta.numel() == x.numel() && residual.numel() == x.numel(),
            "[{}] x {}, delta {} and residual {} differ", op, x.shape.to_string(), delta.shape.to_string(),
            residual.shape.to_string());
  }
  cpu::dispatch_real(op, x.dtype, [&]<class T>(T) {
    const T* gains = gain.as<T>();
    const T* biases = bias && layer_norm ? bias.as<T>() : nullptr;
    parallel_.for_range(rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* in = x.as<T>() + r * width;
        if (delta) {
          T* sum = residual.as<T>() + r * width;
          const T* added = delta.as<T>() + r * width;
          for (int64_t c = 0; c < width; ++c) sum[c] = store<T>(load(in[c]) + load(added[c]));
          in = sum;
        }
        const auto n = static_cast<float>(width);
        const float centre =
            layer_norm ? cpu::lane_sum(width, [in](int64_t c) { return load(in[c]); }) / n : 0.0f;
        const float squares = cpu::lane_sum(width, [in, centre](int64_t c) {
          const float d = load(in[c]) - centre;
          return d * d;
        });
        const float scale = 1.0f / std::sqrt(squares / n + epsilon);
        inv.as<float>()[r] = scale;
        if (layer_norm) mean.as<float>()[r] = centre;
        T* __restrict out = y.dense.as<T>() + r * width;
        if (biases) {
          for (int64_t c = 0; c < width; ++c) {
            out[c] = store<T>((load(in[c]) - centre) * scale * load(gains[c]) + load(biases[c]));
          }
        } else {
          for (int64_t c = 0; c < width; ++c)
            out[c] = store<T>((load(in[c]) - centre) * scale * load(gains[c]));
        }
      }
    });
  });
  finish(y);
}

void CpuOps::norm_backward(NormKind kind, const Operand& dresidual, Tensor dgain, Tensor dbias, Tensor dy,
                           Tensor residual, Tensor mean, Tensor inv, Tensor gain) {
  const cpu::HostScope scope = timed({.kind = OpKind::Norm, .op = "norm_backward"});
  constexpr std::string_view op = "norm_backward";
  const int64_t rows = residual.rows(), width = residual.cols();
  const bool layer_norm = kind == NormKind::LayerNorm;
  const Tensor& dx = dresidual.dense;
  require(dx.numel() == residual.numel() && dy.numel() == residual.numel(),
          "[{}] dresidual {}, dy {}, residual {}", op, dx.shape.to_string(), dy.shape.to_string(),
          residual.shape.to_string());
  cpu::require_dtype(op, "dresidual", dx, residual.dtype);
  cpu::require_dtype(op, "dy", dy, residual.dtype);
  cpu::require_dtype(op, "gain", gain, residual.dtype);
  require(gain.numel() == width && (!dgain || dgain.numel() == width) && (!dbias || dbias.numel() == width),
          "[{}] gain, dgain or dbias does not have {} elements", op, width);
  require(inv.numel() == rows && (!layer_norm || mean.numel() == rows),
          "[{}] mean and inv do not have {} elements", op, rows);

  const cpu::RowChunks chunks(rows);
  cpu::Scratch space = scratch();
  float* gain_partials = space.take<float>(chunks.count * width);
  float* bias_partials = space.take<float>(chunks.count * width);
  cpu::dispatch_real(op, residual.dtype, [&]<class T>(T) {
    const T* gains = gain.as<T>();
    parallel_.for_each(chunks.count, [&](int64_t chunk, int) {
      std::fill_n(gain_partials + chunk * width, width, 0.0f);
      std::fill_n(bias_partials + chunk * width, width, 0.0f);
      for (int64_t r = chunks.begin(chunk); r < chunks.end(chunk); ++r) {
        backward_row(dx.as<T>() + r * width, gain_partials + chunk * width, bias_partials + chunk * width,
                     dy.as<T>() + r * width, residual.as<T>() + r * width, gains, width, layer_norm,
                     layer_norm ? mean.as<float>()[r] : 0.0f, inv.as<float>()[r]);
      }
    });
  });
  const auto add_partials = [&](const Tensor& out, const float* partials) {
    if (!out) return;
    cpu::dispatch_real(op, out.dtype, [&]<class G>(G) {
      parallel_.for_range(width, 256, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          float total = 0.0f;
          for (int64_t chunk = 0; chunk < chunks.count; ++chunk) total += partials[chunk * width + c];
          out.as<G>()[c] = store<G>(load(out.as<G>()[c]) + total);
        }
      });
    });
  };
  add_partials(dgain, gain_partials);
  add_partials(dbias, bias_partials);
  finish(dresidual);
}

}  // namespace octet
