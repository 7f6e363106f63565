#include <algorithm>
#include <cmath>

#include "backend/cpu/attention.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/vector_math.h"

namespace octet {
namespace cpu {

int64_t decode_workspace(int64_t max_length, const AttentionShape& shape, int threads) {
  const int64_t group = shape.heads / shape.kv_heads;
  return Scratch::padded(threads * group * max_length * 4) +
         Scratch::padded(threads * group * shape.head_dim * 4);
}

}  // namespace cpu

using namespace cpu;  // NOLINT: this file implements the CPU device

void CpuOps::attention_decode(Tensor out, const KvCache& cache, Tensor qkv, Tensor sequences,
                              Tensor positions, int64_t longest, const AttentionShape& shape) {
  const cpu::HostScope scope = timed({.kind = OpKind::AttentionForward, .op = "attention_decode"});
  constexpr std::string_view op = "attention_decode";
  require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim > 0,
          "[{}] {} query heads do not share {} key heads of width {}", op, shape.heads, shape.kv_heads,
          shape.head_dim);
  const int64_t tokens = qkv.rows(), depth = shape.head_dim, group = shape.heads / shape.kv_heads;
  const int64_t cache_width = shape.kv_heads * depth;
  require_shape(op, "qkv", qkv, {tokens, shape.qkv_width()});
  require_shape(op, "out", out, {tokens, shape.out_width()});
  require_shape(op, "sequences", sequences, {tokens});
  require_shape(op, "positions", positions, {tokens});
  require_dtype(op, "sequences", sequences, DType::I32);
  require_dtype(op, "positions", positions, DType::I32);
  require(cache.keys.shape.rank() == 3 && cache.keys.cols() == cache_width,
          "[{}] the keys are {}, expected (sequences, positions, {})", op, cache.keys.shape.to_string(),
          cache_width);
  require_shape(op, "values", cache.values, cache.keys.shape);
  require_dtype(op, "out", out, qkv.dtype);
  require_dtype(op, "keys", cache.keys, qkv.dtype);
  require_dtype(op, "values", cache.values, qkv.dtype);
  const int64_t rows = cache.keys.shape[0], capacity = cache.keys.shape[1];
  const int32_t* sequence = sequences.as<int32_t>();
  const int32_t* position = positions.as<int32_t>();
  for (int64_t n = 0; n < tokens; ++n) {
    require(sequence[n] >= -1 && sequence[n] < rows, "[{}] a sequence is {}, expected -1 to {}", op,
            sequence[n], rows - 1);
    require(position[n] >= 0 && position[n] < std::min(capacity, longest),
            "[{}] a position is {}, expected 0 to {}", op, position[n], std::min(capacity, longest) - 1);
  }

  Scratch space = scratch();
  float* all_scores = space.take<float>(parallel_.threads() * group * longest);
  float* all_sums = space.take<float>(parallel_.threads() * group * depth);
  dispatch_real(op, qkv.dtype, [&]<class T>(T) {
    const T* in = qkv.as<T>();
    T* keys = cache.keys.as<T>();
    T* values = cache.values.as<T>();
    for (int64_t n = 0; n < tokens; ++n) {
      if (sequence[n] < 0) continue;
      const T* k = in + n * shape.qkv_width() + shape.heads * depth;
      const int64_t place = (sequence[n] * capacity + position[n]) * cache_width;
      std::copy_n(k, cache_width, keys + place);
      std::copy_n(k + cache_width, cache_width, values + place);
    }
    // One task reads the keys and values of one head once, for all queries that share them.
    parallel_.for_each(tokens * shape.kv_heads, [&](int64_t task, int thread) {
      const int64_t n = task / shape.kv_heads, kv_head = task % shape.kv_heads;
      T* result = out.as<T>() + n * shape.out_width() + kv_head * group * depth;
      if (sequence[n] < 0) {
        std::fill_n(result, group * depth, store<T>(0.0f));
        return;
      }
      const int64_t oldest = shape.first_key(position[n]), seen = position[n] + 1 - oldest;
      const T* q = in + n * shape.qkv_width() + kv_head * group * depth;
      const int64_t first = (sequence[n] * capacity + oldest) * cache_width + kv_head * depth;
      float* scores = all_scores + thread * group * longest;
      float* sums = all_sums + thread * group * depth;
      for (int64_t j = 0; j < seen; ++j) {
        const T* k = keys + first + j * cache_width;
        for (int64_t g = 0; g < group; ++g) {
          const T* query = q + g * depth;
          scores[g * longest + j] =
              shape.scale * lane_sum(depth, [=](int64_t c) { return load(query[c]) * load(k[c]); });
        }
      }
      for (int64_t g = 0; g < group; ++g) {
        float* row = scores + g * longest;
        const float largest = lane_max(row, seen);
        for (int64_t j = 0; j < seen; ++j) row[j] = fast_exp(row[j] - largest);
        const float inverse = 1.0f / lane_sum(seen, [row](int64_t j) { return row[j]; });
        for (int64_t j = 0; j < seen; ++j) row[j] *= inverse;
      }
      std::fill_n(sums, group * depth, 0.0f);
      for (int64_t j = 0; j < seen; ++j) {
        const T* v = values + first + j * cache_width;
        for (int64_t g = 0; g < group; ++g) {
          const float p = scores[g * longest + j];
          float* __restrict sum = sums + g * depth;
          for (int64_t c = 0; c < depth; ++c) sum[c] += p * load(v[c]);
        }
      }
      for (int64_t i = 0; i < group * depth; ++i) result[i] = store<T>(sums[i]);
    });
  });
}

}  // namespace octet
