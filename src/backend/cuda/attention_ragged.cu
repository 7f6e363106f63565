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

// One block per token: its key and its value are next to each other at the end of its row of qkv.
struct KvCopy {
  uint4* qkv;
  uint4* k;
  uint4* v;
  int64_t row_vectors;
  int kv_vectors;

  __device__ uint4* joined(int64_t token, int i) const {
    return qkv + (token + 1) * row_vectors - 2 * kv_vectors + i;
  }
  __device__ uint4* apart(int64_t token, int i) const {
    return i < kv_vectors ? k + token * kv_vectors + i : v + token * kv_vectors + i - kv_vectors;
  }
};

__global__ void take_kernel(const KvCopy copy) {
  const int64_t token = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * copy.kv_vectors; i += static_cast<int>(blockDim.x)) {
    *copy.apart(token, i) = *copy.joined(token, i);
  }
}

__global__ void put_kernel(const KvCopy copy, const int* __restrict__ starts, int64_t documents) {
  const int64_t token = blockIdx.x;
  const bool inside = token >= starts[0] && token < starts[documents];
  for (int i = static_cast<int>(threadIdx.x); i < 2 * copy.kv_vectors; i += static_cast<int>(blockDim.x)) {
    *copy.joined(token, i) = inside ? *copy.apart(token, i) : uint4{};
  }
}

KvCopy kv_copy(const AttentionShape& shape, void* qkv, const KvRows& rows) {
  return {static_cast<uint4*>(qkv), static_cast<uint4*>(rows.k), static_cast<uint4*>(rows.v),
          shape.qkv_width() / kVector, narrow<int>(shape.kv_heads * shape.head_dim / kVector)};
}
unsigned kv_threads(const KvCopy& copy) {
  return static_cast<unsigned>(std::min<int64_t>(round_up(2 * copy.kv_vectors, 32), kThreads));
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

void fill_ragged_tables(CudaOps& ops, const RaggedTables& tables, const AttentionCase& attention,
                        void* result, int64_t width) {
  const AttentionShape& shape = attention.shape;
  const RowWidths widths = {shape.qkv_width(), shape.out_width(), shape.kv_heads * shape.head_dim,
                            shape.heads};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(div_up(tables.slots + 1, kThreads), 64));
  tables_kernel<<<blocks, kThreads, 0, ops.stream()>>>(
      tables, widths, static_cast<const int*>(attention.documents.starts.data), attention.documents.count,
      static_cast<uint4*>(result), width / kVector, attention.tokens);
  check_launch("attention documents");
}

void take_kv_rows(CudaOps& ops, const AttentionCase& attention, const KvRows& to, const void* qkv) {
  const KvCopy copy = kv_copy(attention.shape, const_cast<void*>(qkv), to);
  take_kernel<<<narrow<unsigned>(attention.tokens), kv_threads(copy), 0, ops.stream()>>>(copy);
  check_launch("attention keys and values");
}

void put_kv_rows(CudaOps& ops, const AttentionCase& attention, void* qkv, const KvRows& from) {
  const KvCopy copy = kv_copy(attention.shape, qkv, from);
  put_kernel<<<narrow<unsigned>(attention.tokens), kv_threads(copy), 0, ops.stream()>>>(
      copy, static_cast<const int*>(attention.documents.starts.data), attention.documents.count);
  check_launch("attention keys and values");
}

}  // namespace octet
