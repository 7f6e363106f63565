#pragma once

#include "ops/device.h"

// Memory that CUDA's ops need in addition to the tensors. Pure arithmetic, so that a machine without a GPU can plan
// for one.

namespace octet {

constexpr int64_t kCudaGemmWorkspace = 64ll << 20;      // of cuBLASLt; the scratch of all ops comes after it
constexpr int64_t kCudaEmulationScratch = 256ll << 20;  // larger FP8 operands are dequantised piece by piece
// Sums of the parts of a narrow product. A product is cut up so that they fit, whatever the workspace is.
constexpr int64_t kCudaNarrowSums = int64_t{64} << 20;
constexpr int64_t kCudaMemoryReserve = 1ll << 30;  // GEMM tuning, cuDNN, modules that the driver loads late
constexpr int64_t kAttentionTileBytes = 16;
// The blocks of norm_backward on one multiprocessor have together at most this many columns, unless there is only one
// block.
constexpr int64_t kNormStripColumns = 8192;
// Attention over cached keys: most query heads per block (larger groups take several blocks), and how many blocks
// keep the GPU busy.
constexpr int kDecodeGroup = 8;
constexpr int64_t kDecodeBlocks = 1024;

// The capabilities of every GPU that octet runs on.
Capabilities cuda_capabilities();

// The tiles of `rows` rows of all documents, and the counters that sort them.
int64_t attention_schedule_bytes(int64_t tokens, int64_t documents, int64_t max_length, int rows);
// Bytes for attention, with cuDNN and without.
int64_t cuda_attention_workspace(const WorkspaceNeeds& needs);
int64_t cuda_decode_workspace(const WorkspaceNeeds& needs);
// Bytes for all ops, including kCudaGemmWorkspace.
int64_t cuda_workspace_bytes(const WorkspaceNeeds& needs, int multiprocessors);

}  // namespace octet
