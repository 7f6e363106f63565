#include "backend/cpu/matrix_product.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "backend/cpu/thread_scratch.h"
#include "base/checked.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace octet::cpu {
namespace {

// The result is computed in tiles of kRows x kCols, whose sums stay in registers: few enough for them, and enough that no
// addition waits for the one before.
#if defined(__AVX512F__)
constexpr const char* kInstructions = "AVX-512";
constexpr int kLanes = 16, kRows = 8, kVectors = 2;
#elif defined(__AVX2__)
constexpr const char* kInstructions = "AVX2";
constexpr int kLanes = 8, kRows = 6, kVectors = 2;
#elif defined(__aarch64__)
constexpr const char* kInstructions = "NEON";
constexpr int kLanes = 4, kRows = 8, kVectors = 2;
#else
constexpr const char* kInstructions = "plain C++";
constexpr int kLanes = 4, kRows = 4, kVectors = 2;
#endif
constexpr int kCols = kLanes * kVectors;

// Blocks of the factors that stay in a core's caches: depth x columns of b, rows x depth of a.
constexpr int64_t kDepth = 256, kBlockCols = 256, kBlockRows = 128;
static_assert(kBlockCols % kCols == 0 && PackedFactor::kColumns % kCols == 0);

using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));

using Quad = float __attribute__((vector_size(16)));

template <class V = Vector>
inline V load(const float* from) {
  V vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class V>
inline void store(float* to, V vector) {
  std::memcpy(to, &vector, sizeof vector);
}

// sum + x * y, rounded once where the processor can.
template <class V>
inline V multiply_add(V sum, float x, V y) {
#if defined(__aarch64__)
  return vfmaq_n_f32(sum, y, x);
#else
  return sum + x * y;
#endif
}

// The summand of a product: a matrix, or one line in place of every row (a stride of 0), or nothing.
struct Base {
  const float* data = nullptr;
  int64_t stride = 0;

  Base from(int64_t row, int64_t col) const { return data ? Base{data + row * stride + col, stride} : *this; }

  // to = alpha * sum + what is here at the same place, each rounded: the compiler must not choose whether it fuses them.
  template <class V>
  [[gnu::always_inline]] void add(float* to, int64_t row, int64_t col, float alpha, V sum) const {
    V product = alpha * sum;
#if defined(__x86_64__)
    __asm__("" : "+v"(product));
#elif defined(__aarch64__)
    __asm__("" : "+w"(product));
#endif
    store(to, data ? load<V>(data + row * stride + col) + product : product);
  }
};

// Sums of a tile over one block of the depth. All loops over it are unrolled, which keeps it in registers.
struct TileSums {
  Vector sums[kRows][kVectors] = {};

  [[gnu::always_inline]] void write(float* c, int64_t c_stride, float alpha, Base base) const {
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        base.add(c + row * c_stride + v * kLanes, row, v * kLanes, alpha, sums[row][v]);
      }
    }
  }
};

// How a tile reads the left factor: as it is stored, or packed with the kRows values of a step of the depth next to each
// other. Where one instruction loads a value into all lanes, the loop over stored values has no more instructions than the
// one over packed values, and nothing has to be packed.
enum class Left { Stored, Packed };
#if defined(__aarch64__)
constexpr Left kLeftRows = Left::Packed;
#else
constexpr Left kLeftRows = Left::Stored;
#endif

// c (kRows, kCols) = alpha a b + base. b is packed: the kCols values of a step of the depth lie next to each other.
// `a_stride` is that of stored rows.
template <Left left>
[[gnu::noinline]] void compute_tile(float* c, int64_t c_stride, const float* a,
                                    [[maybe_unused]] int64_t a_stride, const float* b, int64_t depth,
                                    float alpha, Base base) {
  TileSums tile;
  auto& sums = tile.sums;
#if defined(__aarch64__)
  static_assert(left == Left::Packed, "one load has the values of four rows");
  for (int64_t k = 0; k < depth; ++k) {
    const float32x4_t values[2] = {vld1q_f32(a + k * kRows), vld1q_f32(a + k * kRows + 4)};
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const float32x4_t line = vld1q_f32(b + k * kCols + v * kLanes);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        sums[4 * half][v] = vfmaq_laneq_f32(sums[4 * half][v], line, values[half], 0);
        sums[4 * half + 1][v] = vfmaq_laneq_f32(sums[4 * half + 1][v], line, values[half], 1);
        sums[4 * half + 2][v] = vfmaq_laneq_f32(sums[4 * half + 2][v], line, values[half], 2);
        sums[4 * half + 3][v] = vfmaq_laneq_f32(sums[4 * half + 3][v], line, values[half], 3);
      }
    }
  }
#else
  // The tile is written at the end. By then its cache lines have come.
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    __builtin_prefetch(c + row * c_stride, 1);
    __builtin_prefetch(c + row * c_stride + kCols - 1, 1);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector lines[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) lines[v] = load(b + k * kCols + v * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const float value = left == Left::Packed ? a[k * kRows + row] : a[row * a_stride + k];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[row][v] = multiply_add(sums[row][v], value, lines[v]);
    }
  }
#endif
  tile.write(c, c_stride, alpha, base);
}

// Columns of a stored 4 x 4 block.
struct Columns {
  Quad of[4];

  [[gnu::always_inline]] explicit Columns(const float* from, int64_t stride) {
    const Quad rows[4] = {load<Quad>(from), load<Quad>(from + stride), load<Quad>(from + 2 * stride),
                          load<Quad>(from + 3 * stride)};
    const Quad low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5),
               high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7),
               low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5),
               high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    of[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    of[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    of[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    of[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
  }
};

// to(k, column) = from(column, k) for four columns: to has lines of `width`.
inline void transpose_four(float* to, int64_t width, const float* from, int64_t stride, int64_t depth) {
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4) {
    const Columns columns(from + k, stride);
    for (int i = 0; i < 4; ++i) store(to + (k + i) * width, columns.of[i]);
  }
  for (; k < depth; ++k) {
    for (int i = 0; i < 4; ++i) to[k * width + i] = from[i * stride + k];
  }
}

// Packs `cols` columns of a factor, seen as (depth, columns), into strips of `width` columns; what the last one lacks is
// zero. `contiguous`: the columns of a line lie next to each other.
template <int width>
void pack(float* to, int64_t strip_stride, const float* from, int64_t stride, bool contiguous, int64_t cols,
          int64_t depth) {
  const int64_t whole = cols - cols % width;
  float* last = to + whole / width * strip_stride;
  if (whole < cols) std::fill_n(last, width * depth, 0.0f);
  if (contiguous) {  // line by line: in this order memory is fast
    for (int64_t k = 0; k < depth; ++k) {
      const float* line = from + k * stride;
      float* place = to + k * width;
      for (int64_t col = 0; col < whole; col += width, place += strip_stride)
        std::memcpy(place, line + col, width * sizeof(float));
      std::copy_n(line + whole, cols - whole, last + k * width);
    }
    return;
  }
  for (int64_t strip = 0; strip < cols; strip += width, to += strip_stride) {
    const int64_t end = std::min(strip + width, cols);
    int64_t col = strip;
    for (; col + 4 <= end; col += 4)
      transpose_four(to + col - strip, width, from + col * stride, stride, depth);
    for (; col < end; ++col) {
      for (int64_t k = 0; k < depth; ++k) to[k * width + col - strip] = from[col * stride + k];
    }
  }
}

// A few rows, as in decoding: b is used too seldom to be packed. It is stored transposed, and n is a multiple of the width.
constexpr int64_t kFewRows = 2, kFewRowsQuads = 4, kFewRowsWidth = 4 * kFewRowsQuads;
template <int rows>
void few_rows_product(float* c, int64_t c_stride, Factor a, Factor b, int64_t n, int64_t k, float alpha,
                      bool accumulate, const float* bias) {
  const int64_t a_row = a.transposed ? 1 : a.stride, a_step = a.transposed ? a.stride : 1;
  for (int64_t col = 0; col < n; col += kFewRowsWidth) {
    const float* lines = b.data + col * b.stride;
    for (int64_t first = 0; first < k; first += kDepth) {
      const int64_t end = std::min(first + kDepth, k);
      Quad sums[rows][kFewRowsQuads] = {};
      int64_t step = first;
      for (; step + 4 <= end; step += 4) {
#pragma GCC unroll 4
        for (int q = 0; q < kFewRowsQuads; ++q) {
          const Columns columns(lines + 4 * q * b.stride + step, b.stride);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
            for (int row = 0; row < rows; ++row)
              sums[row][q] =
                  multiply_add(sums[row][q], a.data[row * a_row + (step + i) * a_step], columns.of[i]);
          }
        }
      }
      for (; step < end; ++step) {
        for (int q = 0; q < kFewRowsQuads; ++q) {
          const float* from = lines + 4 * q * b.stride + step;
          const Quad column = {from[0], from[b.stride], from[2 * b.stride], from[3 * b.stride]};
          for (int row = 0; row < rows; ++row)
            sums[row][q] = multiply_add(sums[row][q], a.data[row * a_row + step * a_step], column);
        }
      }
      const Base base = accumulate || first > 0 ? Base{c, c_stride} : Base{bias};
      for (int row = 0; row < rows; ++row) {
        for (int q = 0; q < kFewRowsQuads; ++q)
          base.add(c + row * c_stride + col + 4 * q, row, col + 4 * q, alpha, sums[row][q]);
      }
    }
  }
}

struct alignas(64) Blocks {
  float a[kBlockRows * kDepth + kRows * kDepth];
  float b[kBlockCols * kDepth];
  float edge[kRows * kCols] = {};
};

// Strips of kCols columns of the right factor.
struct Strips {
  const float* data;
  int64_t stride;
};

// c (m, n) = alpha a (m, depth) b (depth, n) + base for n <= kBlockCols and depth <= kDepth.
void multiply_block(float* c, int64_t c_stride, Factor a, Strips b, int64_t m, int64_t n, int64_t depth,
                    float alpha, Base base, Blocks& blocks) {
  for (int64_t row = 0; row < m; row += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, m - row);
    // Whole tiles may read rows that are stored as rows.
    const int64_t stored = a.transposed || kLeftRows == Left::Packed ? 0 : rows - rows % kRows;
    pack<kRows>(blocks.a + stored * depth, kRows * depth, a.from(row + stored, 0).data, a.stride,
                a.transposed, rows - stored, depth);
    for (int64_t col = 0; col < n; col += kCols) {
      const float* strip = b.data + col / kCols * b.stride;
      const int64_t tile_cols = std::min<int64_t>(kCols, n - col);
      for (int64_t i = 0; i < rows; i += kRows) {
        const int64_t tile_rows = std::min<int64_t>(kRows, rows - i);
        const auto compute = [&](float* to, int64_t stride, Base from) {
          if (i < stored) {
            compute_tile<kLeftRows>(to, stride, a.from(row + i, 0).data, a.stride, strip, depth, alpha, from);
          } else {
            compute_tile<Left::Packed>(to, stride, blocks.a + i * depth, 0, strip, depth, alpha, from);
          }
        };
        float* place = c + (row + i) * c_stride + col;
        Base from = base.from(row + i, col);
        if (tile_rows == kRows && tile_cols == kCols) {
          compute(place, c_stride, from);
          continue;
        }
        // Through the same operations as a whole tile, so that the bits are the same.
        if (from.data) {
          for (int64_t r = 0; r < tile_rows; ++r)
            std::copy_n(from.data + r * from.stride, tile_cols, blocks.edge + r * kCols);
          from = {blocks.edge, kCols};
        }
        compute(blocks.edge, kCols, from);
        for (int64_t r = 0; r < tile_rows; ++r)
          std::copy_n(blocks.edge + r * kCols, tile_cols, place + r * c_stride);
      }
    }
  }
}

// The product by blocks. block_of(first, depth, col, cols) are the strips of a block of the right factor.
template <class BlockOf>
void multiply(float* c, int64_t c_stride, Factor a, int64_t m, int64_t n, int64_t k, float alpha,
              bool accumulate, const float* bias, Blocks& blocks, const BlockOf& block_of) {
  for (int64_t row = 0; k == 0 && !accumulate && row < m; ++row) {
    if (bias) {
      std::copy_n(bias, n, c + row * c_stride);
    } else {
      std::fill_n(c + row * c_stride, n, 0.0f);
    }
  }
  for (int64_t first = 0; first < k; first += kDepth) {
    const int64_t depth = std::min(kDepth, k - first);
    const Base base = accumulate || first > 0 ? Base{c, c_stride} : Base{bias};
    for (int64_t col = 0; col < n; col += kBlockCols) {
      const int64_t cols = std::min(kBlockCols, n - col);
      multiply_block(c + col, c_stride, a.from(0, first), block_of(first, depth, col, cols), m, cols, depth,
                     alpha, base.from(0, col), blocks);
    }
  }
}

}  // namespace

int64_t PackedFactor::size(int64_t k, int64_t n) {
  return k * round_up(n, int64_t{kCols});
}

void PackedFactor::pack(Factor b, int64_t begin, int64_t end) {
  assert(begin % kColumns == 0);
  cpu::pack<kCols>(data_ + begin * k_, strip_stride(), b.from(0, begin).data, b.stride, !b.transposed,
                   end - begin, k_);
}

PackedFactor PackedFactor::from(int64_t row, int64_t col) const {
  assert(col % kColumns == 0);
  PackedFactor part = *this;
  part.data_ += col * k_ + row * kCols;
  return part;
}

int64_t PackedFactor::strip_stride() const {
  return k_ * kCols;
}

void matrix_product(float* c, int64_t c_stride, Factor a, Factor b, int64_t m, int64_t n, int64_t k,
                    float alpha, bool accumulate, const float* bias) {
  if (m <= kFewRows && b.transposed && k > 0) {
    const int64_t whole = n - n % kFewRowsWidth;
    const auto product = m == 2 ? few_rows_product<2> : few_rows_product<1>;
    if (m > 0) product(c, c_stride, a, b, whole, k, alpha, accumulate, bias);
    c += whole, b = b.from(0, whole), n -= whole, bias = bias ? bias + whole : nullptr;
  }
  Blocks& blocks = thread_scratch<Blocks>();
  multiply(c, c_stride, a, m, n, k, alpha, accumulate, bias, blocks,
           [&](int64_t first, int64_t depth, int64_t col, int64_t cols) {
             pack<kCols>(blocks.b, kCols * depth, b.from(first, col).data, b.stride, !b.transposed, cols,
                         depth);
             return Strips{blocks.b, kCols * depth};
           });
}

void matrix_product(float* c, int64_t c_stride, Factor a, const PackedFactor& b, int64_t m, int64_t n,
                    int64_t k, float alpha, bool accumulate, const float* bias) {
  multiply(c, c_stride, a, m, n, k, alpha, accumulate, bias, thread_scratch<Blocks>(),
           [&](int64_t first, int64_t, int64_t col, int64_t) {
             return Strips{b.from(first, col).strips(), b.strip_stride()};
           });
}

const char* product_instructions() {
  return kInstructions;
}

}  // namespace octet::cpu
