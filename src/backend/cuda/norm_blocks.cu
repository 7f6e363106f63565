#include "backend/cuda/norm.cuh"

// Blocks of the colwise copy need 128 rows at once, more than a block of the norm kernels has. Those find the statistics
// of all rows and store nothing else; then the result is computed tile by tile. That reads the input once more, but saves
// writing and reading the dense result.

namespace octet::device {
namespace {

template <bool layer_norm>
struct NormOp {
  using Type = Bf16;
  static constexpr int kOutputs = 1;
  static constexpr int kAhead = 2;
  static constexpr bool kCopies = false;
  static constexpr bool kBlocks = true;
  static constexpr bool kSums = false;
  struct Raw {
    Pack8<Bf16> x;
    float mean, inv;
  };
  const Bf16* x;
  const float* mean;
  const float* inv;
  const Bf16* gain;
  const Bf16* bias;
  int width;
  // For the columns at the op's position.
  Pack8<Bf16> gains, biases;

  __device__ NormOp at(int64_t row, int64_t col) const {
    NormOp op = *this;
    op.x += row * width + col;
    op.mean += row;
    op.inv += row;
    if (col >= width) return op;
    op.gains = Pack8<Bf16>::load(gain + col);
    op.biases = layer_norm && bias ? Pack8<Bf16>::load(bias + col) : Pack8<Bf16>::zero();
    return op;
  }
  template <bool vector>
  __device__ Raw load(int line, int64_t) const {
    return {Pack8<Bf16>::load(x + line * width), layer_norm ? mean[line] : 0.0f, inv[line]};
  }
  __device__ void compute(const Raw& raw, float (&out)[1][8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float centred = layer_norm ? raw.x.at(j) - raw.mean : raw.x.at(j);
      out[0][j] = normed_value<layer_norm>(centred, raw.inv, gains.at(j), layer_norm ? biases.at(j) : 0.0f);
    }
  }
  __device__ int64_t column(int64_t col, int) const {
    return col;
  }
};

}  // namespace

bool fuse_norm_blocks(OperandPlan<Bf16>& plan, const Operand& y, bool vector) {
  fuse_blocks<NormOp<true>>(plan, y, vector, y.dense.cols());
  return plan.blocks.slot != nullptr;
}

void launch_norm_blocks(CudaOps& ops, NormKind kind, const NormForwardArgs<Bf16>& args,
                        const BlockTarget& blocks, Bf16* dense) {
  const TileOutput<Bf16> out{
      .rows = args.rows, .cols = args.width, .width = args.width, .dense = dense, .blocks = blocks};
  const auto launch = [&]<bool layer_norm>() {
    const NormOp<layer_norm> op{.x = args.delta ? args.residual : args.x,
                                .mean = args.mean,
                                .inv = args.inv,
                                .gain = args.gain,
                                .bias = args.bias,
                                .width = narrow<int>(args.width)};
    launch_block_tiles(ops, "norm_forward", op, out);
  };
  kind == NormKind::LayerNorm ? launch.template operator()<true>() : launch.template operator()<false>();
}

}  // namespace octet::device
