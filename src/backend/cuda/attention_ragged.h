#pragma once

#include <cstdint>

#include "backend/cuda/attention.h"
#include "backend/cuda/cuda_ops.h"

namespace octet {

// Where the documents of a packed batch lie, as cuDNN needs it: in elements per tensor, on the device. Entries from
// the number of documents on are empty documents, so that a plan can be made for a round number of them.
struct RaggedTables {
  int32_t* lengths = nullptr;       // (slots) tokens
  int64_t* qkv_starts = nullptr;    // (slots + 1), in rows of (H + 2K) * D
  int64_t* out_starts = nullptr;    // (slots + 1), in rows of H * D
  int64_t* kv_starts = nullptr;     // (slots + 1), in rows of K * D
  int64_t* stats_starts = nullptr;  // (slots + 1), in rows of H
  int64_t slots = 0;
};

RaggedTables take_ragged_tables(Scratch& scratch, int64_t slots);
// Also clears the rows of `result` (N, width) bf16 that belong to no document. Nothing is read on the host.
void fill_ragged_tables(CudaOps& ops, const RaggedTables& tables, const AttentionCase& attention,
                        void* result, int64_t width);

// Keys and values (or their gradients) in separate rows, (N, K * D) bf16 each.
struct KvRows {
  void* k = nullptr;
  void* v = nullptr;
};
// The key and value columns of qkv (N, (H + 2K) * D).
void take_kv_rows(CudaOps& ops, const AttentionCase& attention, const KvRows& to, const void* qkv);
// Back into those columns; zero outside the documents.
void put_kv_rows(CudaOps& ops, const AttentionCase& attention, void* qkv, const KvRows& from);

}  // namespace octet
