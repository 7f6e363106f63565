#include "backend/cuda_workspace.h"

#include <algorithm>

namespace octet {
namespace {

constexpr int64_t kTileSums = 8 << 20;      // column sums of tile kernels, far more than they use
constexpr int64_t kSmallScratch = 8 << 20;  // grad_norm, sum and statistics keep a few numbers per block

}  // namespace

Capabilities cuda_capabilities() {
  return {.separate_memory = true,
          .fast_bf16 = true,
          .graphs = true,
          .profiles = true,
          .logits_bytes = int64_t{1} << 30,
          .most_logits_bytes = 4'000'000'000};  // elements can be counted in 31 bits
}

int64_t attention_schedule_bytes(int64_t tokens, int64_t documents, int64_t max_length, int rows) {
  const int64_t tiles = (tokens + documents * (rows - 1)) / rows;
  return round_up(kAttentionTileBytes * tiles, 256) + 2 * round_up(4 * (div_up(max_length, rows) + 1), 256);
}

int64_t cuda_attention_workspace(const WorkspaceNeeds& needs) {
  const AttentionShape& shape = needs.attention;
  if (shape.heads == 0) return 0;
  const int64_t head_rows = checked_mul(needs.tokens, shape.heads);
  // Own kernels: delta and the tiles; every token may be a document.
  const int64_t flash = round_up(4 * head_rows, 256) +
                        attention_schedule_bytes(needs.tokens, needs.tokens, needs.max_length, 64) +
                        attention_schedule_bytes(needs.tokens, needs.tokens, needs.max_length, 128);
  if (needs.dtype != DType::BF16) return flash;
  // cuDNN: dq in fp32, dk and dv of all query heads in bf16 if heads share them, two fp32 rows. Plans that need more
  // use their own memory.
  const int64_t shared = shape.heads == shape.kv_heads ? 0 : 4;
  const int64_t cudnn = head_rows * (shape.head_dim * (4 + shared) + 8) + (4ll << 20);
  return std::max(flash, cudnn);
}

int64_t cuda_decode_workspace(const WorkspaceNeeds& needs) {
  // kDecodeBlocks / blocks splits of blocks: together with the unsplit case never more than the sum.
  const AttentionShape& shape = needs.attention;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t queries = needs.tokens * shape.heads + kDecodeBlocks * std::min<int64_t>(group, kDecodeGroup);
  return checked_mul(queries, 4 * (shape.head_dim + 2)) + 3 * 256;
}

int64_t cuda_workspace_bytes(const WorkspaceNeeds& needs, int multiprocessors) {
  int64_t scratch = 0;
  for (const auto& gemm : needs.gemms) {
    // The operands in fp32 if FP8 is emulated, up to a limit; otherwise the scales in cuBLASLt's layout.
    const int64_t elements = checked_mul(gemm.k, gemm.m + gemm.n);
    const int64_t dequantised = std::min(checked_mul(4, elements), kCudaEmulationScratch);
    const int64_t scales = 4 * (gemm.m + gemm.n + 256) * (div_up(gemm.k, 128) + 4);
    scratch = std::max(scratch, dequantised + scales);
  }
  // Partial sums of norm backward (three vectors per block) and of the tile kernels.
  constexpr int64_t kWidestNorm = 16384;
  const int64_t norm_columns =
      std::max(2 * std::min(round_up(needs.width, 64), kWidestNorm), kNormStripColumns);
  scratch = std::max(scratch, 3 * multiprocessors * norm_columns * 4 + kTileSums);
  // Embedding backward: tokens and their rows before and after sorting, runs, and the radix sort's own memory.
  scratch = std::max(scratch, 64 * needs.tokens + kSmallScratch);
  scratch = std::max(scratch, needs.decode ? cuda_decode_workspace(needs) : cuda_attention_workspace(needs));
  if (needs.narrow) scratch = std::max(scratch, kCudaNarrowSums + 256);
  return kCudaGemmWorkspace + round_up(scratch, 256) + 4096;
}

}  // namespace octet
