#include "backend/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/matrix_product.h"
#include "backend/cpu/vector_math.h"

namespace octet {
namespace cpu {
namespace {

// This many query rows are processed at a time against all keys they see, so that a row of scores is complete when
// its softmax is formed.
constexpr int64_t kQueryTile = 64;
// A task has up to this many such tiles, for which keys and values are packed once.
constexpr int64_t kMostTiles = 4;

struct Checked {
  const int32_t* starts;
  int64_t count;
};

Checked check(std::string_view op, const Tensor& qkv, const Tensor& lse, const Documents& documents,
              const AttentionShape& shape) {
  require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim > 0,
          "[{}] {} query heads do not share {} key heads of width {}", op, shape.heads, shape.kv_heads,
          shape.head_dim);
  require(qkv.cols() == shape.qkv_width(), "[{}] qkv is {}, expected {} columns", op, qkv.shape.to_string(),
          shape.qkv_width());
  require_shape(op, "lse", lse, {shape.heads, qkv.rows()});
  require_dtype(op, "lse", lse, DType::F32);
  require_dtype(op, "document starts", documents.starts, DType::I32);
  require(documents.starts.numel() > documents.count, "[{}] {} documents but {} starts", op, documents.count,
          documents.starts.numel());
  const int32_t* starts = documents.starts.as<int32_t>();
  for (int64_t i = 0; i < documents.count; ++i) {
    require(starts[i] >= 0 && starts[i] <= starts[i + 1] && starts[i + 1] <= qkv.rows() &&
                starts[i + 1] - starts[i] <= documents.max_length,
            "[{}] document {} is tokens {} to {} of {}, with a longest document of {}", op, i, starts[i],
            starts[i + 1], qkv.rows(), documents.max_length);
  }
  return {starts, documents.count};
}

// Queries [first, first + rows) of a document against the keys that any of them sees, [low, low + keys).
struct QueryTile {
  QueryTile(const AttentionShape& attention, int64_t first_query, int64_t length)
      : shape(attention),
        first(first_query),
        rows(std::min(kQueryTile, length - first_query)),
        low(first_packed(attention.first_key(first_query))),
        keys(first + rows - low) {}

  const AttentionShape& shape;
  int64_t first, rows, low, keys;

  // Rounds down to a key at which a packed factor can begin.
  static int64_t first_packed(int64_t key) { return key - key % PackedFactor::kColumns; }

  // Row r sees the columns [begin(r), end(r)) of the tile.
  int64_t begin(int64_t r) const { return shape.first_key(first + r) - low; }
  int64_t end(int64_t r) const { return first + r + 1 - low; }
  // The end rounded up to whole vectors, if the tile has so many columns. Loops over vectors have slow ends.
  int64_t whole_end(int64_t r) const {
    return std::min(begin(r) + round_up(end(r) - begin(r), kLanes), keys);
  }

  // Zeros a tile (rows, keys) outside these columns.
  void mask(float* scores) const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < begin(r); ++j) scores[r * keys + j] = 0.0f;
      for (int64_t j = end(r); j < keys; ++j) scores[r * keys + j] = 0.0f;
    }
  }
};

// Floats for the keys (or values) of one head, packed as a right factor: as they are, or transposed.
int64_t packed_size(int64_t max_length, int64_t depth) {
  return PackedFactor::size(max_length, depth);
}
int64_t packed_transposed_size(int64_t max_length, int64_t depth) {
  return PackedFactor::size(depth, max_length);
}

PackedFactor pack(float* memory, Factor b, int64_t k, int64_t n) {
  PackedFactor packed(memory, k);
  packed.pack(b, 0, n);
  return packed;
}

}  // namespace

int64_t attention_workspace(int64_t tokens, int64_t max_length, const AttentionShape& shape, int threads,
                            DType dtype) {
  if (shape.heads == 0) return 0;
  const int64_t tasks = Scratch::padded(tokens * 8 + 8);
  const int64_t scores = 2 * Scratch::padded(threads * kQueryTile * max_length * 4);
  const int64_t packed = Scratch::padded(
      threads *
      (packed_size(max_length, shape.head_dim) + 2 * packed_transposed_size(max_length, shape.head_dim)) * 4);
  if (dtype == DType::F32) return tasks + scores + packed;
  // bf16: qkv, dqkv, out and dout in fp32.
  return tasks + scores + packed + 2 * Scratch::padded(tokens * shape.qkv_width() * 4) +
         2 * Scratch::padded(tokens * shape.out_width() * 4);
}

}  // namespace cpu

using namespace cpu;  // NOLINT: this file implements the CPU device

void CpuOps::attention_forward(const Operand& out, Tensor lse, Tensor qkv, const Documents& documents,
                               const AttentionShape& shape) {
  const cpu::HostScope scope = timed({.kind = OpKind::AttentionForward, .op = "attention_forward"});
  constexpr std::string_view op = "attention_forward";
  const auto [starts, count] = check(op, qkv, lse, documents, shape);
  const int64_t tokens = qkv.rows(), width = shape.qkv_width(), out_width = shape.out_width(),
                depth = shape.head_dim;
  require(out.dense.rows() == tokens && out.dense.cols() == out_width, "[{}] out is {}, expected ({}, {})",
          op, out.dense.shape.to_string(), tokens, out_width);
  require_dtype(op, "out", out.dense, qkv.dtype);

  Scratch space = scratch();
  const float* in = as_floats(qkv, space);
  const bool rounds = out.dense.dtype == DType::BF16;
  float* result = rounds ? space.take<float>(tokens * out_width) : out.dense.as<float>();
  const int64_t tile_size = kQueryTile * documents.max_length;
  const int64_t k_size = packed_transposed_size(documents.max_length, depth);
  const int64_t v_size = packed_size(documents.max_length, depth);
  float* all_scores = space.take<float>(parallel_.threads() * tile_size);
  float* all_packed = space.take<float>(parallel_.threads() * (k_size + v_size));
  // Prefix sums of tasks over documents, to find a task's document.
  auto* tasks_before = space.take<int64_t>(count + 1);
  int64_t tiles = kMostTiles;
  for (;; tiles /= 2) {
    tasks_before[0] = 0;
    for (int64_t i = 0; i < count; ++i)
      tasks_before[i + 1] = tasks_before[i] + div_up(starts[i + 1] - starts[i], tiles * kQueryTile);
    // Every thread gets several, because a thread may be slow at times.
    if (tiles == 1 || parallel_.threads() == 1 ||
        tasks_before[count] * shape.heads >= 4 * parallel_.threads())
      break;
  }
  const int64_t queries_of_task = tiles * kQueryTile;
  // Tokens outside all documents attend to nothing.
  const auto clear = [&](int64_t begin, int64_t end) {
    if (begin < end) std::fill(result + begin * out_width, result + end * out_width, 0.0f);
    for (int64_t head = 0; head < shape.heads && begin < end; ++head) {
      std::fill(lse.as<float>() + head * tokens + begin, lse.as<float>() + head * tokens + end, 0.0f);
    }
  };
  clear(0, count > 0 ? starts[0] : tokens);
  if (count > 0) clear(starts[count], tokens);

  const int64_t tasks = tasks_before[count];
  parallel_.for_each(tasks * shape.heads, [&, starts = starts, count = count](int64_t task, int thread) {
    const int64_t index = tasks - 1 - task / shape.heads, head = task % shape.heads;
    const int64_t document =
        std::upper_bound(tasks_before, tasks_before + count + 1, index) - tasks_before - 1;
    const int64_t start = starts[document], length = starts[document + 1] - start;
    const int64_t begin = (index - tasks_before[document]) * queries_of_task,
                  end = std::min(begin + queries_of_task, length);
    const int64_t low = QueryTile::first_packed(shape.first_key(begin));
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const float* k = in + (start + low) * width + (shape.heads + kv_head) * depth;
    const float* v = k + shape.kv_heads * depth;
    float* memory = all_packed + thread * (k_size + v_size);
    const PackedFactor keys_packed = pack(memory, {k, width, true}, depth, end - low);
    const PackedFactor values_packed = pack(memory + k_size, {v, width}, end - low, depth);
    float* scores = all_scores + thread * tile_size;
    for (int64_t first = begin; first < end; first += kQueryTile) {
      const QueryTile queries(shape, first, length);
      const int64_t rows = queries.rows, keys = queries.keys, below = queries.low - low;
      const float* q = in + (start + first) * width + head * depth;
      matrix_product(scores, keys, {q, width}, keys_packed.from(0, below), rows, keys, depth, shape.scale,
                     false);
      float inverse[kQueryTile];
      for (int64_t r = 0; r < rows; ++r) {
        float* row = scores + r * keys + queries.begin(r);
        const int64_t seen = queries.end(r) - queries.begin(r);
        const int64_t whole = queries.whole_end(r) - queries.begin(r);
        std::fill(row + seen, row + whole, -std::numeric_limits<float>::infinity());
        const float largest = lane_max(row, whole);
        // The exponentials replace the scores while they are summed.
        const float total = lane_sum(whole, [=](int64_t j) { return row[j] = fast_exp(row[j] - largest); });
        inverse[r] = 1.0f / total;
        lse.as<float>()[head * tokens + start + first + r] = largest + std::log(total);
      }
      queries.mask(scores);
      float* o = result + (start + first) * out_width + head * depth;
      matrix_product(o, out_width, {scores, keys}, values_packed.from(below, 0), rows, depth, keys, 1.0f,
                     false);
      for (int64_t r = 0; r < rows; ++r) {
        float* row = o + r * out_width;
        for (int64_t c = 0; c < depth; ++c) row[c] *= inverse[r];
      }
    }
  });
  if (rounds) store_floats(out.dense, result);
  finish(out);
}

void CpuOps::attention_backward(Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                                const Documents& documents, const AttentionShape& shape) {
  const cpu::HostScope scope = timed({.kind = OpKind::AttentionBackward, .op = "attention_backward"});
  constexpr std::string_view op = "attention_backward";
  const auto [starts, count] = check(op, qkv, lse, documents, shape);
  const int64_t tokens = qkv.rows(), width = shape.qkv_width(), out_width = shape.out_width(),
                depth = shape.head_dim;
  require(dqkv.numel() == qkv.numel() && out.numel() == tokens * out_width && dout.numel() == out.numel(),
          "[{}] dqkv {}, dout {} and out {} do not fit qkv {}", op, dqkv.shape.to_string(),
          dout.shape.to_string(), out.shape.to_string(), qkv.shape.to_string());
  for (const Tensor* x : {&dqkv, &dout, &out}) require_dtype(op, "dqkv, dout or out", *x, qkv.dtype);

  Scratch space = scratch();
  const float* in = as_floats(qkv, space);
  const float* upstream = as_floats(dout, space);
  const float* output = as_floats(out, space);
  const bool rounds = dqkv.dtype == DType::BF16;
  float* result = rounds ? space.take<float>(tokens * width) : dqkv.as<float>();
  const int64_t tile_size = kQueryTile * documents.max_length;
  float* all_probabilities = space.take<float>(parallel_.threads() * tile_size);
  float* all_gradients = space.take<float>(parallel_.threads() * tile_size);
  const int64_t transposed_size = packed_transposed_size(documents.max_length, depth);
  const int64_t all_sizes = packed_size(documents.max_length, depth) + 2 * transposed_size;
  float* all_packed = space.take<float>(parallel_.threads() * all_sizes);
  const auto clear = [&](int64_t begin, int64_t end) {
    if (begin < end) std::fill(result + begin * width, result + end * width, 0.0f);
  };
  clear(0, count > 0 ? starts[0] : tokens);
  if (count > 0) clear(starts[count], tokens);

  // One task owns the keys and values of one head in one document, so that their gradients are summed in a fixed
  // order.
  const int64_t group = shape.heads / shape.kv_heads;
  parallel_.for_each(count * shape.kv_heads, [&, starts = starts](int64_t task, int thread) {
    const int64_t document = task / shape.kv_heads, kv_head = task % shape.kv_heads;
    const int64_t start = starts[document], length = starts[document + 1] - start;
    const int64_t k_offset = start * width + (shape.heads + kv_head) * depth;
    const int64_t v_offset = k_offset + shape.kv_heads * depth;
    const float* k = in + k_offset;
    const float* v = in + v_offset;
    float* dk = result + k_offset;
    float* dv = result + v_offset;
    for (int64_t r = 0; r < length; ++r) {
      std::fill_n(dk + r * width, depth, 0.0f);
      std::fill_n(dv + r * width, depth, 0.0f);
    }
    float* memory = all_packed + thread * all_sizes;
    const PackedFactor keys_transposed = pack(memory, {k, width, true}, depth, length);
    const PackedFactor values_transposed = pack(memory + transposed_size, {v, width, true}, depth, length);
    const PackedFactor keys_packed = pack(memory + 2 * transposed_size, {k, width}, length, depth);
    float* p = all_probabilities + thread * tile_size;
    float* ds = all_gradients + thread * tile_size;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t first = 0; first < length; first += kQueryTile) {
        const QueryTile queries(shape, first, length);
        const int64_t rows = queries.rows, keys = queries.keys, below = queries.low * width;
        const float* q = in + (start + first) * width + head * depth;
        const float* o = output + (start + first) * out_width + head * depth;
        const float* d = upstream + (start + first) * out_width + head * depth;
        matrix_product(p, keys, {q, width}, keys_transposed.from(0, queries.low), rows, keys, depth,
                       shape.scale, false);
        matrix_product(ds, keys, {d, out_width}, values_transposed.from(0, queries.low), rows, keys, depth,
                       1.0f, false);
        const float* row_lse = lse.as<float>() + head * tokens + start + first;
        for (int64_t r = 0; r < rows; ++r) {
          float* __restrict p_row = p + r * keys;
          float* __restrict ds_row = ds + r * keys;
          const float* o_row = o + r * out_width;
          const float* d_row = d + r * out_width;
          const float delta = lane_sum(depth, [=](int64_t c) { return o_row[c] * d_row[c]; });
          const float shift = row_lse[r];
          const int64_t end = queries.whole_end(r);  // columns that are not seen are masked below
          for (int64_t j = queries.begin(r); j < end; ++j) {
            p_row[j] = fast_exp(p_row[j] - shift);
            ds_row[j] = p_row[j] * (ds_row[j] - delta) * shape.scale;
          }
        }
        queries.mask(p);
        queries.mask(ds);
        matrix_product(dv + below, width, {p, keys, true}, {d, out_width}, keys, depth, rows, 1.0f, true);
        matrix_product(dk + below, width, {ds, keys, true}, {q, width}, keys, depth, rows, 1.0f, true);
        matrix_product(result + (start + first) * width + head * depth, width, {ds, keys},
                       keys_packed.from(queries.low, 0), rows, depth, keys, 1.0f, false);
      }
    }
  });
  if (rounds) store_floats(dqkv, result);
}

}  // namespace octet
