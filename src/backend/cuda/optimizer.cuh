#pragma once

#include "backend/cuda/device/tile_kernel.cuh"
#include "ops/stochastic.h"
#include "tensor/split_fp32.h"

// Shared by the kernels of AdamW.

namespace octet::device {

constexpr int kParametersPerLaunch = 192;
constexpr int kTileSearch = 256;  // a power of two, and no less

// A parameter as a matrix (a vector has one row).
struct AdamEntry {
  void* weight;
  void* remainder;  // of a bf16 weight, see RemainderKind
  const void* gradient;
  void* m;
  void* v;
  float* m_scales;  // of 8-bit moments
  float* v_scales;
  int64_t rows, cols;
  int64_t first_tile;
  uint64_t stream;
  int64_t first_row;  // of the whole parameter, for the random bits
  float keep;         // 1 - learning rate * decay
  bool gradient_bf16, moments_bf16, vector;
  CastTarget cast;
};

struct AdamTable {
  AdamEntry entries[kParametersPerLaunch];
  int32_t first_tiles[kTileSearch];  // of the entries, and then INT32_MAX
  float beta1, beta2, one_minus_beta1, one_minus_beta2, step_size, inverse_root, epsilon;
  float root_beta2, root_one_minus_beta2;
  uint64_t seed;
  Philox::Keys<kRoundingRounds> keys;  // of the seed
  int64_t step;
};
static_assert(sizeof(AdamTable) <= 32764, "the table travels as a kernel argument");

// `m_kept` and `root_kept` are the factors of a block times beta1 and sqrt(beta2).
__device__ __forceinline__ SmallMomentStep small_step(const AdamTable& t, float keep, float clip,
                                                      float m_kept, float root_kept) {
  return {.m_gain = __fmul_rn(clip, t.one_minus_beta1),
          .root_gain = __fmul_rn(clip, t.root_one_minus_beta2),
          .m_kept = m_kept,
          .root_kept = root_kept,
          .inverse_root = t.inverse_root,
          .epsilon = t.epsilon,
          .step_size = t.step_size,
          .keep = keep};
}

// The parameter that tile `tile` of the launch belongs to. Every block needs it before it can begin.
__device__ __forceinline__ const AdamEntry& entry_of_tile(const AdamTable& table, unsigned int tile) {
  int found = 0;
#pragma unroll
  for (int step = kTileSearch / 2; step > 0; step /= 2) {
    if (table.first_tiles[found + step] <= static_cast<int>(tile)) found += step;
  }
  return table.entries[found];
}

// ---- launches: they update the parameters of the table, which take `tiles` tiles in all ----

// Tiles are kAdamTile in both directions.
constexpr int64_t kAdamTile = 128;
enum class AdamMoments : uint8_t { F32, Bf16, Small };  // Small: 8 bits each
struct AdamKind {
  bool gradient_bf16 = false;
  AdamMoments moments = AdamMoments::F32;
  RemainderKind remainder = RemainderKind::None;
  bool operator==(const AdamKind&) const = default;
};
// Weights are bf16 and rows are whole vectors (AdamEntry::vector). All parameters of the table have gradients and
// moments of these types, and remainders of this kind.
void launch_adamw_tiles(CudaOps& ops, const AdamTable& table, AdamKind kind, int64_t tiles,
                        const float* clip);

// Tiles of kAdamTile rows and this many columns.
int64_t general_tile_cols(bool small_moments);
// All other parameters. What is the same for all parameters of a launch:
struct AdamGeneral {
  bool bf16 = false;           // weights
  bool compact = false;        // their remainders; otherwise those are exact or absent
  bool small_moments = false;  // of 8 bits
  bool operator==(const AdamGeneral&) const = default;
};
void launch_adamw_general(CudaOps& ops, const AdamTable& table, AdamGeneral kind, int64_t tiles,
                          const float* clip);

}  // namespace octet::device
