#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

struct PartialTable {
  struct Entry {
    void* sum;
    const float* partials;
    bool bf16;
  };
  Entry entries[3];
};

// 32 columns x 32 shares of the partials. Then a warp adds the shares per column, in fixed order.
constexpr int kPartialShares = 32;
__global__ void add_partials_kernel(const __grid_constant__ PartialTable table, int64_t count,
                                    int64_t width) {
  __shared__ float shares[kPartialShares][33];
  const PartialTable::Entry& entry = table.entries[blockIdx.y];
  const int64_t column = blockIdx.x * 32ll + threadIdx.x;
  float total = 0.0f;
  if (column < width) {
#pragma unroll 4
    for (int64_t i = threadIdx.y; i < count; i += kPartialShares) total += entry.partials[i * width + column];
  }
  shares[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  total = warp_sum(shares[threadIdx.x][threadIdx.y]);
  const int64_t own = blockIdx.x * 32ll + threadIdx.y;
  if (threadIdx.x != 0 || own >= width) return;
  const auto add = [&](auto* sum) {
    using G = std::remove_reference_t<decltype(*sum)>;
    sum[own] = from_float<G>(to_float(sum[own]) + total);
  };
  entry.bf16 ? add(static_cast<Bf16*>(entry.sum)) : add(static_cast<float*>(entry.sum));
}

// One warp per slot.
__global__ void update_scales_kernel(ScaleSlot* slots, float* histories, const uint8_t* formats,
                                     int64_t count, int64_t length, int margin, bool most_recent, bool due,
                                     const float* norm) {
  const int64_t index = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (index >= count) return;
  ScaleSlot* slot = slots + index;
  if (norm && !isfinite(*norm)) {
    if (lane == 0) slot->amax = 0.0f;
    return;
  }
  if (!due) return;
  float* history = histories + index * length;
  const float seen = slot->amax;
  __syncwarp();
  if (seen > 0.0f && seen <= 3.402823466e+38f) {
    // From the oldest on, so that nothing is overwritten before it is read.
    for (int64_t base = (length - 1) / 32 * 32; base >= 0; base -= 32) {
      const int64_t i = base + lane;
      const float value = i == 0 ? seen : i < length ? history[i - 1] : 0.0f;
      __syncwarp();
      if (i < length) history[i] = value;
      __syncwarp();
    }
  }
  float amax = 0.0f;
  for (int64_t i = lane; i < (most_recent ? 1 : length); i += 32) amax = fmaxf(amax, history[i]);
  for (int offset = 16; offset > 0; offset /= 2)
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, offset));
  if (lane != 0) return;
  slot->amax = 0.0f;
  CastTarget target;
  target.row_e5m2 = formats[2 * index] == static_cast<uint8_t>(DType::E5M2);
  target.col_e5m2 = formats[2 * index + 1] == static_cast<uint8_t>(DType::E5M2);
  target.margin = margin;
  set_scales(slot, target, amax);
}

}  // namespace
}  // namespace device

void add_partials(CudaOps& ops, std::initializer_list<PartialSum> sums, int64_t count, int64_t width,
                  const char* op) {
  device::PartialTable table{};
  unsigned present = 0;
  for (const PartialSum& sum : sums) {
    if (!sum.partials) continue;
    require(present < std::size(table.entries), "[cuda] {}: too many sums over partials", op);
    dispatch_real(op, sum.sum.dtype, [&]<class G>(G) {
      table.entries[present++] = {sum.sum.data, sum.partials, sizeof(G) == 2};
    });
  }
  if (present == 0) return;
  const dim3 grid(narrow<unsigned>(div_up(width, 32)), present), block(32, device::kPartialShares);
  device::add_partials_kernel<<<grid, block, 0, ops.stream()>>>(table, count, width);
  check_launch(op);
}

void check_operand(const Operand& operand, const char* op) {
  if (!operand.fp8) return;
  const Quantized& fp8 = *operand.fp8;
  const int64_t rows = operand.dense.rows(), cols = operand.dense.cols();
  require(fp8.slot != nullptr, "[cuda] {}: an FP8 operand has no scale slot", op);
  const auto check = [&](const QuantizedMatrix& copy, DType format, int64_t copy_rows, int64_t depth) {
    if (!copy) return;
    require(is_fp8(format) && copy.codes.dtype == format, "[cuda] {}: the codes are {}, the rule says {}", op,
            name_of(copy.codes.dtype), name_of(format));
    require(copy.codes.rows() == copy_rows && copy.codes.cols() == depth,
            "[cuda] {}: the codes are {}, expected ({}, {})", op, copy.codes.shape.to_string(), copy_rows,
            depth);
    require(copy.granularity == fp8.rule().granularity,
            "[cuda] {}: the copy and the rule differ in granularity", op);
    if (copy.granularity == Granularity::Tensor) return;
    const int64_t scale_rows = copy.granularity == Granularity::Block128 ? div_up(copy_rows, 128) : copy_rows;
    const int64_t scale_cols = div_up(depth, block_depth(copy.granularity));
    const DType type = copy.granularity == Granularity::Row32 ? DType::E8M0 : DType::F32;
    require(copy.scales && copy.scales.dtype == type && copy.scales.numel() == scale_rows * scale_cols,
            "[cuda] {}: the scales are {} {}, expected {} ({}, {})", op, name_of(copy.scales.dtype),
            copy.scales.shape.to_string(), name_of(type), scale_rows, scale_cols);
  };
  check(fp8.rowwise, fp8.rule().format_rowwise, rows, cols);
  check(fp8.colwise, fp8.rule().format_colwise, cols, rows);
}

namespace {

// One pass over the dense form that writes what `cast` says.
void cast_pass(CudaOps& ops, const Operand& operand, const device::CastTarget& cast, Tensor column_sum) {
  dispatch_real("quantize", operand.dense.dtype, [&]<class T>(T) {
    const int64_t rows = operand.dense.rows(), cols = operand.dense.cols();
    const device::CastOp<T> op{static_cast<const T*>(operand.dense.data), narrow<int>(cols)};
    device::TileOutput<T> out{.rows = rows, .cols = cols, .width = cols, .cast = cast};
    launch_tiles(ops, "quantize", op, out, cols % 8 == 0 && aligned16(operand.dense.data), column_sum);
  });
}

}  // namespace

void CudaOps::cast_copies(const Operand& operand) {
  const OpScope scope(profiler_, OpKind::Quantize, "cast", bytes_of(operand));
  cast_pass(*this, operand, cast_target(*operand.fp8), {});
}

void CudaOps::quantize(const Operand& operand) {
  require(operand.fp8 != nullptr, "[cuda] quantize: the operand has no FP8 form");
  check_operand(operand, "quantize");
  const Quantized& fp8 = *operand.fp8;
  const OpScope scope(profiler_, OpKind::Quantize, "quantize",
                      bytes_of(operand.dense, fp8.rowwise.codes, fp8.colwise.codes));
  if (operand.dense.numel() == 0) {
    // The largest of nothing. A rank without a share of the matrix must not look as if it had one.
    cuda_check(cudaMemsetAsync(&fp8.slot->amax_last, 0, sizeof(float), stream()), "quantize");
    return;
  }
  if (fp8.rule().granularity != Granularity::Tensor) {
    quantize_blocks(operand, operand.column_sum);
  } else if (fp8.keeps_scale()) {
    device::CastTarget cast = cast_target(fp8);
    cast.record = true;
    cast_pass(*this, operand, cast, operand.column_sum);
  } else {
    device::CastTarget measure = cast_target(fp8);
    measure.rowwise = measure.colwise = nullptr;
    measure.record = measure.set_scale = true;
    cast_pass(*this, operand, measure, operand.column_sum);
    cast_copies(operand);
  }
  if (fp8.stats()) record_stats(operand);
}

void CudaOps::update_delayed_scales(const DelayedScaling& state) {
  if (state.count == 0) return;
  const OpScope scope(profiler_, OpKind::Quantize, "update_delayed_scales");
  const int64_t length = state.history.cols();
  require(state.history.rows() == state.count && length > 0 && state.formats.numel() == 2 * state.count &&
              state.slots.bytes() >= state.count * static_cast<int64_t>(sizeof(ScaleSlot)),
          "[cuda] update_delayed_scales: {} slots with a history {} and {} formats", state.count,
          state.history.shape.to_string(), state.formats.numel());
  device::update_scales_kernel<<<narrow<unsigned>(div_up(state.count, 4)), 128, 0, stream()>>>(
      static_cast<ScaleSlot*>(state.slots.data), static_cast<float*>(state.history.data),
      static_cast<const uint8_t*>(state.formats.data), state.count, length, state.margin, state.most_recent,
      state.due, static_cast<const float*>(state.norm.data));
  check_launch("update_delayed_scales");
}

}  // namespace octet
