#pragma once

#include <cstdint>

#include "backend/cuda/attention.h"
#include "backend/cuda/cuda_backend.h"

namespace octet {

// Where the documents of a packed batch lie, as cuDNN wants to be told: in elements of each tensor, on the device.
// Entries from the number of documents on are empty documents, so that a plan can be made for a round number of them.
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
void fill_ragged_tables(CudaBackend& backend, const RaggedTables& tables, const AttentionCase& attention,
                        void* result, int64_t width);

// The key and value columns of dqkv (N, (H + 2K) * D) from dk and dv (N, K * D) bf16; zero outside the documents.
void insert_kv_gradients(CudaBackend& backend, const AttentionCase& attention, void* dqkv, const void* dk,
                         const void* dv);

}  // namespace octet
