#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"

namespace octet {

using cpu::load;
using cpu::store;

namespace {

constexpr int64_t kRowsPerTask = 16;

// raw and inv may be absent in forward.
void check(std::string_view op, const Tensor& qkv, const Tensor& raw, const Tensor& inv, const Tensor& gain_q,
           const Tensor& gain_k, const AttentionShape& shape) {
  const int64_t rows = qkv.rows(), heads = shape.heads + shape.kv_heads;
  require(qkv.cols() == shape.qkv_width(), "[{}] qkv is {}, expected {} columns", op, qkv.shape.to_string(),
          shape.qkv_width());
  if (raw) {
    cpu::require_shape(op, "raw", raw, {rows, heads * shape.head_dim});
    cpu::require_dtype(op, "raw", raw, qkv.dtype);
  }
  if (inv) {
    cpu::require_shape(op, "inv", inv, {rows, heads});
    cpu::require_dtype(op, "inv", inv, DType::F32);
  }
  for (const Tensor* gain : {&gain_q, &gain_k}) {
    cpu::require_shape(op, "a gain", *gain, {shape.head_dim});
    cpu::require_dtype(op, "a gain", *gain, qkv.dtype);
  }
}

// One head of one token. It is a separate function because only then does the compiler use __restrict.
template <class T>
void backward_head(T* __restrict dx, float* __restrict dgain, const T* __restrict x, const T* __restrict gain,
                   int64_t depth, float scale) {
  const float sum =
      cpu::lane_sum(depth, [=](int64_t c) { return load(dx[c]) * load(gain[c]) * (load(x[c]) * scale); });
  const float mean = sum / static_cast<float>(depth);
  for (int64_t c = 0; c < depth; ++c) {
    const float normed = load(x[c]) * scale, dy = load(dx[c]);
    dgain[c] += dy * normed;
    dx[c] = store<T>(scale * (dy * load(gain[c]) - normed * mean));
  }
}

}  // namespace

void CpuOps::qk_norm_forward(Tensor qkv, Tensor raw, Tensor inv, Tensor gain_q, Tensor gain_k, float epsilon,
                             const AttentionShape& shape) {
  const cpu::HostScope scope = timed({.kind = OpKind::Norm, .op = "qk_norm_forward"});
  constexpr std::string_view op = "qk_norm_forward";
  check(op, qkv, raw, inv, gain_q, gain_k, shape);
  const int64_t depth = shape.head_dim, heads = shape.heads + shape.kv_heads;
  cpu::dispatch_real(op, qkv.dtype, [&]<class T>(T) {
    parallel_.for_range(qkv.rows(), kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (raw) std::copy_n(qkv.as<T>() + r * qkv.cols(), heads * depth, raw.as<T>() + r * heads * depth);
        for (int64_t head = 0; head < heads; ++head) {
          T* x = qkv.as<T>() + r * qkv.cols() + head * depth;
          const T* gain = (head < shape.heads ? gain_q : gain_k).as<T>();
          const float squares = cpu::lane_sum(depth, [x](int64_t c) { return load(x[c]) * load(x[c]); });
          const float scale = 1.0f / std::sqrt(squares / static_cast<float>(depth) + epsilon);
          if (inv) inv.as<float>()[r * heads + head] = scale;
          for (int64_t c = 0; c < depth; ++c) x[c] = store<T>(load(x[c]) * scale * load(gain[c]));
        }
      }
    });
  });
}

void CpuOps::qk_norm_backward(const Operand& dqkv, Tensor dgain_q, Tensor dgain_k, Tensor raw, Tensor inv,
                              Tensor gain_q, Tensor gain_k, const AttentionShape& shape) {
  const cpu::HostScope scope = timed({.kind = OpKind::Norm, .op = "qk_norm_backward"});
  constexpr std::string_view op = "qk_norm_backward";
  const Tensor& dx = dqkv.dense;
  check(op, dx, raw, inv, gain_q, gain_k, shape);
  const int64_t depth = shape.head_dim, heads = shape.heads + shape.kv_heads;
  require(raw && inv, "[{}] needs raw and inv of the forward pass", op);
  for (const Tensor& dgain : {dgain_q, dgain_k}) {
    require(!dgain || dgain.numel() == depth, "[{}] the gradient of a gain has {} elements, expected {}", op,
            dgain.numel(), depth);
  }

  const cpu::RowChunks chunks(dx.rows());
  cpu::Scratch space = scratch();
  float* partials[2];  // of queries and of keys
  for (float*& p : partials) p = space.take<float>(chunks.count * depth);
  cpu::dispatch_real(op, dx.dtype, [&]<class T>(T) {
    parallel_.for_each(chunks.count, [&](int64_t chunk, int) {
      for (float* p : partials) std::fill_n(p + chunk * depth, depth, 0.0f);
      for (int64_t r = chunks.begin(chunk); r < chunks.end(chunk); ++r) {
        for (int64_t head = 0; head < heads; ++head) {
          const bool key = head >= shape.heads;
          backward_head(dx.as<T>() + r * dx.cols() + head * depth, partials[key] + chunk * depth,
                        raw.as<T>() + (r * heads + head) * depth, (key ? gain_k : gain_q).as<T>(), depth,
                        inv.as<float>()[r * heads + head]);
        }
      }
    });
  });
  const auto add = [&](const Tensor& out, const float* values) {
    if (!out) return;
    cpu::dispatch_real(op, out.dtype, [&]<class G>(G) {
      for (int64_t c = 0; c < depth; ++c) {
        float total = 0.0f;
        for (int64_t chunk = 0; chunk < chunks.count; ++chunk) total += values[chunk * depth + c];
        out.as<G>()[c] = store<G>(load(out.as<G>()[c]) + total);
      }
    });
  };
  add(dgain_q, partials[0]);
  add(dgain_k, partials[1]);
  finish(dqkv);
}

}  // namespace octet
