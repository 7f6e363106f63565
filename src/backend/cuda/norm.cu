#include "backend/cuda/norm.cuh"

namespace octet {
namespace device {
namespace {

// Norms of any type and width (norm_strip.cu has bf16 rows of usual widths). A block takes a group of whole rows. First
// each warp takes rows and finds their statistics; then the block goes over the group again tile by tile, now from L2,
// and writes the result in all its forms. Few rows are in flight at a time, so the second read rarely goes to DRAM.
// Blocks walk over groups, so that they can keep sums over rows.
constexpr int kNormThreads = 512;
constexpr int kNormWarps = kNormThreads / 32;
constexpr int kNormRows = 16;  // of a group
using NormTile = Tile<kNormRows, kNormThreads>;
static_assert(NormTile::kWarpRows == 1);  // each thread has its own columns

template <class T, bool layer_norm, bool vector>
__global__ void __launch_bounds__(kNormThreads, 2) norm_forward_kernel(const NormForwardArgs<T> args) {
  __shared__ alignas(16) uint32_t words[NormTile::kWords];
  __shared__ float means[kNormRows], invs[kNormRows];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t width = args.width;
  const CastTarget& cast = args.cast;
  const float row_scale = cast.rowwise ? cast.slot->scale_rowwise : 1.0f;
  const float col_scale = cast.colwise ? cast.slot->scale_colwise : 1.0f;
  const int64_t groups = (args.rows + kNormRows - 1) / kNormRows;
  // Not __restrict__ and not const: it may be x itself, and it is read back by other threads of the block.
  T* source = args.delta ? args.residual : const_cast<T*>(args.x);
  uint32_t amax = 0;

  for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const int64_t row0 = group * kNormRows;
    for (int r = warp; r < kNormRows && row0 + r < args.rows; r += kNormWarps) {
      const int64_t line = (row0 + r) * width;
      float sum = 0.0f;  // of the values for LayerNorm, of their squares for RmsNorm
      // Several loads are in flight before the first store. The compiler may not move loads over the store, because
      // the residual may be x itself.
      constexpr int kBatch = 2;
      for (int64_t begin = 8 * lane; begin < width; begin += kBatch * 256) {
        Pack8<T> packs[kBatch], added[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int64_t c = begin + 256 * b;
          if (c >= width) continue;
          packs[b] = load8<vector>(args.x + line + c, width - c);
          if (args.delta) added[b] = load8<vector>(args.delta + line + c, width - c);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int64_t c = begin + 256 * b;
          if (c >= width) continue;
          float v[8];
          packs[b].unpack(v);
          if (args.delta) {
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] += added[b].at(j);
            packs[b] = Pack8<T>::pack(v);
            store8<vector>(args.residual + line + c, packs[b], width - c);
            packs[b].unpack(v);
          }
#pragma unroll
          for (int j = 0; j < 8; ++j) sum += layer_norm ? v[j] : v[j] * v[j];
        }
      }
      sum = warp_sum(sum) / static_cast<float>(width);
      float variance = sum;
      if constexpr (layer_norm) {
        float squares = 0.0f;
        for (int64_t c = 8 * lane; c < width; c += 256) {
          const Pack8<T> pack = load8<vector>(source + line + c, width - c);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float d = pack.at(j) - sum;
            if (vector || c + j < width) squares += d * d;
          }
        }
        variance = warp_sum(squares) / static_cast<float>(width);
      }
      if (lane == 0) {
        const float inv = 1.0f / sqrtf(variance + args.epsilon);
        means[r] = layer_norm ? sum : 0.0f;
        invs[r] = inv;
        args.inv[row0 + r] = inv;
        if constexpr (layer_norm) args.mean[row0 + r] = sum;
      }
    }
    __syncthreads();

    for (int64_t tile_col = 0; tile_col < width; tile_col += NormTile::kCols) {
      const int64_t col = tile_col + NormTile::col();
      const int64_t count = width - col;
      const int first = NormTile::row();
      Pack8<T> kept[4];
      uint32_t tile_amax = 0;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        kept[r] = Pack8<T>::zero();
        if (count > 0 && row0 + first + r < args.rows) {
          kept[r] = load8<vector>(source + (row0 + first + r) * width + col, count);
        }
      }
      float gain[8] = {}, bias[8] = {};
      if (count > 0) {
        load8<vector>(args.gain + col, count).unpack(gain);
        if (args.bias) load8<vector>(args.bias + col, count).unpack(bias);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int64_t row = row0 + first + r;
        if (count <= 0 || row >= args.rows) continue;
        const float mean = means[first + r], inv = invs[first + r];
        float v[8];
        kept[r].unpack(v);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          v[j] = normed_value<layer_norm>(layer_norm ? v[j] - mean : v[j], inv, gain[j], bias[j]);
        }
        kept[r] = Pack8<T>::pack(v);
        if constexpr (!vector) kept[r] = first_of(kept[r], count);
        tile_amax = max(tile_amax, magnitude_bits(kept[r]));
        if (args.y) store8<vector>(args.y + row * width + col, kept[r], count);
        if (cast.rowwise) {
          store_codes<vector>(cast.rowwise + row * width + col, encode8(kept[r], row_scale, cast.row_e5m2),
                              count);
        }
      }
      amax = max(amax, tile_amax);
      if (cast.colwise) {
        NormTile::stage(words, kept, col_scale, cast.col_e5m2);
        __syncthreads();
        NormTile::write_transposed(words, cast.colwise, args.rows, row0, [&](int c) -> int64_t {
          return tile_col + c < width ? tile_col + c : -1;
        });
        __syncthreads();
      }
    }
    __syncthreads();  // means and invs are overwritten for the next group
  }
  if (cast.record) record_amax(amax, cast, gridDim.x * gridDim.y);
}

template <class T, bool layer_norm, bool vector>
__global__ void __launch_bounds__(kNormThreads, 2) norm_backward_kernel(const NormBackwardArgs<T> args) {
  __shared__ alignas(16) uint32_t words[NormTile::kWords];
  __shared__ float means[kNormRows], invs[kNormRows], mean_g[kNormRows], mean_gx[kNormRows];
  // (sums wanted, padded width): each place has one owner, so the order of additions is fixed.
  extern __shared__ __align__(16) float accumulators[];
  const int64_t width = args.width;
  const int padded = static_cast<int>((width + 7) / 8 * 8);
  const int gain_plane = 0;
  const int bias_plane = args.gain_sums ? 1 : 0;
  const int column_plane = bias_plane + (args.bias_sums ? 1 : 0);
  const int planes = column_plane + (args.column_sums ? 1 : 0);
  for (int i = static_cast<int>(threadIdx.x); i < planes * padded; i += kNormThreads) accumulators[i] = 0.0f;

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const CastTarget& cast = args.cast;
  const float row_scale = cast.rowwise ? cast.slot->scale_rowwise : 1.0f;
  const float col_scale = cast.colwise ? cast.slot->scale_colwise : 1.0f;
  const int64_t groups = (args.rows + kNormRows - 1) / kNormRows;
  uint32_t amax = 0;
  __syncthreads();

  for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const int64_t row0 = group * kNormRows;
    for (int r = warp; r < kNormRows && row0 + r < args.rows; r += kNormWarps) {
      const int64_t line = (row0 + r) * width;
      const float inv = args.inv[row0 + r], mean = layer_norm ? args.mean[row0 + r] : 0.0f;
      float sum_g = 0.0f, sum_gx = 0.0f;
#pragma unroll 2
      for (int64_t c = 8 * lane; c < width; c += 256) {
        const Pack8<T> dy = load8<vector>(args.dy + line + c, width - c);
        const Pack8<T> x = load8<vector>(args.residual + line + c, width - c);
        const Pack8<T> gain = load8<vector>(args.gain + c, width - c);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float g = dy.at(j) * gain.at(j);  // zero beyond the row's end
          if (layer_norm) sum_g += g;
          sum_gx += g * ((x.at(j) - mean) * inv);
        }
      }
      if (layer_norm) sum_g = warp_sum(sum_g);
      sum_gx = warp_sum(sum_gx);
      if (lane == 0) {
        means[r] = mean;
        invs[r] = inv;
        mean_g[r] = sum_g / static_cast<float>(width);
        mean_gx[r] = sum_gx / static_cast<float>(width);
      }
    }
    __syncthreads();

    for (int64_t tile_col = 0; tile_col < width; tile_col += NormTile::kCols) {
      const int64_t col = tile_col + NormTile::col();
      const int64_t count = width - col;
      const int first = NormTile::row();
      float gain[8] = {};
      if (count > 0) load8<vector>(args.gain + col, count).unpack(gain);
      float dgain[8] = {}, dbias[8] = {};
      Pack8<T> kept[4];
      uint32_t tile_amax = 0;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int64_t row = row0 + first + r;
        kept[r] = Pack8<T>::zero();
        if (count <= 0 || row >= args.rows) continue;
        const int64_t place = row * width + col;
        const Pack8<T> before = load8<vector>(args.dresidual + place, count);
        const Pack8<T> dys = load8<vector>(args.dy + place, count);
        const Pack8<T> xs = load8<vector>(args.residual + place, count);
        const float mean = means[first + r], inv = invs[first + r];
        float v[8];
        before.unpack(v);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float normed = (layer_norm ? xs.at(j) - mean : xs.at(j)) * inv;
          const float dy = dys.at(j);
          dgain[j] += dy * normed;
          if (layer_norm) dbias[j] += dy;
          v[j] +=
              inv * (dy * gain[j] - (layer_norm ? mean_g[first + r] : 0.0f) - normed * mean_gx[first + r]);
        }
        kept[r] = Pack8<T>::pack(v);
        if constexpr (!vector) kept[r] = first_of(kept[r], count);
        const uint32_t row_amax = magnitude_bits(kept[r]);
        tile_amax = max(tile_amax, row_amax);
        if (args.store) store8<vector>(args.dresidual + place, kept[r], count);
        if (cast.rowwise) {
          store_codes<vector>(cast.rowwise + place, encode8(kept[r], row_scale, cast.row_e5m2), count);
        }
      }
      amax = max(amax, tile_amax);
      const auto accumulate = [&](float(&x)[8], int index) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          x[j] += __shfl_xor_sync(0xFFFFFFFFu, x[j], 8);
          x[j] += __shfl_xor_sync(0xFFFFFFFFu, x[j], 16);
        }
        if (lane >= 8 || count <= 0) return;
        float* place = accumulators + index * padded + static_cast<int>(col);
#pragma unroll
        for (int j = 0; j < 8; ++j) place[j] += x[j];
      };
      if (args.gain_sums) accumulate(dgain, gain_plane);
      if (layer_norm && args.bias_sums) accumulate(dbias, bias_plane);
      if (args.column_sums) {
        float sums[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[j] = kept[0].at(j) + kept[1].at(j) + kept[2].at(j) + kept[3].at(j);
        accumulate(sums, column_plane);
      }
      if (cast.colwise) {
        NormTile::stage(words, kept, col_scale, cast.col_e5m2);
        __syncthreads();
        NormTile::write_transposed(words, cast.colwise, args.rows, row0, [&](int c) -> int64_t {
          return tile_col + c < width ? tile_col + c : -1;
        });
        __syncthreads();
      }
    }
    __syncthreads();
  }
  const auto write = [&](float* output, int index) {
    for (int c = static_cast<int>(threadIdx.x); c < width; c += kNormThreads) {
      output[blockIdx.x * width + c] = accumulators[index * padded + c];
    }
  };
  if (args.gain_sums) write(args.gain_sums, gain_plane);
  if (args.bias_sums) write(args.bias_sums, bias_plane);
  if (args.column_sums) write(args.column_sums, column_plane);
  if (cast.record) record_amax(amax, cast, gridDim.x * gridDim.y);
}

}  // namespace
}  // namespace device

namespace {

// Calls fn<layer_norm, vector>().
template <class Function>
void dispatch_norm(NormKind kind, bool vector, const Function& fn) {
  if (kind == NormKind::LayerNorm) {
    vector ? fn.template operator()<true, true>() : fn.template operator()<true, false>();
  } else {
    vector ? fn.template operator()<false, true>() : fn.template operator()<false, false>();
  }
}

void check_norm(const char* op, NormKind kind, const Tensor& x, const Tensor& y, const Tensor& gain,
                const Tensor& mean, const Tensor& inv) {
  require(y.rows() == x.rows() && y.cols() == x.cols() && y.dtype == x.dtype,
          "[cuda] {}: shapes {} and {} differ", op, x.shape.to_string(), y.shape.to_string());
  require(gain.numel() == x.cols() && gain.dtype == x.dtype,
          "[cuda] {}: the gain is {} {}, expected {} elements of {}", op, name_of(gain.dtype),
          gain.shape.to_string(), x.cols(), name_of(x.dtype));
  require(inv.numel() == x.rows() && (kind == NormKind::RmsNorm || mean.numel() == x.rows()),
          "[cuda] {}: mean and inv do not have {} elements", op, x.rows());
}

bool vectors_fit(int64_t width, std::initializer_list<const void*> pointers, const device::CastTarget& cast) {
  bool fit = width % 8 == 0 && reinterpret_cast<uintptr_t>(cast.rowwise) % 8 == 0;
  for (const void* pointer : pointers) fit = fit && aligned16(pointer);
  return fit;
}

unsigned general_blocks(int64_t rows, int multiprocessors) {
  return narrow<unsigned>(std::min<int64_t>(div_up(rows, device::kNormRows), 2 * multiprocessors));
}

void check_colwise(const char* op, const device::CastTarget& cast, int64_t rows) {
  require(!cast.colwise || rows % 16 != 0 || aligned16(cast.colwise),
          "[cuda] {}: the transposed FP8 copy is not 16-byte aligned", op);
}

}  // namespace

void CudaOps::norm_forward(NormKind kind, const Operand& y, Tensor residual, Tensor mean, Tensor inv,
                           Tensor x, Tensor delta, Tensor gain, Tensor bias, float epsilon) {
  constexpr const char* op = "norm_forward";
  const OpScope scope(profiler_, OpKind::Norm, op, bytes_of(y, x) + (delta ? bytes_of(delta, residual) : 0));
  check_norm(op, kind, x, y.dense, gain, mean, inv);
  if (delta) {
    require(delta.numel() == x.numel() && residual.numel() == x.numel() && delta.dtype == x.dtype &&
                residual.dtype == x.dtype,
            "[cuda] {}: x {}, delta {} and residual {} differ", op, x.shape.to_string(),
            delta.shape.to_string(), residual.shape.to_string());
  }
  require(!bias || (bias.numel() == x.cols() && bias.dtype == x.dtype),
          "[cuda] {}: the bias is {}, expected {}", op, bias.shape.to_string(), x.cols());
  if (x.numel() == 0) return;
  dispatch_real(op, x.dtype, [&]<class T>(T) {
    auto plan = plan_operand<T>(y, op);
    if (y.column_sum) plan.dense = static_cast<T*>(y.dense.data);  // not used in practice: summed afterwards
    check_colwise(op, plan.cast, x.rows());
    T* dense = plan.dense;
    if constexpr (sizeof(T) == 2) {
      const bool aligned = vectors_fit(
          x.cols(), {x.data, delta.data, delta ? residual.data : nullptr, gain.data, bias.data}, plan.cast);
      if (device::fuse_norm_blocks(plan, y, aligned)) dense = nullptr;
    }
    const device::NormForwardArgs<T> args{.rows = x.rows(),
                                          .width = x.cols(),
                                          .x = static_cast<const T*>(x.data),
                                          .delta = static_cast<const T*>(delta.data),
                                          .residual = static_cast<T*>(residual.data),
                                          .gain = static_cast<const T*>(gain.data),
                                          .bias = static_cast<const T*>(bias.data),
                                          .mean = static_cast<float*>(mean.data),
                                          .inv = static_cast<float*>(inv.data),
                                          .epsilon = epsilon,
                                          .y = dense,
                                          .cast = plan.cast};
    const bool vector = vectors_fit(
        args.width, {x.data, delta.data, delta ? residual.data : nullptr, gain.data, bias.data, dense},
        plan.cast);
    const auto general = [&] {
      dispatch_norm(kind, vector, [&]<bool layer_norm, bool with_vectors>() {
        device::norm_forward_kernel<T, layer_norm, with_vectors>
            <<<general_blocks(args.rows, sm_count()), device::kNormThreads, 0, stream()>>>(args);
      });
    };
    if constexpr (sizeof(T) == 2) {
      const auto strips = vector ? device::plan_forward_strips(*this, kind, args) : std::nullopt;
      strips ? device::launch_forward_strips(*this, kind, args, *strips) : general();
    } else {
      general();
    }
    check_launch(op);
    if constexpr (sizeof(T) == 2) {
      if (plan.blocks.slot) {
        T* kept = plan.dense || y.column_sum ? static_cast<T*>(y.dense.data) : nullptr;
        device::launch_norm_blocks(*this, kind, args, plan.blocks, kept);
      }
    }
    if (y.column_sum) add_column_sum(y.column_sum, y.dense, {}, 1.0f);
    finish_operand(y, plan);
  });
}

void CudaOps::norm_backward(NormKind kind, const Operand& dresidual, Tensor dgain, Tensor dbias, Tensor dy,
                            Tensor residual, Tensor mean, Tensor inv, Tensor gain) {
  constexpr const char* op = "norm_backward";
  const OpScope scope(profiler_, OpKind::Norm, op, bytes_of(dresidual, dresidual.dense, dy, residual));
  check_norm(op, kind, residual, dresidual.dense, gain, mean, inv);
  require(dy.numel() == residual.numel() && dy.dtype == residual.dtype,
          "[cuda] {}: dy is {}, the residual {}", op, dy.shape.to_string(), residual.shape.to_string());
  const int64_t rows = residual.rows(), width = residual.cols();
  require((!dgain || dgain.numel() == width) && (!dbias || dbias.numel() == width) &&
              (!dresidual.column_sum || dresidual.column_sum.numel() == width),
          "[cuda] {}: dgain, dbias or column_sum does not have {} elements", op, width);
  if (rows == 0 || width == 0) return;
  const bool layer_norm = kind == NormKind::LayerNorm;
  dispatch_real(op, residual.dtype, [&]<class T>(T) {
    const auto plan = plan_operand<T>(dresidual, op);
    check_colwise(op, plan.cast, rows);
    const bool vector =
        vectors_fit(width, {dresidual.dense.data, dy.data, residual.data, gain.data}, plan.cast);
    std::optional<device::StripLaunch> strips;
    if (sizeof(T) == 2 && vector) {
      strips = device::plan_backward_strips(*this, kind, rows, width, plan.cast.colwise != nullptr);
    }
    const unsigned blocks = strips ? strips->blocks : general_blocks(rows, sm_count());
    Scratch space = scratch(op);
    const auto sums = [&](bool wanted) { return wanted ? space.take<float>(blocks * width) : nullptr; };
    const device::NormBackwardArgs<T> args{.rows = rows,
                                           .width = width,
                                           .dresidual = static_cast<T*>(dresidual.dense.data),
                                           .store = plan.dense != nullptr,
                                           .dy = static_cast<const T*>(dy.data),
                                           .residual = static_cast<const T*>(residual.data),
                                           .gain = static_cast<const T*>(gain.data),
                                           .mean = static_cast<const float*>(mean.data),
                                           .inv = static_cast<const float*>(inv.data),
                                           .gain_sums = sums(static_cast<bool>(dgain)),
                                           .bias_sums = sums(layer_norm && dbias),
                                           .column_sums = sums(static_cast<bool>(dresidual.column_sum)),
                                           .cast = plan.cast};
    const auto general = [&] {
      const int planes = (args.gain_sums ? 1 : 0) + (args.bias_sums ? 1 : 0) + (args.column_sums ? 1 : 0);
      const auto shared = static_cast<size_t>(planes * round_up(width, 8)) * sizeof(float);
      dispatch_norm(kind, vector, [&]<bool is_layer_norm, bool with_vectors>() {
        const auto kernel = device::norm_backward_kernel<T, is_layer_norm, with_vectors>;
        const int limit = device::allow_all_shared(reinterpret_cast<const void*>(kernel), op);
        require(std::cmp_less_equal(shared, limit),
                "[cuda] {}: rows of {} need {} bytes of shared memory, more than the {} of a block", op,
                width, shared, limit);
        kernel<<<blocks, device::kNormThreads, shared, stream()>>>(args);
      });
    };
    if constexpr (sizeof(T) == 2) {
      strips ? device::launch_backward_strips(*this, kind, args, *strips) : general();
    } else {
      general();
    }
    check_launch(op);
    add_partials(*this,
                 {{dgain, args.gain_sums}, {dbias, args.bias_sums}, {dresidual.column_sum, args.column_sums}},
                 blocks, width, op);
    finish_operand(dresidual, plan);
  });
}

}  // namespace octet
