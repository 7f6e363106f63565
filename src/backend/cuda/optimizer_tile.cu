#include "backend/cuda/optimizer.cuh"

// AdamW for what nearly all of a model is: matrices with bf16 weights whose rows are whole vectors. Next to 10 to 20
// bytes an element has to pass through some eighty instructions, so these decide: the loop over rows stays rolled (the
// code must fit the instruction cache), types are compile-time, and square root and division have one check for eight
// elements. Results have the bits of the general kernel.

namespace octet::device {
namespace {

constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / 32;
constexpr int kRowsPerWarp = static_cast<int>(kAdamTile) / kTileWarps;  // two at a time: 16 lanes hold a row
static_assert(kAdamTile == kMomentBlock && kRowsPerWarp == 16);

// ---- arithmetic ----

__device__ __forceinline__ float root_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// __fsqrt_rn for 0 and for finite x of at least kSmallestSquare: an approximation and one Newton step.
constexpr float kSmallestSquare = 0x1p-101f;
__device__ __forceinline__ float sqrt_in_range(float x) {
  const float inverse = root_approx(fmaxf(x, kSmallestSquare));  // for 0 everything below is 0
  const float root = __fmul_rn(x, inverse), half = __fmul_rn(inverse, 0.5f);
  return __fmaf_rn(__fmaf_rn(-root, root, x), half, root);
}

// __fdiv_rn where neither the quotient nor the remainders leave the normal numbers.
__device__ __forceinline__ float divide_in_range(float a, float b) {
  const float first = inverse_approx(b);
  const float inverse = __fmaf_rn(first, __fmaf_rn(-b, first, 1.0f), first);
  const float quotient = __fmul_rn(a, inverse);
  return __fmaf_rn(inverse, __fmaf_rn(-b, quotient, a), quotient);
}
constexpr float kLargestDivisor = 0x1p30f;     // the smallest is epsilon, which the host checks
constexpr float kSmallestDividend = 0x1p-90f;  // or 0
constexpr float kLargestDividend = 0x1p60f;

// moment_scale of ops/stochastic.h. Block maxima beyond 2^60 take the plain divisions.
__device__ __forceinline__ MomentScale moment_scale_of(float largest) {
  if (!(largest > 0x1p-100f)) return {0.0f, 0.0f};
  if (!(largest < 0x1p60f)) return {__fdiv_rn(largest, 448.0f), __fdiv_rn(448.0f, largest)};
  return {divide_in_range(largest, 448.0f), divide_in_range(448.0f, largest)};
}

// to_e4m3_stochastic of ops/stochastic.h up to the code: the value of that code (or 480, which is to saturate). `sign` is
// the sign bit of x, 0 where it is known to be positive.
__device__ __forceinline__ float round_to_e4m3(float x, uint32_t sign, uint32_t noise) {
  const float move = __uint_as_float(fabsf(x) < kSmallestNormalE4m3 ? 0x3C800000u | sign : 0u);  // 2^-6
  const uint32_t bits = __float_as_uint(__fadd_rn(x, move)) + noise;
  return __fsub_rn(__uint_as_float(bits & 0xFFF00000u), move);
}

__device__ __forceinline__ void decode8(float (&x)[8], uint2 codes, float factor) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = i < 2 ? codes.x : codes.y;
    const auto pair = static_cast<__nv_fp8x2_storage_t>(i % 2 ? word >> 16 : word & 0xFFFFu);
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    x[2 * i] = __fmul_rn(values.x, factor);
    x[2 * i + 1] = __fmul_rn(values.y, factor);
  }
}

// ---- eight elements of a row ----

template <AdamMoments moments>
struct MomentPacks;
template <>
struct MomentPacks<AdamMoments::F32> {
  using Type = Pack8<float>;
  using Element = float;
};
template <>
struct MomentPacks<AdamMoments::Bf16> {
  using Type = Pack8<Bf16>;
  using Element = Bf16;
};
template <>
struct MomentPacks<AdamMoments::E4M3> {
  using Type = uint2;
  using Element = uint8_t;
};

template <class G, AdamMoments moments, bool split>
struct AdamRaw {
  Pack8<Bf16> weight;
  Pack8<G> gradient;
  typename MomentPacks<moments>::Type m, v;
  uint4 remainder;
  float m_factor, v_factor;

  __device__ __forceinline__ void load(const AdamEntry& entry, int64_t place, int64_t block) {
    using M = typename MomentPacks<moments>::Element;
    weight = Pack8<Bf16>::load(static_cast<const Bf16*>(entry.weight) + place);
    gradient = Pack8<G>::load(static_cast<const G*>(entry.gradient) + place);
    const M* m_place = static_cast<const M*>(entry.m) + place;
    const M* v_place = static_cast<const M*>(entry.v) + place;
    if constexpr (moments == AdamMoments::E4M3) {
      m = *reinterpret_cast<const uint2*>(m_place);
      v = *reinterpret_cast<const uint2*>(v_place);
      m_factor = entry.m_scales[block];
      v_factor = entry.v_scales[block];
    } else {
      m = Pack8<M>::load(m_place);
      v = Pack8<M>::load(v_place);
    }
    if constexpr (split) remainder = *reinterpret_cast<const uint4*>(entry.remainder + place);
  }
};

// One step of eight elements, rounded after every operation as on the CPU. Leaves sqrt(v) in `root`.
__device__ __forceinline__ void adamw_update8(const AdamTable& t, float keep, float clip, float (&w)[8],
                                              const float (&gradient)[8], float (&m)[8], float (&v)[8],
                                              float (&root)[8]) {
  constexpr uint32_t kSquareBits = std::bit_cast<uint32_t>(kSmallestSquare);
  constexpr uint32_t kDividendBits = std::bit_cast<uint32_t>(kSmallestDividend);
  bool rare = false;
  float denominator[8], ratio[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float g = __fmul_rn(gradient[j], clip);
    w[j] = __fmul_rn(w[j], keep);
    m[j] = __fadd_rn(m[j], __fmul_rn(t.one_minus_beta1, __fsub_rn(g, m[j])));
    v[j] = __fadd_rn(__fmul_rn(v[j], t.beta2), __fmul_rn(__fmul_rn(t.one_minus_beta2, g), g));
    root[j] = sqrt_in_range(v[j]);
    denominator[j] = __fadd_rn(__fmul_rn(root[j], t.inverse_root), t.epsilon);
    ratio[j] = divide_in_range(m[j], denominator[j]);
    // Between 0 and the smallest, both excluded: 0 wraps around.
    rare |= __float_as_uint(v[j]) - 1u < kSquareBits - 1u;
    rare |= 2u * __float_as_uint(m[j]) - 1u < 2u * kDividendBits - 1u;
    rare |= !(denominator[j] <= kLargestDivisor) || !(fabsf(m[j]) <= kLargestDividend);
  }
  if (rare) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      root[j] = __fsqrt_rn(v[j]);
      ratio[j] = __fdiv_rn(m[j], __fadd_rn(__fmul_rn(root[j], t.inverse_root), t.epsilon));
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) w[j] = __fsub_rn(w[j], __fmul_rn(t.step_size, ratio[j]));
}

// Over the 16 lanes of a row: the scales of both moments. Even lanes work for m, odd ones for v, and then they
// exchange what all need.
struct RowScales {
  float m_inverse, v_inverse;
  float factor;  // of m in even lanes, of v in odd ones
};
__device__ __forceinline__ RowScales row_scales(float m_largest, float v_largest) {
  const bool odd = threadIdx.x % 2 == 1;
  const float given = __shfl_xor_sync(0xFFFFFFFFu, odd ? m_largest : v_largest, 1);
  float largest = fmaxf(odd ? v_largest : m_largest, given);
#pragma unroll
  for (int offset = 2; offset < 16; offset *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
  }
  const MomentScale own = moment_scale_of(largest);
  const float other = __shfl_xor_sync(0xFFFFFFFFu, own.inverse, 1);
  return {odd ? other : own.inverse, odd ? own.inverse : other, own.factor};
}

// ---- the transposed codes ----

// Codes lie in shared memory as in the matrix: rows of 32 words of 4 columns, scattered so that no access meets itself in
// a bank.
__device__ __forceinline__ int code_word(int row, int word) {
  return 32 * row + (word ^ (row / 16 * 4));
}

// Each thread turns 16 rows of 4 columns; eight neighbours write 128 rows of a column.
__device__ __forceinline__ void write_transposed_tile(const uint32_t* words, uint8_t* colwise, int64_t rows,
                                                      int64_t cols, int64_t tile_row, int64_t tile_col) {
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = thread % 8 * 16, word = thread / 8;
  const int64_t row = tile_row + first_row, col = tile_col + 4 * word;
  if (row >= rows || col >= cols) return;
  uint32_t turned[4][4];  // [column][four rows]
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t block[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) block[r] = words[code_word(first_row + 4 * i + r, word)];
    transpose_bytes(block);
#pragma unroll
    for (int c = 0; c < 4; ++c) turned[c][i] = block[c];
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {  // columns come in eights, so that all four are there
    uint8_t* to = colwise + (col + c) * rows + row;
    if (rows % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = make_uint4(turned[c][0], turned[c][1], turned[c][2], turned[c][3]);
    } else {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        if (row + j < rows) to[j] = static_cast<uint8_t>(turned[c][j / 4] >> (8 * (j % 4)));
      }
    }
  }
}

// ---- the kernel ----

// One block for each tile of each parameter.
template <class G, AdamMoments moments, bool split>
__global__ void __launch_bounds__(kTileThreads, 3)
    adamw_tile_kernel(const __grid_constant__ AdamTable table, const float* clip) {
  constexpr bool small = moments == AdamMoments::E4M3;
  using M = typename MomentPacks<moments>::Element;
  __shared__ alignas(16) uint32_t words[kAdamTile * kAdamTile / 4];
  const bool skip = !isfinite(clip[0]);
  const float clip_factor = clip[1];
  const AdamEntry& entry = entry_of_tile(table, blockIdx.x);
  const CastTarget& cast = entry.cast;
  if (skip && !cast.record) return;  // FP8 copies are made anew even then: their scales may have moved
  const int64_t rows = entry.rows, cols = entry.cols;
  const int64_t across = (cols + kAdamTile - 1) / kAdamTile, tile = blockIdx.x - entry.first_tile;
  const int64_t tile_row = tile / across * kAdamTile, tile_col = tile % across * kAdamTile;
  const float row_scale = cast.rowwise ? cast.slot->scale_rowwise : 1.0f;
  const float col_scale = cast.colwise ? cast.slot->scale_colwise : 1.0f;
  const bool same_codes = cast.rowwise && row_scale == col_scale && cast.row_e5m2 == cast.col_e5m2;

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int tile_line = kRowsPerWarp * warp + lane / 16;  // then every second row
  const int64_t col = tile_col + 8 * (lane % 16);
  const bool column_inside = col < cols;
  const Philox random_bits(table.seed, entry.stream);
  uint32_t amax = 0;

  AdamRaw<G, moments, split> next;
  const auto load = [&](int line) {
    const int64_t row = tile_row + line;
    if (column_inside && row < rows) next.load(entry, row * cols + col, row * across + tile_col / kAdamTile);
  };
  load(tile_line);
#pragma unroll 1
  for (int line = tile_line; line < kRowsPerWarp * (warp + 1); line += 2) {
    const AdamRaw<G, moments, split> raw = next;
    if (line + 2 < kRowsPerWarp * (warp + 1)) load(line + 2);  // is under way during what follows
    const int64_t row = tile_row + line, place = row * cols + col;
    const bool inside = column_inside && row < rows;
    Pack8<Bf16> kept = inside ? raw.weight : Pack8<Bf16>::zero();
    if (!skip) {
      float w[8], g[8], m[8], v[8], root[8];
      std::array<uint32_t, 4> random{};
      if (inside) {
        raw.weight.unpack(w);
        raw.gradient.unpack(g);
        if constexpr (small) {
          decode8(m, raw.m, raw.m_factor);
          decode8(v, raw.v, raw.v_factor);
#pragma unroll
          for (int j = 0; j < 8; ++j) v[j] = __fmul_rn(v[j], v[j]);
        } else {
          raw.m.unpack(m);
          raw.v.unpack(v);
        }
        if constexpr (split) {
          const uint32_t low[4] = {raw.remainder.x, raw.remainder.y, raw.remainder.z, raw.remainder.w};
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const auto part = static_cast<int16_t>(j % 2 ? low[j / 2] >> 16 : low[j / 2] & 0xFFFFu);
            w[j] = __uint_as_float(__float_as_uint(w[j]) + static_cast<uint32_t>(static_cast<int32_t>(part)));
          }
        }
        if constexpr (small || !split) {
          const int64_t group = row * (cols / 8) + col / 8;
          random =
              random_bits.words((static_cast<uint64_t>(table.step) << 40) + static_cast<uint64_t>(group));
        }
        adamw_update8(table, entry.keep, clip_factor, w, g, m, v, root);
        const RoundingBits bits{random};
        uint32_t upper[4], lower[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t a = __float_as_uint(w[2 * i]), b = __float_as_uint(w[2 * i + 1]);
          const uint32_t up_a = a + (split ? 0x8000u : bits.weight(2 * i));
          const uint32_t up_b = b + (split ? 0x8000u : bits.weight(2 * i + 1));
          upper[i] = __byte_perm(up_a, up_b, 0x7632);
          lower[i] = __byte_perm(a, b, 0x5410);
        }
        kept.raw = make_uint4(upper[0], upper[1], upper[2], upper[3]);
        kept.store(static_cast<Bf16*>(entry.weight) + place);
        if constexpr (split) {
          store16(entry.remainder + place, make_uint4(lower[0], lower[1], lower[2], lower[3]));
        }
        if constexpr (!small) {
          Pack8<M>::pack(m).store(static_cast<M*>(entry.m) + place);
          Pack8<M>::pack(v).store(static_cast<M*>(entry.v) + place);
        }
      } else if constexpr (small) {
#pragma unroll
        for (int j = 0; j < 8; ++j) m[j] = root[j] = 0.0f;
      }
      if constexpr (small) {
        float m_largest = 0.0f, v_largest = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          m_largest = fmaxf(m_largest, fabsf(m[j]));
          v_largest = fmaxf(v_largest, root[j]);
        }
        const RowScales scales = row_scales(m_largest, v_largest);
        // The second lane too where its own columns lie behind the end of a row with eight in its last block.
        if (row < rows && lane % 16 < 2) {
          const int64_t block = row * across + tile_col / kAdamTile;
          (lane % 16 == 0 ? entry.m_scales : entry.v_scales)[block] = scales.factor;
        }
        if (inside) {
          const RoundingBits bits{random};
          uint32_t m_codes[2], v_codes[2];
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            m[j] = __fmul_rn(m[j], scales.m_inverse);
            m[j] = round_to_e4m3(m[j], __float_as_uint(m[j]) & 0x80000000u, rounding_noise(bits.m(j)));
            // A root above zero never becomes code 0.
            root[j] = __fmul_rn(root[j], scales.v_inverse);
            root[j] =
                fmaxf(round_to_e4m3(root[j], 0u, rounding_noise(bits.v(j))), root[j] > 0.0f ? 0x1p-9f : 0.0f);
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            m_codes[i] = encode4<false>(m[4 * i], m[4 * i + 1], m[4 * i + 2], m[4 * i + 3]);
            v_codes[i] = encode4<false>(root[4 * i], root[4 * i + 1], root[4 * i + 2], root[4 * i + 3]);
          }
          *reinterpret_cast<uint2*>(static_cast<uint8_t*>(entry.m) + place) =
              make_uint2(m_codes[0], m_codes[1]);
          *reinterpret_cast<uint2*>(static_cast<uint8_t*>(entry.v) + place) =
              make_uint2(v_codes[0], v_codes[1]);
        }
      }
    }
    if (!cast.record) continue;
    amax = max(amax, magnitude_bits(kept));
    uint2 codes{};
    if (cast.rowwise) {
      codes = encode8(kept, row_scale, cast.row_e5m2);
      if (inside) *reinterpret_cast<uint2*>(cast.rowwise + place) = codes;
    }
    if (cast.colwise) {
      if (!same_codes) codes = encode8(kept, col_scale, cast.col_e5m2);
      *reinterpret_cast<uint2*>(words + code_word(line, 2 * (lane % 16))) = codes;
    }
  }
  if (!cast.record) return;
  if (cast.colwise) {
    __syncthreads();
    write_transposed_tile(words, cast.colwise, rows, cols, tile_row, tile_col);
  }
  const int64_t tiles = across * ((rows + kAdamTile - 1) / kAdamTile);
  record_amax(amax, cast, static_cast<unsigned int>(tiles));
}

}  // namespace

void launch_adamw_tiles(CudaBackend& backend, const AdamTable& table, AdamKind kind, int64_t tiles,
                        const float* clip) {
  const auto launch = [&]<class G, AdamMoments moments, bool split>() {
    adamw_tile_kernel<G, moments, split>
        <<<narrow<unsigned>(tiles), kTileThreads, 0, backend.stream()>>>(table, clip);
  };
  const auto with_moments = [&]<class G, bool split>() {
    switch (kind.moments) {
      case AdamMoments::F32:
        return launch.template operator()<G, AdamMoments::F32, split>();
      case AdamMoments::Bf16:
        return launch.template operator()<G, AdamMoments::Bf16, split>();
      case AdamMoments::E4M3:
        return launch.template operator()<G, AdamMoments::E4M3, split>();
    }
  };
  if (kind.gradient_bf16) {
    kind.split ? with_moments.template operator()<Bf16, true>()
               : with_moments.template operator()<Bf16, false>();
  } else {
    kind.split ? with_moments.template operator()<float, true>()
               : with_moments.template operator()<float, false>();
  }
  check_launch("adamw");
}

}  // namespace octet::device
