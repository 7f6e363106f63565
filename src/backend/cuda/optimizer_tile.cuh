#pragma once

#include "backend/cuda/device/copy_async.cuh"
#include "backend/cuda/optimizer.cuh"

// Parts of the kernel of optimizer_tile.cu: arithmetic with the bits of the general kernel, codes, and loading of a
// thread's rows.

namespace octet::device {

constexpr int kTileThreads = CodeTile::kThreads;
constexpr int kUpdateTileWarps = kTileThreads / 32;
constexpr int kRowsPerWarp = static_cast<int>(kAdamTile) / kUpdateTileWarps;
constexpr int kRowsPerThread = kRowsPerWarp / 2;  // neighbours; 16 lanes hold a row
static_assert(kAdamTile == CodeTile::kSize && kAdamTile == kMomentBlock && kRowsPerThread % 2 == 0);

// ---- arithmetic ----

__device__ __forceinline__ float root_approx(float x) {  // of 1 / sqrt(x)
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// __fsqrt_rn for finite x of at least kSmallestSquare, by one Newton step from an approximation of 1 / sqrt(x).
constexpr float kSmallestSquare = 0x1p-101f;
__device__ __forceinline__ float sqrt_in_range(float x, float inverse) {
  const float root = __fmul_rn(x, inverse), half = __fmul_rn(inverse, 0.5f);
  return __fmaf_rn(__fmaf_rn(-root, root, x), half, root);
}
// The same for 0, too.
__device__ __forceinline__ float sqrt_or_zero(float x) {
  return sqrt_in_range(x, root_approx(fmaxf(x, kSmallestSquare)));
}

// __frcp_rn for normal numbers below 2^126.
__device__ __forceinline__ float inverse_in_range(float x) {
  const float first = inverse_approx(x);
  return __fmaf_rn(first, __fmaf_rn(-x, first, 1.0f), first);
}

// __fdiv_rn where neither the quotient nor the remainders leave the normal numbers.
__device__ __forceinline__ float divide_in_range(float a, float b) {
  const float inverse = inverse_in_range(b);
  const float quotient = __fmul_rn(a, inverse);
  return __fmaf_rn(inverse, __fmaf_rn(-b, quotient, a), quotient);
}
constexpr float kLargestDivisor = 0x1p30f;     // the smallest is epsilon, which the host checks
constexpr float kSmallestDividend = 0x1p-90f;  // or 0
constexpr float kLargestDividend = 0x1p60f;

// For SmallMomentStep: its squares are in the range of sqrt_in_range until they overflow, and its divisors lie between
// epsilon, which the host checks, and 2^64 / sqrt(1 - beta2).
struct QuickMath {
  static_assert(SmallMomentStep::kSmallestSquare >= kSmallestSquare);
  __device__ __forceinline__ static float root(float x) { return sqrt_in_range(x, root_approx(x)); }
  __device__ __forceinline__ static float inverse(float x) { return inverse_in_range(x); }
};

// ---- codes ----

__device__ __forceinline__ void decode8(float (&x)[8], uint2 codes) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = i < 2 ? codes.x : codes.y;
    const auto pair = static_cast<__nv_fp8x2_storage_t>(i % 2 ? word >> 16 : word & 0xFFFFu);
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    x[2 * i] = values.x;
    x[2 * i + 1] = values.y;
  }
}

// RoundingBits::noise in one instruction: three bytes of a word below a zero.
__device__ __forceinline__ uint32_t noise_of(const RoundingBits& bits, int j) {
  constexpr uint32_t kBytes[4] = {0x4321, 0x4210, 0x4103, 0x4032};
  return __byte_perm(bits.words[j / 4], 0u, kBytes[j % 4]);
}

// The upper bytes of eight words.
__device__ __forceinline__ uint2 upper_bytes(const uint32_t (&x)[8]) {
  uint32_t halves[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) halves[i] = __byte_perm(x[2 * i], x[2 * i + 1], 0x7632);
  return make_uint2(__byte_perm(halves[0], halves[1], 0x7531), __byte_perm(halves[2], halves[3], 0x7531));
}

// root_value without a choice: the upper half of its fp32 bits is (code + min(code, kRootUpperCodes) + kRootStart) * 4,
// and the lower half is 0. Two values fit into a word.
constexpr uint32_t kRootStart = 0x1000;
constexpr bool root_values_agree() {
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t bits = (code + (code < kRootUpperCodes ? code : kRootUpperCodes) + kRootStart) << 18;
    if (bits != std::bit_cast<uint32_t>(root_value(static_cast<uint8_t>(code)))) return false;
  }
  return true;
}
static_assert(root_values_agree());
__device__ __forceinline__ void root_values8(float (&x)[8], uint2 codes) {
  constexpr uint32_t kBoth = 0x10001;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = __byte_perm(i < 2 ? codes.x : codes.y, 0u, i % 2 ? 0x4342 : 0x4140);
    const uint32_t sums = pair + __vminu2(pair, kRootUpperCodes * kBoth) + kRootStart * kBoth;
    x[2 * i] = __uint_as_float(sums << 18);
    x[2 * i + 1] = __uint_as_float(sums << 2 & 0xFFFF0000u);
  }
}

// root_code_word without a choice, but for its top bit, which is flipped. The bits of kRootFloor are 8 << 23. So after a
// shift by 5 they are the smallest signed number, and those of the first upper code are 0.
constexpr uint32_t kRootFlip = 0x80;
__host__ __device__ constexpr uint32_t flipped_root_word(uint32_t bits, uint32_t noise24) {
  const auto x = static_cast<int32_t>(bits << 5);
  return static_cast<uint32_t>(x) + static_cast<uint32_t>(x > 0 ? x : 0) + noise24;
}
constexpr bool root_codes_agree() {
  constexpr uint32_t kFirst = std::bit_cast<uint32_t>(kRootFloor), kNoise = 0xABCDEF;
  constexpr uint32_t kLast = std::bit_cast<uint32_t>(kRootLargest * kE4m3AsFp32);
  for (uint32_t bits = kFirst; bits <= kLast; bits += 0x7FFF) {  // no divisor of a step between codes
    const uint32_t expected = root_code_word(std::bit_cast<float>(bits), kNoise);
    if ((flipped_root_word(bits, kNoise) ^ kRootFlip << 24) != expected) return false;
  }
  return true;
}
static_assert(root_codes_agree());
// The codes of eight flipped words.
__device__ __forceinline__ uint2 root_codes(const uint32_t (&words)[8]) {
  constexpr uint32_t kFlips = kRootFlip * 0x01010101u;
  const uint2 flipped = upper_bytes(words);
  return make_uint2(flipped.x ^ kFlips, flipped.y ^ kFlips);
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
struct MomentPacks<AdamMoments::Small> {
  using Type = uint2;
  using Element = uint8_t;
};

// Where a thread's eight columns of its first row lie, and the factors of m (in even lanes) or of v (in odd lanes).
// There are too few registers to keep every address.
template <class G, AdamMoments moments>
struct AdamPlaces {
  using M = typename MomentPacks<moments>::Element;
  const AdamEntry& entry;
  int64_t place;
  float* factors;

  __device__ __forceinline__ Bf16* weight(uint32_t offset) const {
    return static_cast<Bf16*>(entry.weight) + (place + offset);
  }
  __device__ __forceinline__ const G* gradient(uint32_t offset) const {
    return static_cast<const G*>(entry.gradient) + (place + offset);
  }
  __device__ __forceinline__ M* m(uint32_t offset) const {
    return static_cast<M*>(entry.m) + (place + offset);
  }
  __device__ __forceinline__ M* v(uint32_t offset) const {
    return static_cast<M*>(entry.v) + (place + offset);
  }
  template <RemainderKind kind>
  __device__ __forceinline__ void* remainder(uint32_t offset) const {
    const int64_t element = place + offset;  // rows are whole vectors, so no row ends within a byte
    return static_cast<uint8_t*>(entry.remainder) +
           (kind == RemainderKind::Compact ? element / 2 : 2 * element);
  }
};

// The remainders of eight columns: eight nibbles, the first in the lowest bits, or eight words.
struct NoRemainders {};
template <RemainderKind kind>
using Remainders =
    std::conditional_t<kind == RemainderKind::Exact, uint4,
                       std::conditional_t<kind == RemainderKind::Compact, uint32_t, NoRemainders>>;

// The values loaded for eight columns of a row.
template <class G, AdamMoments moments, RemainderKind remainder_kind>
struct AdamRaw {
  Pack8<Bf16> weight;
  Pack8<G> gradient;
  typename MomentPacks<moments>::Type m, v;
  Remainders<remainder_kind> remainder;
  float factor;
};

// The next kAhead rows of a thread, loaded in advance. They are in registers if a row is long, because then one row
// is enough to hide the memory latency.
template <class G, AdamMoments moments, RemainderKind remainder_kind>
struct AdamRows {
  static constexpr int kAhead = 1, kSharedBytes = 0;
  AdamRaw<G, moments, remainder_kind> next;

  __device__ explicit AdamRows(uint8_t*) {}
  __device__ __forceinline__ void load(int, const AdamPlaces<G, moments>& from, uint32_t offset, uint32_t) {
    using M = typename MomentPacks<moments>::Element;
    next.weight = Pack8<Bf16>::load(from.weight(offset));
    next.gradient = Pack8<G>::load(from.gradient(offset));
    next.m = Pack8<M>::load(from.m(offset));
    next.v = Pack8<M>::load(from.v(offset));
    if constexpr (remainder_kind != RemainderKind::None) {
      next.remainder =
          *static_cast<const Remainders<remainder_kind>*>(from.template remainder<remainder_kind>(offset));
    }
  }
  __device__ __forceinline__ void no_load() { next = {}; }
  __device__ __forceinline__ AdamRaw<G, moments, remainder_kind> take(int) const { return next; }
};

// Moments of 8 bits make rows short and their arithmetic long, and there are no registers for more rows. So the rows wait
// in shared memory, in a ring of stages. Every thread has its own place there, so that no thread waits for others.
template <class G, RemainderKind remainder_kind>
struct AdamRows<G, AdamMoments::Small, remainder_kind> {
  static constexpr AdamMoments kMoments = AdamMoments::Small;
  static constexpr bool kHasRemainder = remainder_kind != RemainderKind::None;
  static constexpr int kRemainderBytes =
      kHasRemainder ? static_cast<int>(sizeof(Remainders<remainder_kind>)) : 0;
  // Where each part begins in a row.
  static constexpr int kGradient = 16, kM = kGradient + static_cast<int>(sizeof(Pack8<G>)), kV = kM + 8,
                       kFactor = kV + 8, kRemainder = kFactor + 4, kRowBytes = kRemainder + kRemainderBytes;
  static constexpr int kAhead = kRowBytes <= 56 ? 3 : 2,
                       kStages = kAhead + 1;  // three blocks fit, or two of 84 bytes
  static constexpr int kStageBytes = kTileThreads * kRowBytes, kSharedBytes = kStages * kStageBytes;
  uint8_t* ring;

  __device__ explicit AdamRows(uint8_t* shared) : ring(shared) {}

  // Vectors of neighbouring threads are adjacent.
  template <class Vector>
  __device__ __forceinline__ Vector* place(int row, int part) const {
    return reinterpret_cast<Vector*>(ring + row % kStages * kStageBytes + kTileThreads * part) + threadIdx.x;
  }
  template <class Vector>
  __device__ __forceinline__ void fetch(int row, int part, const void* from) const {
    copy_async<sizeof(Vector)>(place<Vector>(row, part), from);
  }
  __device__ __forceinline__ void load(int row, const AdamPlaces<G, kMoments>& from, uint32_t offset,
                                       uint32_t block) const {
    fetch<uint4>(row, 0, from.weight(offset));
    const G* gradient = from.gradient(offset);
    fetch<uint4>(row, kGradient, gradient);
    if constexpr (sizeof(G) == 4) fetch<uint4>(row, kGradient + 16, gradient + 4);
    fetch<uint2>(row, kM, from.m(offset));
    fetch<uint2>(row, kV, from.v(offset));
    fetch<float>(row, kFactor, from.factors + block);
    if constexpr (kHasRemainder) {
      fetch<Remainders<remainder_kind>>(row, kRemainder, from.template remainder<remainder_kind>(offset));
    }
    copy_async_commit();
  }
  __device__ __forceinline__ void no_load() const { copy_async_commit(); }  // groups are counted
  __device__ __forceinline__ AdamRaw<G, kMoments, remainder_kind> take(int row) const {
    copy_async_wait<kAhead - 1>();
    AdamRaw<G, kMoments, remainder_kind> raw{};
    raw.weight.raw = *place<uint4>(row, 0);
    if constexpr (sizeof(G) == 4) {
      raw.gradient = {*place<float4>(row, kGradient), *place<float4>(row, kGradient + 16)};
    } else {
      raw.gradient.raw = *place<uint4>(row, kGradient);
    }
    raw.m = *place<uint2>(row, kM);
    raw.v = *place<uint2>(row, kV);
    raw.factor = *place<float>(row, kFactor);
    if constexpr (kHasRemainder) raw.remainder = *place<Remainders<remainder_kind>>(row, kRemainder);
    return raw;
  }
};

// One step of eight elements, rounded after every operation as on the CPU.
__device__ __forceinline__ void adamw_update8(const AdamTable& t, float keep, float clip, float (&w)[8],
                                              const float (&gradient)[8], float (&m)[8], float (&v)[8]) {
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
    denominator[j] = __fadd_rn(__fmul_rn(sqrt_or_zero(v[j]), t.inverse_root), t.epsilon);
    ratio[j] = divide_in_range(m[j], denominator[j]);
    // Between 0 and the smallest, both excluded: 0 wraps around to a large number.
    rare |= __float_as_uint(v[j]) - 1u < kSquareBits - 1u;
    rare |= 2u * __float_as_uint(m[j]) - 1u < 2u * kDividendBits - 1u;
    rare |= !(denominator[j] <= kLargestDivisor) || !(fabsf(m[j]) <= kLargestDividend);
  }
  if (rare) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      ratio[j] = __fdiv_rn(m[j], __fadd_rn(__fmul_rn(__fsqrt_rn(v[j]), t.inverse_root), t.epsilon));
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) w[j] = __fsub_rn(w[j], __fmul_rn(t.step_size, ratio[j]));
}

// In a row of 16 lanes even lanes work for m and odd ones for the roots of v; this gives all of them both results.
struct OfMoments {
  float m, root;
};
__device__ __forceinline__ OfMoments exchange(float own, bool odd) {
  const float other = __shfl_xor_sync(0xFFFFFFFFu, own, 1);
  return {odd ? other : own, odd ? own : other};
}

// The factor of this lane's moment. The moments are scaled for e4m3_magnitude and root_code_word.
__device__ __forceinline__ float shift_moments(float (&m)[8], float (&root)[8], bool odd) {
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  float m_largest = fabsf(m[0]), root_largest = root[0];
#pragma unroll
  for (int j = 1; j < 8; ++j) {
    m_largest = fmaxf(m_largest, fabsf(m[j]));
    root_largest = fmaxf(root_largest, root[j]);
  }
  const float given = __shfl_xor_sync(kAll, odd ? m_largest : root_largest, 1);
  float largest = fmaxf(odd ? root_largest : m_largest, given);
#pragma unroll
  for (int offset = 2; offset < 16; offset *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, offset));
  }
  const float factor = factor_of(largest, odd ? kRootFactorOfLargest : kFactorOfLargest);
  float inverse = inverse_in_range(__fmul_rn(factor, 1.0f / kE4m3AsFp32));
  if (!(factor > 0.0f)) inverse = 0.0f;
  if (__any_sync(kAll, largest >= kLargeMoment)) {
    const MomentShift own = MomentShift::of(largest, factor);
    const OfMoments first = exchange(own.first, odd);
    inverse = own.inverse;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      m[j] = __fmul_rn(m[j], first.m);
      root[j] = __fmul_rn(root[j], first.root);
    }
  }
  const OfMoments inverses = exchange(inverse, odd);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    m[j] = __fmul_rn(m[j], inverses.m);
    root[j] = __fmul_rn(root[j], inverses.root);
  }
  return factor;
}

}  // namespace octet::device
