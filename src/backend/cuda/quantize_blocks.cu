#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {

void CudaOps::quantize_blocks(const Operand& operand, Tensor column_sum) {
  constexpr const char* op = "quantize_blocks";
  const OpScope scope(profiler_, OpKind::Quantize, op, bytes_of(operand));
  const Tensor& dense = operand.dense;
  const bool square = operand.fp8->rule().granularity == Granularity::Block128;
  dispatch_real("quantize", dense.dtype, [&]<class T>(T) {
    using Cast = device::CastOp<T>;
    const Cast cast{static_cast<const T*>(dense.data), narrow<int>(dense.cols())};
    const device::TileOutput<T> output{.rows = dense.rows(),
                                       .cols = dense.cols(),
                                       .width = dense.cols(),
                                       .blocks = block_target(*operand.fp8)};
    launch_over_tiles<true, true>(
        *this, op, output, dense.cols() % 8 == 0 && aligned16(dense.data), column_sum, nullptr,
        [&]<bool vector, bool sums>(dim3 grid, const auto& out) {
          const auto kernel = square ? device::block_tile_kernel<Cast, vector, sums, true>
                                     : device::block_tile_kernel<Cast, vector, sums, false>;
          kernel<<<grid, device::CodeTile::kThreads, 0, stream()>>>(cast, out);
        });
  });
}

}  // namespace octet
