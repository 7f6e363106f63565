#include "backend/cpu/optimizer.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "ops/remainder.h"
#include "ops/stochastic.h"

namespace octet {

using cpu::load;
using cpu::Scratch;
using cpu::store;

namespace {

constexpr int64_t kMinChunk = 1 << 14;
constexpr int64_t kMaxChunks = 4096;

// The elements of many tensors, cut into chunks whose size depends only on the number of elements. No chunk crosses
// from one tensor to the next.
class TensorChunks {
 public:
  template <class SizeOf>
  TensorChunks(Scratch& scratch, int64_t tensors, const SizeOf& size_of) : tensors_(tensors) {
    int64_t total = 0;
    for (int64_t i = 0; i < tensors; ++i) total += size_of(i);
    size_ = std::max(kMinChunk, div_up(total, kMaxChunks));
    before_ = scratch.take<int64_t>(tensors + 1);
    before_[0] = 0;
    for (int64_t i = 0; i < tensors; ++i) before_[i + 1] = before_[i] + div_up(size_of(i), size_);
  }

  int64_t count() const { return before_[tensors_]; }
  int64_t size() const { return size_; }
  struct Place {
    int64_t tensor, begin;
  };
  Place place(int64_t chunk) const {
    const int64_t tensor = std::upper_bound(before_, before_ + tensors_ + 1, chunk) - before_ - 1;
    return {tensor, (chunk - before_[tensor]) * size_};
  }

 private:
  int64_t tensors_;
  int64_t size_ = 0;
  int64_t* before_ = nullptr;
};

// In double and in 8 lanes, so that neither large nor tiny values get lost.
template <class T, class Function>
double double_sum(const T* x, int64_t count, const Function& f) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(static_cast<double>(load(x[i + lane])));
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += f(static_cast<double>(load(x[i])));
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

struct Update {
  float beta1, beta2, one_minus_beta1, one_minus_beta2, root_beta2, root_one_minus_beta2;
  float step_size, inverse_root, epsilon, keep, clip;

  // PyTorch's order of operations. m and v take part before they are rounded. This file is compiled without
  // contraction to fused multiply-adds: the GPU gives the same bits.
  float operator()(float w, float gradient, float& m, float& v) const {
    const float g = gradient * clip;
    w *= keep;
    m += one_minus_beta1 * (g - m);
    v = v * beta2 + one_minus_beta2 * g * g;
    return w - step_size * (m / (std::sqrt(v) * inverse_root + epsilon));
  }
};

template <class G, class M>
void update_fp32(float* __restrict w, const G* __restrict g, M* __restrict m, M* __restrict v, int64_t count,
                 const Update& update) {
  for (int64_t i = 0; i < count; ++i) {
    float first = load(m[i]), second = load(v[i]);
    w[i] = update(w[i], load(g[i]), first, second);
    m[i] = store<M>(first);
    v[i] = store<M>(second);
  }
}

template <class G, class M>
void update_split(Bf16* __restrict w, uint16_t* __restrict remainder, const G* __restrict g, M* __restrict m,
                  M* __restrict v, int64_t count, const Update& update) {
  for (int64_t i = 0; i < count; ++i) {
    float first = load(m[i]), second = load(v[i]);
    const float exact = join_fp32(w[i].bits, remainder[i]);
    const auto bits = std::bit_cast<uint32_t>(update(exact, load(g[i]), first, second));
    w[i].bits = split_high(bits);
    remainder[i] = split_low(bits);
    m[i] = store<M>(first);
    v[i] = store<M>(second);
  }
}

// Up to kMomentBlock columns of a row of a parameter whose weight or moments are rounded stochastically.
struct MatrixBlock {
  const AdamWParameter& p;
  int64_t row, col, count;

  int64_t place() const { return row * p.weight.cols() + col; }
  int64_t index() const { return row * div_up(p.weight.cols(), kMomentBlock) + col / kMomentBlock; }
  int64_t pairs() const { return row * compact_row_bytes(p.weight.cols()) + col / 2; }  // of nibbles
};

void load_row(float* out, const Tensor& x, int64_t place, int64_t count) {
  cpu::dispatch_real("adamw", x.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < count; ++i) out[i] = load(x.as<T>()[place + i]);
  });
}

void store_row(const Tensor& x, const float* values, int64_t place, int64_t count) {
  cpu::dispatch_real("adamw", x.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < count; ++i) x.as<T>()[place + i] = store<T>(values[i]);
  });
}

// The step of every element; `root` replaces v.
void update_small(const MatrixBlock& block, const Update& update, float* w, const float* g, float* m,
                  float* root) {
  const AdamWParameter& p = block.p;
  const uint8_t* m_codes = p.m.as<uint8_t>() + block.place();
  const uint8_t* root_codes = p.v.as<uint8_t>() + block.place();
  const float* e4m3 = fp8_values(DType::E4M3);
  const SmallMomentStep step{
      .m_gain = update.clip * update.one_minus_beta1,
      .root_gain = update.clip * update.root_one_minus_beta2,
      .m_kept = p.m_scales.as<float>()[block.index()] * update.beta1,
      .root_kept = p.v_scales.as<float>()[block.index()] * update.root_beta2,
      .inverse_root = update.inverse_root,
      .epsilon = update.epsilon,
      .step_size = update.step_size,
      .keep = update.keep,
  };
  for (int64_t i = 0; i < block.count; ++i) {
    m[i] = e4m3[m_codes[i]], root[i] = root_value(root_codes[i]);
    w[i] = step(w[i], g[i], m[i], root[i]);
  }
}

void store_small(const MatrixBlock& block, const float* m, const float* root, const RoundingBits* random) {
  const AdamWParameter& p = block.p;
  uint8_t* m_codes = p.m.as<uint8_t>() + block.place();
  uint8_t* root_codes = p.v.as<uint8_t>() + block.place();
  float m_largest = 0, root_largest = 0;
  for (int64_t i = 0; i < block.count; ++i) {
    m_largest = std::max(m_largest, std::fabs(m[i]));
    root_largest = std::max(root_largest, root[i]);
  }
  p.m_scales.as<float>()[block.index()] = moment_factor(m_largest);
  p.v_scales.as<float>()[block.index()] = root_factor(root_largest);
  const MomentShift m_shift = MomentShift::of_m(m_largest), root_shift = MomentShift::of_root(root_largest);
  for (int64_t i = 0; i < block.count; ++i) {
    const int j = static_cast<int>(i % 8);
    m_codes[i] = to_e4m3_stochastic(m_shift(m[i]), random[i / 8].m(j));
    root_codes[i] = to_root_code(root_shift(root[i]), random[i / 8].root(j));
  }
}

// The weights as bf16 holds them get the bits of the remainder.
void add_remainder(const MatrixBlock& block, float* w) {
  const Tensor& remainder = block.p.remainder;
  const RemainderKind kind = kind_of_remainder(remainder);
  for (int64_t i = 0; i < block.count && kind != RemainderKind::None; ++i) {
    const auto bits = std::bit_cast<uint32_t>(w[i]);
    w[i] = std::bit_cast<float>(
        kind == RemainderKind::Exact
            ? join_bits(bits, remainder.as<uint16_t>()[block.place() + i])
            : join_nibble(bits, nibble_of(remainder.as<uint8_t>()[block.pairs() + i / 2], i)));
  }
}

// The new weights as bf16, and their remainders.
void store_rounded(const MatrixBlock& block, const float* w, const RoundingBits* random) {
  const Tensor& remainder = block.p.remainder;
  Bf16* weight = block.p.weight.as<Bf16>() + block.place();
  const auto random16 = [&](int64_t i) { return random[i / 8].weight(static_cast<int>(i % 8)); };
  switch (kind_of_remainder(remainder)) {
    case RemainderKind::None:
      for (int64_t i = 0; i < block.count; ++i) weight[i].bits = to_bf16_stochastic(w[i], random16(i));
      return;
    case RemainderKind::Compact: {
      uint8_t* pairs = remainder.as<uint8_t>() + block.pairs();
      for (int64_t i = 0; i < block.count; i += 2) {
        const bool two = i + 1 < block.count;
        const uint32_t even = to_compact_stochastic(w[i], random16(i));
        const uint32_t odd = two ? to_compact_stochastic(w[i + 1], random16(i + 1)) : 0;
        weight[i].bits = split_high(even);
        if (two) weight[i + 1].bits = split_high(odd);
        pairs[i / 2] = pair_of_nibbles(compact_nibble(even), compact_nibble(odd));
      }
      return;
    }
    case RemainderKind::Exact:
      for (int64_t i = 0; i < block.count; ++i) {
        const auto bits = std::bit_cast<uint32_t>(w[i]);
        weight[i].bits = split_high(bits);
        remainder.as<uint16_t>()[block.place() + i] = split_low(bits);
      }
      return;
  }
}

void update_block(const MatrixBlock& block, const AdamWOptions& options, const Update& update) {
  const AdamWParameter& p = block.p;
  const int64_t place = block.place(), count = block.count;
  const bool small = p.m.dtype == DType::E4M3;
  float w[kMomentBlock], g[kMomentBlock], m[kMomentBlock], v[kMomentBlock];
  load_row(w, p.weight, place, count);
  load_row(g, p.gradient, place, count);
  add_remainder(block, w);
  RoundingBits random[kMomentBlock / 8];
  for (int64_t i = 0; i < div_up(count, int64_t{8}); ++i) {
    random[i] = RoundingBits::of(options.seed, p.stream, options.step, p.first_row + block.row,
                                 div_up(p.weight.cols(), int64_t{8}), block.col / 8 + i);
  }
  if (small) {
    update_small(block, update, w, g, m, v);
    store_small(block, m, v, random);
  } else {
    load_row(m, p.m, place, count);
    load_row(v, p.v, place, count);
    for (int64_t i = 0; i < count; ++i) w[i] = update(w[i], g[i], m[i], v[i]);
    store_row(p.m, m, place, count);
    store_row(p.v, v, place, count);
  }
  if (p.weight.dtype == DType::F32) {
    store_row(p.weight, w, place, count);
    return;
  }
  store_rounded(block, w, random);
}

bool rounds_stochastically(const AdamWParameter& p) {
  return p.m.dtype == DType::E4M3 ||
         (p.weight.dtype == DType::BF16 && kind_of_remainder(p.remainder) != RemainderKind::Exact);
}

// The blocks that begin in elements [begin, end).
template <class Function>
void for_each_block(const AdamWParameter& p, int64_t begin, int64_t end, const Function& fn) {
  const int64_t cols = p.weight.cols();
  for (int64_t row = begin / cols; row * cols < end; ++row) {
    const int64_t skipped = std::max<int64_t>(begin - row * cols, 0);
    for (int64_t col = round_up(skipped, kMomentBlock); col < cols && row * cols + col < end;
         col += kMomentBlock) {
      fn(MatrixBlock{p, row, col, std::min(kMomentBlock, cols - col)});
    }
  }
}

void check(const AdamWParameter& p) {
  constexpr std::string_view op = "adamw";
  cpu::require_real(op, "weight", p.weight);
  require(p.gradient.numel() == p.weight.numel() && p.m.numel() == p.weight.numel() &&
              p.v.numel() == p.weight.numel(),
          "[{}] gradient {}, m {} or v {} does not fit the weight {}", op, p.gradient.shape.to_string(),
          p.m.shape.to_string(), p.v.shape.to_string(), p.weight.shape.to_string());
  cpu::require_dtype(op, "v", p.v, dtype_of_v(p.m.dtype));
  if (p.m.dtype == DType::E4M3) {
    const int64_t blocks = p.weight.rows() * div_up(p.weight.cols(), kMomentBlock);
    for (const Tensor& scales : {p.m_scales, p.v_scales}) {
      cpu::require_dtype(op, "the scales of a moment", scales, DType::F32);
      require(scales && scales.numel() == blocks, "[{}] {} scales of 8-bit moments, expected {}", op,
              scales ? scales.numel() : 0, blocks);
    }
  } else {
    cpu::require_real(op, "m", p.m);
  }
  require(p.first_row >= 0 && p.first_row % 2 == 0, "[{}] the first row is {}, expected an even number", op,
          p.first_row);
  require_remainder(op, p.weight, p.remainder);
}

}  // namespace

int64_t cpu::optimizer_workspace(int64_t parameters) {
  return Scratch::padded((parameters + 1) * 8) + Scratch::padded((parameters + kMaxChunks) * 8);
}

void CpuOps::sum(Tensor total, Tensor x) {
  const cpu::HostScope scope = timed({.kind = OpKind::Other, .op = "sum"});
  Scratch space = scratch();
  const TensorChunks chunks(space, 1, [&](int64_t) { return x.numel(); });
  double* partials = space.take<double>(chunks.count());
  cpu::dispatch_real("sum", x.dtype, [&]<class T>(T) {
    parallel_.for_each(chunks.count(), [&](int64_t chunk, int) {
      const int64_t begin = chunk * chunks.size();
      const int64_t count = std::min(chunks.size(), x.numel() - begin);
      partials[chunk] = double_sum(x.as<T>() + begin, count, [](double v) { return v; });
    });
  });
  double result = 0;
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) result += partials[chunk];
  *total.as<float>() = static_cast<float>(result);
}

void CpuOps::grad_norm(Tensor result, std::span<const Tensor> gradients, float max_norm, Tensor guard) {
  const cpu::HostScope scope = timed({.kind = OpKind::GradNorm, .op = "grad_norm"});
  Scratch space = scratch();
  const auto tensor = [&](int64_t i) -> const Tensor& { return gradients[static_cast<size_t>(i)]; };
  for (const Tensor& gradient : gradients) cpu::require_real("grad_norm", "a gradient", gradient);
  const TensorChunks chunks(space, std::ssize(gradients), [&](int64_t i) { return tensor(i).numel(); });
  double* partials = space.take<double>(chunks.count());
  parallel_.for_each(chunks.count(), [&](int64_t chunk, int) {
    const auto [index, begin] = chunks.place(chunk);
    const Tensor& x = tensor(index);
    const int64_t count = std::min(chunks.size(), x.numel() - begin);
    const auto square = [](double v) { return v * v; };
    partials[chunk] = x.dtype == DType::F32 ? double_sum(x.as<float>() + begin, count, square)
                                            : double_sum(x.as<Bf16>() + begin, count, square);
  });
  double squares = 0;
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) squares += partials[chunk];
  auto norm = static_cast<float>(std::sqrt(squares));
  for (int64_t i = 0; guard && i < guard.numel(); ++i) {
    if (!(std::fabs(guard.as<float>()[i]) <= std::numeric_limits<float>::max()))
      norm = std::numeric_limits<float>::quiet_NaN();
  }
  float* out = result.as<float>();
  out[0] = norm;
  out[1] = max_norm > 0.0f && norm > max_norm ? max_norm / norm : 1.0f;
}

void CpuOps::adamw(std::span<const AdamWParameter> parameters, Tensor clip, const AdamWOptions& options) {
  const cpu::HostScope scope = timed({.kind = OpKind::Optimizer, .op = "adamw"});
  for (const AdamWParameter& parameter : parameters) check(parameter);
  require(options.step >= 1, "[adamw] the step is {}, expected 1 or more", options.step);
  const bool skip = !std::isfinite(clip.as<float>()[0]);

  const auto steps = static_cast<double>(options.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(options.beta1), steps);
  const double correction2 = 1.0 - std::pow(static_cast<double>(options.beta2), steps);
  Update shared{
      .beta1 = options.beta1,
      .beta2 = options.beta2,
      .one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(options.beta1)),
      .one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(options.beta2)),
      .root_beta2 = static_cast<float>(std::sqrt(static_cast<double>(options.beta2))),
      .root_one_minus_beta2 = static_cast<float>(std::sqrt(1.0 - static_cast<double>(options.beta2))),
      .step_size = 0.0f,
      .inverse_root = static_cast<float>(1.0 / std::sqrt(correction2)),
      .epsilon = options.epsilon,
      .keep = 1.0f,
      .clip = clip.as<float>()[1]};

  Scratch space = scratch();
  const auto parameter = [&](int64_t i) -> const AdamWParameter& {
    return parameters[static_cast<size_t>(i)];
  };
  const TensorChunks chunks(space, std::ssize(parameters),
                            [&](int64_t i) { return parameter(i).weight.numel(); });
  parallel_.for_each(skip ? 0 : chunks.count(), [&](int64_t chunk, int) {
    const auto [index, begin] = chunks.place(chunk);
    const AdamWParameter& p = parameter(index);
    const int64_t first = begin, count = std::min(chunks.size(), p.weight.numel() - begin);
    Update update = shared;
    const double rate =
        static_cast<double>(options.learning_rate) * static_cast<double>(p.learning_rate_scale);
    update.step_size = static_cast<float>(rate / correction1);
    update.keep = static_cast<float>(1.0 - rate * static_cast<double>(p.weight_decay));
    if (rounds_stochastically(p)) {
      for_each_block(p, first, first + count,
                     [&](const MatrixBlock& block) { update_block(block, options, update); });
      return;
    }
    cpu::dispatch_real("adamw", p.gradient.dtype, [&]<class G>(G) {
      cpu::dispatch_real("adamw", p.m.dtype, [&]<class M>(M) {
        const G* g = p.gradient.as<G>() + first;
        M* m = p.m.as<M>() + first;
        M* v = p.v.as<M>() + first;
        if (p.weight.dtype == DType::F32) {
          update_fp32(p.weight.as<float>() + first, g, m, v, count, update);
        } else {
          update_split(p.weight.as<Bf16>() + first, p.remainder.as<uint16_t>() + first, g, m, v, count,
                       update);
        }
      });
    });
  });
  for (const AdamWParameter& p : parameters) {
    if (!p.fp8) continue;
    Operand operand;
    operand.dense = p.weight.reshaped({p.weight.rows(), p.weight.cols()});
    operand.fp8 = p.fp8;
    quantize(operand);
  }
}

}  // namespace octet
