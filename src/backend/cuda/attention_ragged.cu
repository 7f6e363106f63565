#include "backend/cuda/attention_ragged.h"

#include <algorithm>

#include "backend/cuda/device/vec.cuh"

namespace octet {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // bf16 in 16 bytes; D is a multiple of 16

struct RowWidths {
  int64_t qkv, out, kv, stats;
};

__global__ void tables_kernel(RaggedTables tables, RowWidths widths, const int* __restrict__ starts,
                              int64_t documents, uint4* result, int64_t row_vectors, int64_t tokens) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = thread; i <= tables.slots; i += threads) {
    const int64_t start = starts[min(i, documents)];
    tables.qkv_starts[i] = start * widths.qkv;
    tables.out_starts[i] = start * widths.out;
    tables.kv_starts[i] = start * widths.kv;
    tables.stats_starts[i] = start * widths.stats;
    if (i < tables.slots) tables.lengths[i] = i < documents ? starts[i + 1] - starts[i] : 0;
  }
  const int64_t begin = starts[0] * row_vectors, end = tokens * row_vectors;
  for (int64_t i = thread; i < begin; i += threads) result[i] = {};
  for (int64_t i = starts[documents] * row_vectors + thread; i < end; i += threads) result[i] = {};
}

// A block to a token: its dk and dv stand side by side in dqkv.
__global__ void insert_kernel(uint4* dqkv, const uint4* __restrict__ dk, const uint4* __restrict__ dv,
                              const int* __restrict__ starts, int64_t documents, int64_t row_vectors,
                              int kv_vectors) {
  const int64_t token = blockIdx.x;
  const bool inside = token >= starts[0] && token < starts[documents];
  uint4* row = dqkv + (token + 1) * row_vectors - 2 * kv_vectors;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kv_vectors; i += static_cast<int>(blockDim.x)) {
    uint4 value = {};
    if (inside) value = i < kv_vectors ? dk[token * kv_vectors + i] : dv[(token - 1) * kv_vectors + i];
    row[i] = value;
  }
}

}  // namespace

RaggedTables take_ragged_tables(Scratch& scratch, int64_t slots) {
  return {.lengths = scratch.take<int32_t>(slots),
          .qkv_starts = scratch.take<int64_t>(slots + 1),
          .out_starts = scratch.take<int64_t>(slots + 1),
          .kv_starts = scratch.take<int64_t>(slots + 1),
          .stats_starts = scratch.take<int64_t>(slots + 1),
          .slots = slots};
}

void fill_ragged_tables(CudaBackend& backend, const RaggedTables& tables, const AttentionCase& attention,
                        void* result, int64_t width) {
  const AttentionShape& shape = attention.shape;
  const RowWidths widths = {shape.qkv_width(), shape.out_width(), shape.kv_heads * shape.head_dim,
                            shape.heads};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(div_up(tables.slots + 1, kThreads), 64));
  tables_kernel<<<blocks, kThreads, 0, backend.stream()>>>(
      tables, widths, static_cast<const int*>(attention.documents.starts.data), attention.documents.count,
      static_cast<uint4*>(result), width / kVector, attention.tokens);
  check_launch("attention documents");
}

void insert_kv_gradients(CudaBackend& backend, const AttentionCase& attention, void* dqkv, const void* dk,
                         const void* dv) {
  const AttentionShape& shape = attention.shape;
  const int kv_vectors = narrow<int>(shape.kv_heads * shape.head_dim / kVector);
  const auto threads = static_cast<unsigned>(std::min<int64_t>(round_up(2 * kv_vectors, 32), kThreads));
  insert_kernel<<<narrow<unsigned>(attention.tokens), threads, 0, backend.stream()>>>(
      static_cast<uint4*>(dqkv), static_cast<const uint4*>(dk), static_cast<const uint4*>(dv),
      static_cast<const int*>(attention.documents.starts.data), attention.documents.count,
      shape.qkv_width() / kVector, kv_vectors);
  check_launch("attention key and value gradients");
}

}  // namespace octet
