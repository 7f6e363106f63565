#include <cmath>
#include <vector>

#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

// ---- sums and the gradient norm ----

constexpr int kSumThreads = 512;
constexpr int kSumBlocks = 1024;     // of one launch; each leaves one partial
constexpr int64_t kChunk = 1 << 15;  // elements, of one tensor
constexpr int kTensorsPerLaunch = 512;

struct SumTable {
  struct Entry {
    const void* data;
    int64_t count;
    int64_t first_chunk;
  };
  Entry entries[kTensorsPerLaunch];
  int tensors;
  int64_t chunks;
};

__device__ inline double block_sum(double x) {
  __shared__ double shared[kSumThreads];
  shared[threadIdx.x] = x;
  __syncthreads();
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

// One partial for each block: the sum of its chunks' elements, or of their squares.
template <class T, bool squares>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const __grid_constant__ SumTable table, double* partials) {
  double total = 0.0;
  const auto add = [&](float x) {
    const double value = static_cast<double>(x);
    total += squares ? value * value : value;
  };
  int tensor = 0;
  for (int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    while (tensor + 1 < table.tensors && table.entries[tensor + 1].first_chunk <= chunk) ++tensor;
    const auto& entry = table.entries[tensor];
    const int64_t begin = (chunk - entry.first_chunk) * kChunk;
    const int64_t end = min(entry.count, begin + kChunk);
    const T* x = static_cast<const T*>(entry.data);
    if (reinterpret_cast<uintptr_t>(x) % 16 == 0 && end - begin == kChunk) {
      for (int64_t i = begin + 8 * static_cast<int64_t>(threadIdx.x); i < end; i += 8 * kSumThreads) {
        const Pack8<T> pack = Pack8<T>::load(x + i);
#pragma unroll
        for (int j = 0; j < 8; ++j) add(pack.at(j));
      }
    } else {
      for (int64_t i = begin + threadIdx.x; i < end; i += kSumThreads) add(to_float(x[i]));
    }
  }
  total = block_sum(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

enum class Finish { Sum, Norm };

__global__ void __launch_bounds__(kSumThreads)
    finish_sum_kernel(float* result, const double* partials, int64_t count, Finish finish, float max_norm) {
  double total = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) total += partials[i];
  total = block_sum(total);
  if (threadIdx.x != 0) return;
  if (finish == Finish::Sum) {
    result[0] = static_cast<float>(total);
    return;
  }
  const float norm = static_cast<float>(sqrt(total));
  result[0] = norm;
  result[1] = max_norm > 0.0f && norm > max_norm ? max_norm / norm : 1.0f;
}

// ---- AdamW ----

constexpr int kParametersPerLaunch = 256;

// A parameter as a matrix (a vector has one row).
struct AdamEntry {
  void* weight;
  uint16_t* remainder;  // with it the weight is bf16, else fp32
  const void* gradient;
  void* m;
  void* v;
  int64_t rows, cols;
  int64_t first_tile;
  float keep;  // 1 - learning rate * decay
  bool gradient_bf16, moments_bf16, vector;
  CastTarget cast;
};

struct AdamTable {
  AdamEntry entries[kParametersPerLaunch];
  int parameters;
  float beta1, beta2, one_minus_beta1, one_minus_beta2, step_size, root_correction, epsilon;
};
static_assert(sizeof(AdamTable) <= 32764, "the table travels as a kernel argument");

__device__ __forceinline__ void load_any(float (&x)[8], const void* data, bool bf16, bool vector,
                                         int64_t place, int64_t count) {
  if (bf16) {
    const Bf16* from = static_cast<const Bf16*>(data) + place;
    (vector ? Pack8<Bf16>::load(from) : load_some(from, count)).unpack(x);
  } else {
    const float* from = static_cast<const float*>(data) + place;
    (vector ? Pack8<float>::load(from) : load_some(from, count)).unpack(x);
  }
}

__device__ __forceinline__ void store_any(void* data, const float (&x)[8], bool bf16, bool vector,
                                          int64_t place, int64_t count) {
  if (bf16) {
    Bf16* to = static_cast<Bf16*>(data) + place;
    const auto pack = Pack8<Bf16>::pack(x);
    vector ? pack.store(to) : store_some(to, pack, count);
  } else {
    float* to = static_cast<float*>(data) + place;
    const auto pack = Pack8<float>::pack(x);
    vector ? pack.store(to) : store_some(to, pack, count);
  }
}

// One block for each tile of each parameter.
__global__ void __launch_bounds__(ElementTile::kThreads, 2)
    adamw_kernel(const __grid_constant__ AdamTable table, const float* clip) {
  __shared__ alignas(16) uint32_t words[ElementTile::kWords];
  const bool skip = !isfinite(clip[0]);
  const float clip_factor = clip[1];
  int low = 0, high = table.parameters - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.entries[middle].first_tile <= static_cast<int64_t>(blockIdx.x)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const AdamEntry& entry = table.entries[low];
  const CastTarget& cast = entry.cast;
  if (skip && !cast.record) return;  // FP8 copies are made anew even then: their scales may have moved
  const int64_t tile = blockIdx.x - entry.first_tile;
  const int64_t across = (entry.cols + ElementTile::kCols - 1) / ElementTile::kCols;
  const int64_t tile_row = tile / across * ElementTile::kRows, tile_col = tile % across * ElementTile::kCols;
  const int64_t col = tile_col + ElementTile::col(), count = entry.cols - col;
  const float row_scale = cast.rowwise ? cast.slot->scale_rowwise : 1.0f;
  const float col_scale = cast.colwise ? cast.slot->scale_colwise : 1.0f;
  const bool split = entry.remainder != nullptr;
  Pack8<float> kept[4];
  uint32_t amax = 0;

#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = tile_row + ElementTile::row() + r;
    kept[r] = Pack8<float>::zero();
    if (count <= 0 || row >= entry.rows) continue;
    const int64_t place = row * entry.cols + col;
    float rounded[8];
    load_any(rounded, entry.weight, split, entry.vector, place, count);
    if (!skip) {
      float g[8], m[8], v[8];
      uint16_t low_bits[8] = {};
      load_any(g, entry.gradient, entry.gradient_bf16, entry.vector, place, count);
      load_any(m, entry.m, entry.moments_bf16, entry.vector, place, count);
      load_any(v, entry.v, entry.moments_bf16, entry.vector, place, count);
      if (split) {
        if (entry.vector) {
          const uint4 raw = *reinterpret_cast<const uint4*>(entry.remainder + place);
          const uint32_t parts[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
          for (int j = 0; j < 8; ++j) low_bits[j] = static_cast<uint16_t>(parts[j / 2] >> (16 * (j % 2)));
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j) low_bits[j] = j < count ? entry.remainder[place + j] : uint16_t{0};
        }
      }
      uint32_t bits[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float x = rounded[j];
        if (split) {
          const auto low_part = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(low_bits[j])));
          x = __uint_as_float(__float_as_uint(x) + low_part);
        }
        const float gradient = g[j] * clip_factor;
        x *= entry.keep;
        m[j] += table.one_minus_beta1 * (gradient - m[j]);
        v[j] = v[j] * table.beta2 + table.one_minus_beta2 * gradient * gradient;
        x -= table.step_size * (m[j] / (sqrtf(v[j]) / table.root_correction + table.epsilon));
        bits[j] = __float_as_uint(x);
        rounded[j] = split ? __uint_as_float((bits[j] + 0x8000u) & 0xFFFF0000u) : x;
      }
      store_any(entry.m, m, entry.moments_bf16, entry.vector, place, count);
      store_any(entry.v, v, entry.moments_bf16, entry.vector, place, count);
      store_any(entry.weight, rounded, split, entry.vector, place, count);  // exact: already rounded
      if (split) {
        if (entry.vector) {
          uint32_t parts[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) parts[j] = (bits[2 * j] & 0xFFFFu) | bits[2 * j + 1] << 16;
          *reinterpret_cast<uint4*>(entry.remainder + place) =
              make_uint4(parts[0], parts[1], parts[2], parts[3]);
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            if (j < count) entry.remainder[place + j] = static_cast<uint16_t>(bits[j]);
          }
        }
      }
    }
    kept[r] = Pack8<float>::pack(rounded);
    if (!entry.vector) kept[r] = first_of(kept[r], count);
    const uint32_t row_amax = magnitude_bits(kept[r]);
    amax = max(amax, row_amax);
    if (cast.rowwise) {
      if (entry.vector) {
        write_rowwise<true>(cast.rowwise + place, kept[r], row_scale, cast.row_e5m2, 8);
      } else {
        write_rowwise<false>(cast.rowwise + place, kept[r], row_scale, cast.row_e5m2, count);
      }
    }
  }
  if (cast.colwise) {
    ElementTile::stage(words, kept, col_scale, cast.col_e5m2);
    __syncthreads();
    ElementTile::write_transposed(words, cast.colwise, entry.rows, tile_row, [&](int c) -> int64_t {
      return tile_col + c < entry.cols ? tile_col + c : -1;
    });
  }
  if (cast.record) {
    const int64_t tiles = across * ((entry.rows + ElementTile::kRows - 1) / ElementTile::kRows);
    record_amax(amax, cast, static_cast<unsigned int>(tiles));
  }
}

}  // namespace
}  // namespace device

namespace {

// Sums of all tensors of one dtype into `partials`; returns how many partials were written.
template <bool squares>
int64_t launch_sums(CudaBackend& backend, const char* op, std::span<const Tensor> tensors, DType dtype,
                    double* partials) {
  using namespace device;
  int64_t written = 0;
  auto table = std::make_unique<SumTable>();
  table->tensors = 0;
  table->chunks = 0;
  const auto flush = [&] {
    if (table->tensors == 0) return;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(table->chunks, kSumBlocks));
    dispatch_real(op, dtype, [&]<class T>(T) {
      sum_kernel<T, squares><<<blocks, kSumThreads, 0, backend.stream()>>>(*table, partials + written);
    });
    check_launch(op);
    written += blocks;
    table->tensors = 0;
    table->chunks = 0;
  };
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype != dtype || tensor.numel() == 0) continue;
    table->entries[table->tensors++] = {tensor.data, tensor.numel(), table->chunks};
    table->chunks += div_up(tensor.numel(), kChunk);
    if (table->tensors == kTensorsPerLaunch) flush();
  }
  flush();
  return written;
}

template <bool squares>
void sum_all(CudaBackend& backend, const char* op, Tensor result, std::span<const Tensor> tensors,
             float max_norm) {
  for (const Tensor& tensor : tensors) {
    require(tensor.dtype == DType::F32 || tensor.dtype == DType::BF16,
            "[cuda] {}: a tensor is {}, expected fp32 or bf16", op, name_of(tensor.dtype));
  }
  Scratch space = backend.scratch(op);
  const int64_t launches = div_up(static_cast<int64_t>(tensors.size()), device::kTensorsPerLaunch) + 1;
  auto* partials = space.take<double>(2 * launches * device::kSumBlocks);
  int64_t count = launch_sums<squares>(backend, op, tensors, DType::F32, partials);
  count += launch_sums<squares>(backend, op, tensors, DType::BF16, partials + count);
  device::finish_sum_kernel<<<1, device::kSumThreads, 0, backend.stream()>>>(
      static_cast<float*>(result.data), partials, count, squares ? device::Finish::Norm : device::Finish::Sum,
      max_norm);
  check_launch(op);
}

void check_parameter(const AdamWParameter& p) {
  const int64_t count = p.weight.numel();
  const auto real = [](const Tensor& x) { return x.dtype == DType::F32 || x.dtype == DType::BF16; };
  require(real(p.weight) && real(p.gradient) && real(p.m) && p.v.dtype == p.m.dtype,
          "[cuda] adamw: weight {}, gradient {}, m {}, v {}: expected fp32 or bf16", name_of(p.weight.dtype),
          name_of(p.gradient.dtype), name_of(p.m.dtype), name_of(p.v.dtype));
  require(p.gradient.numel() == count && p.m.numel() == count && p.v.numel() == count,
          "[cuda] adamw: gradient {}, m {} or v {} does not fit the weight {}", p.gradient.shape.to_string(),
          p.m.shape.to_string(), p.v.shape.to_string(), p.weight.shape.to_string());
  require(p.weight.dtype == DType::F32 || (p.remainder.dtype == DType::U16 && p.remainder.numel() == count),
          "[cuda] adamw: the remainder is {} {}, expected uint16 {}", name_of(p.remainder.dtype),
          p.remainder.shape.to_string(), p.weight.shape.to_string());
}

Operand weight_operand(const AdamWParameter& p) {
  Operand operand;
  operand.dense = p.weight.reshaped({p.weight.rows(), p.weight.cols()});
  operand.fp8 = p.fp8;
  return operand;
}

}  // namespace

void CudaBackend::sum(Tensor total, Tensor x) {
  sum_all<false>(*this, "sum", total, std::span(&x, 1), 0.0f);
}

void CudaBackend::grad_norm(Tensor result, std::span<const Tensor> gradients, float max_norm) {
  sum_all<true>(*this, "grad_norm", result, gradients, max_norm);
}

void CudaBackend::adamw(std::span<const AdamWParameter> parameters, Tensor clip,
                        const AdamWOptions& options) {
  using namespace device;
  constexpr const char* op = "adamw";
  require(options.step >= 1, "[cuda] {}: the step is {}, expected 1 or more", op, options.step);
  const auto steps = static_cast<double>(options.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(options.beta1), steps);
  const double correction2 = 1.0 - std::pow(static_cast<double>(options.beta2), steps);
  auto table = std::make_unique<AdamTable>();
  table->beta1 = options.beta1;
  table->beta2 = options.beta2;
  table->one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(options.beta1));
  table->one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(options.beta2));
  table->step_size = static_cast<float>(static_cast<double>(options.learning_rate) / correction1);
  table->root_correction = static_cast<float>(std::sqrt(correction2));
  table->epsilon = options.epsilon;
  table->parameters = 0;
  int64_t tiles = 0;
  const auto flush = [&] {
    if (table->parameters == 0) return;
    adamw_kernel<<<narrow<unsigned>(tiles), ElementTile::kThreads, 0, stream()>>>(
        *table, static_cast<const float*>(clip.data));
    check_launch(op);
    table->parameters = 0;
    tiles = 0;
  };
  const auto fused = [](const AdamWParameter& p) {
    return p.fp8 && p.fp8->rule.granularity == Granularity::Tensor && p.fp8->rule.delayed;
  };
  for (const AdamWParameter& p : parameters) {
    check_parameter(p);
    if (p.weight.numel() == 0) continue;
    AdamEntry entry{};
    entry.weight = p.weight.data;
    entry.remainder = p.weight.dtype == DType::BF16 ? static_cast<uint16_t*>(p.remainder.data) : nullptr;
    entry.gradient = p.gradient.data;
    entry.m = p.m.data;
    entry.v = p.v.data;
    entry.rows = p.weight.rows();
    entry.cols = p.weight.cols();
    entry.first_tile = tiles;
    entry.keep = 1.0f - options.learning_rate * p.weight_decay;
    entry.gradient_bf16 = p.gradient.dtype == DType::BF16;
    entry.moments_bf16 = p.m.dtype == DType::BF16;
    if (fused(p)) {
      check_operand(weight_operand(p), op);
      entry.cast = cast_target(*p.fp8);
      entry.cast.record = true;
      require(!entry.cast.colwise || entry.rows % 16 != 0 || aligned16(entry.cast.colwise),
              "[cuda] {}: the transposed FP8 copy is not 16-byte aligned", op);
    }
    entry.vector = entry.cols % 8 == 0 && aligned16(entry.weight) && aligned16(entry.remainder) &&
                   aligned16(entry.gradient) && aligned16(entry.m) && aligned16(entry.v) &&
                   reinterpret_cast<uintptr_t>(entry.cast.rowwise) % 8 == 0;
    table->entries[table->parameters++] = entry;
    tiles += div_up(entry.rows, ElementTile::kRows) * div_up(entry.cols, ElementTile::kCols);
    if (table->parameters == kParametersPerLaunch) flush();
  }
  flush();
  for (const AdamWParameter& p : parameters) {
    if (!p.fp8) continue;
    if (!fused(p)) {
      quantize(weight_operand(p));
    } else if (p.fp8->stats) {
      record_stats(weight_operand(p));
    }
  }
}

}  // namespace octet
