// Bandwidth of the elementwise ops of the CUDA backend with fused FP8 output, and rates of the tuned GEMMs,
// at the shapes of real models. Bytes are the fewest an op must move: each input read once, each output
// written once; the loss reads its logits twice, since a row must be known before its gradient.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "ops/device.h"

using namespace octet;

namespace {

class Bench {
 public:
  // once: every op is run a single time and nothing is printed, for a profiler of kernels.
  static inline bool once = false;
  explicit Bench(Device& device) : device_(device) {}

  Tensor tensor(DType dtype, Shape shape, float scale = 1.0f) {
    Tensor result{nullptr, dtype, shape};
    memory_.push_back(device_.allocate(result.bytes()));
    result.data = memory_.back().get();
    if (dtype == DType::F32 || dtype == DType::BF16) fill(result, scale);
    return result;
  }
  Quantized quantized(int64_t rows, int64_t cols, DType format) {
    Quantized result;
    result.rule = {.format_rowwise = format, .format_colwise = format, .delayed = true};
    memory_.push_back(device_.allocate(sizeof(ScaleSlot)));
    const ScaleSlot slot;
    device_.copy_to_device({memory_.back().get(), DType::U8, {sizeof(ScaleSlot)}}, &slot);
    result.slot = static_cast<ScaleSlot*>(memory_.back().get());
    result.rowwise.codes = tensor(format, {rows, cols});
    result.colwise.codes = tensor(format, {cols, rows});
    result.rowwise.tensor_scale = &result.slot->inverse_rowwise;
    result.colwise.tensor_scale = &result.slot->inverse_colwise;
    return result;
  }
  void clear() { memory_.clear(); }

  double seconds(const std::function<void()>& run) {
    if (once) {
      run();
      device_.synchronize();
      return 1.0;
    }
    for (int i = 0; i < 3; ++i) run();
    device_.synchronize();
    double best = 1e30;
    for (int sample = 0; sample < 5; ++sample) {
      constexpr int kRepetitions = 10;
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kRepetitions; ++i) run();
      device_.synchronize();
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      best = std::min(best, time.count() / kRepetitions);
    }
    return best;
  }
  void bandwidth(const std::string& name, int64_t bytes, const std::function<void()>& run) {
    const double time = seconds(run);
    if (once) return;
    fmt::print("{:34} {:8.1f} us {:7.2f} TB/s\n", name, time * 1e6, static_cast<double>(bytes) / time / 1e12);
  }
  void rate(const std::string& name, double flops, const std::function<void()>& run) {
    const double time = seconds(run);
    if (once) return;
    fmt::print("{:34} {:8.1f} us {:7.0f} TFLOP/s\n", name, time * 1e6, flops / time / 1e12);
  }

 private:
  void fill(const Tensor& x, float scale) {
    // A million random numbers, then copies of what is there already.
    const Philox random(1);
    const auto count = static_cast<size_t>(std::min<int64_t>(x.numel(), 1 << 20));
    std::vector<float> values(count);
    std::vector<Bf16> rounded(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = scale * random.normal(i);
      rounded[i] = to_bf16(values[i]);
    }
    const auto part = [&](int64_t begin, int64_t bytes) {
      return Tensor{static_cast<std::byte*>(x.data) + begin, DType::U8, {bytes}};
    };
    auto done = static_cast<int64_t>(count * size_of(x.dtype));
    device_.copy_to_device(part(0, done), x.dtype == DType::F32 ? static_cast<const void*>(values.data())
                                                                : static_cast<const void*>(rounded.data()));
    while (done < x.bytes()) {
      const int64_t more = std::min(done, x.bytes() - done);
      device_.copy(part(done, more), part(0, more));
      done += more;
    }
  }

  Device& device_;
  std::vector<std::shared_ptr<void>> memory_;
};

void elementwise(Device& device, int64_t rows, int64_t width, int64_t inner, NormKind kind,
                 Activation activation) {
  Bench bench(device);
  const DType bf16 = DType::BF16;
  const bool gated = activation == Activation::SwiGlu, layer_norm = kind == NormKind::LayerNorm;
  const int64_t n = rows * width, f = rows * inner, in = gated ? 2 * inner : inner;
  fmt::print("-- {} rows, width {}, inner {}\n", rows, width, inner);
  const Tensor x = bench.tensor(bf16, {rows, width}), delta = bench.tensor(bf16, {rows, width});
  const Tensor residual = bench.tensor(bf16, {rows, width}), gain = bench.tensor(bf16, {width});
  const Tensor bias = layer_norm ? bench.tensor(bf16, {width}) : Tensor{};
  const Tensor mean = layer_norm ? bench.tensor(DType::F32, {rows}) : Tensor{};
  const Tensor inv = bench.tensor(DType::F32, {rows}), dense = bench.tensor(bf16, {rows, width});
  const Tensor dgain = bench.tensor(DType::F32, {width}),
               dbias = layer_norm ? bench.tensor(DType::F32, {width}) : Tensor{};
  Quantized y8 = bench.quantized(rows, width, DType::E4M3), dy8 = bench.quantized(rows, width, DType::E5M2);
  bench.bandwidth("copy", 4 * n, [&] { device.copy(residual, x); });
  bench.bandwidth("add+norm -> fp8, fp8T", 8 * n, [&] {
    device.ops().norm_forward(kind, {.dense = dense, .fp8 = &y8, .keep_dense = false}, residual, mean, inv, x,
                              delta, gain, bias, 1e-5f);
  });
  bench.bandwidth("add+norm -> bf16", 8 * n, [&] {
    device.ops().norm_forward(kind, {.dense = dense}, residual, mean, inv, x, delta, gain, bias, 1e-5f);
  });
  bench.bandwidth("norm backward -> bf16, fp8, fp8T", 10 * n, [&] {
    device.ops().norm_backward(kind, {.dense = dense, .fp8 = &dy8}, dgain, dbias, delta, x, mean, inv, gain);
  });
  bench.bandwidth("quantize -> fp8, fp8T", 4 * n, [&] { device.ops().quantize({.dense = x, .fp8 = &y8}); });
  const Tensor wide = bench.tensor(bf16, {rows, in}), h = bench.tensor(bf16, {rows, inner});
  const Tensor dwide = bench.tensor(bf16, {rows, in});
  Quantized h8 = bench.quantized(rows, inner, DType::E4M3), dwide8 = bench.quantized(rows, in, DType::E5M2);
  bench.bandwidth("activation -> fp8, fp8T", (gated ? 6 : 4) * f, [&] {
    device.ops().activation_forward(activation, {.dense = h, .fp8 = &h8, .keep_dense = false}, wide);
  });
  bench.bandwidth("activation backward -> fp8, fp8T", (gated ? 10 : 6) * f, [&] {
    device.ops().activation_backward(activation, {.dense = dwide, .fp8 = &dwide8, .keep_dense = false}, h,
                                     wide);
  });
}

void loss(Device& device, int64_t rows, int64_t vocab) {
  Bench bench(device);
  const Tensor logits = bench.tensor(DType::BF16, {rows, vocab});
  const Tensor losses = bench.tensor(DType::F32, {rows}), targets = bench.tensor(DType::I32, {rows});
  device.zero(targets);
  const Tensor scale = bench.tensor(DType::F32, {1});
  device.zero(scale);
  Quantized dlogits8 = bench.quantized(rows, vocab, DType::E5M2);
  fmt::print("-- loss of {} x {}\n", rows, vocab);
  const auto run = [&](const std::string& name, int64_t bytes, const Operand& gradient) {
    bench.bandwidth(name, bytes * rows * vocab, [&] {
      device.ops().cross_entropy(gradient, losses, {}, {}, logits, targets,
                                 {.vocab = vocab, .gradient_scale = scale});
    });
  };
  run("cross-entropy, no gradient", 2, {});
  run("cross-entropy -> fp8, fp8T", 6, {.dense = logits, .fp8 = &dlogits8, .keep_dense = false});
  run("cross-entropy -> bf16 in place", 6, {.dense = logits});
}

void attention(Device& device, int64_t count, int64_t length, const AttentionShape& shape, bool equal) {
  Bench bench(device);
  const int64_t tokens = count * length;
  // Documents of all lengths from a quarter to seven quarters of the mean, or of one length.
  std::vector<int32_t> starts{0};
  const Philox random(7);
  int64_t longest = 0;
  double pairs = 0.0;
  while (starts.back() < tokens) {
    const double part = equal ? 1.0 : 0.25 + 1.5 * random.uniform(starts.size());
    const auto wanted = static_cast<int64_t>(part * static_cast<double>(length));
    const int64_t taken = std::min(std::max<int64_t>(wanted, 1), tokens - starts.back());
    longest = std::max(longest, taken);
    pairs += static_cast<double>(taken * taken) / 2.0;
    starts.push_back(static_cast<int32_t>(starts.back() + taken));
  }
  const Tensor places = bench.tensor(DType::I32, {std::ssize(starts)});
  device.copy_to_device(places, starts.data());
  const Documents documents{.starts = places, .count = std::ssize(starts) - 1, .max_length = longest};
  const Tensor qkv = bench.tensor(DType::BF16, {tokens, shape.qkv_width()});
  const Tensor dqkv = bench.tensor(DType::BF16, {tokens, shape.qkv_width()});
  const Tensor out = bench.tensor(DType::BF16, {tokens, shape.out_width()});
  const Tensor dout = bench.tensor(DType::BF16, {tokens, shape.out_width()});
  const Tensor lse = bench.tensor(DType::F32, {shape.heads, tokens});
  const double product = 2.0 * pairs * static_cast<double>(shape.out_width());
  const std::string size = fmt::format("attention {} {} x {}, {} of {}", equal ? "equal" : "mixed", count,
                                       length, shape.heads, shape.head_dim);
  bench.rate(size, 2 * product,
             [&] { device.ops().attention_forward({.dense = out}, lse, qkv, documents, shape); });
  bench.rate(size + " backward", 5 * product,
             [&] { device.ops().attention_backward(dqkv, dout, qkv, out, lse, documents, shape); });

  const Tensor positions = bench.tensor(DType::I32, {tokens}),
               table = bench.tensor(DType::F32, {length, shape.head_dim});
  device.zero(positions);
  Quantized dqkv8 = bench.quantized(tokens, shape.qkv_width(), DType::E5M2);
  const int64_t rotated = tokens * (shape.heads + shape.kv_heads) * shape.head_dim;
  bench.bandwidth("rope", 4 * rotated, [&] { device.ops().rope_forward(qkv, positions, table, shape); });
  bench.bandwidth("rope backward -> fp8, fp8T", 4 * tokens * shape.qkv_width(), [&] {
    device.ops().rope_backward({.dense = dqkv, .fp8 = &dqkv8, .keep_dense = false}, positions, table, shape);
  });
}

// As the 1B to 8B train (bf16 moments, exact weights) or, `small`, as the 14B does (e4m3 moments, stochastic weights).
void optimizer(Device& device, int64_t rows, int64_t cols, bool small) {
  Bench bench(device);
  const Shape shape{rows, cols};
  const DType gradients_in = small ? DType::BF16 : DType::F32, moments = small ? DType::E4M3 : DType::BF16;
  Quantized w8 = bench.quantized(rows, cols, DType::E4M3);
  AdamWParameter p{.weight = bench.tensor(DType::BF16, shape, 0.02f),
                   .gradient = bench.tensor(gradients_in, shape, 1e-3f),
                   .m = bench.tensor(moments, shape),
                   .v = bench.tensor(moments, shape),
                   .weight_decay = 0.1f,
                   .fp8 = &w8};
  device.zero(p.m);
  device.zero(p.v);
  if (small) {
    p.m_scales = bench.tensor(DType::F32, {rows, (cols + 127) / 128});
    p.v_scales = bench.tensor(DType::F32, p.m_scales.shape);
    device.zero(p.m_scales);
    device.zero(p.v_scales);
  } else {
    p.remainder = bench.tensor(DType::U16, shape);
    device.zero(p.remainder);
  }
  const Tensor clip = bench.tensor(DType::F32, {2});
  const Tensor gradients[] = {p.gradient};
  bench.bandwidth(small ? "grad_norm of bf16" : "grad_norm", p.gradient.bytes(),
                  [&] { device.ops().grad_norm(clip, gradients, 1.0f, {}); });
  const int64_t bytes = 2 * (p.weight.bytes() + p.remainder.bytes() + p.m.bytes() + p.v.bytes()) +
                        p.gradient.bytes() + 2 * rows * cols;
  bench.bandwidth(small ? "adamw fp8 moments -> fp8, fp8T" : "adamw -> fp8, fp8T", bytes,
                  [&] { device.ops().adamw(std::span(&p, 1), clip, {.learning_rate = 1e-5f}); });
}

void gemms(Device& device, int64_t tokens, int64_t out, int64_t in) {
  Bench bench(device);
  const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(out) * static_cast<double>(in);
  const std::string size = fmt::format("{} x {} x {}", tokens, out, in);
  const Tensor x = bench.tensor(DType::BF16, {tokens, in}), w = bench.tensor(DType::BF16, {out, in}, 0.02f);
  const Tensor y = bench.tensor(DType::BF16, {tokens, out});
  const Tensor dw = bench.tensor(DType::F32, {out, in});
  Quantized x8 = bench.quantized(tokens, in, DType::E4M3), w8 = bench.quantized(out, in, DType::E4M3);
  Quantized dy8 = bench.quantized(tokens, out, DType::E5M2);
  device.ops().quantize({.dense = x, .fp8 = &x8});
  device.ops().quantize({.dense = w, .fp8 = &w8});
  device.ops().quantize({.dense = y, .fp8 = &dy8});
  bench.rate(size + " bf16 forward", flops, [&] { device.ops().gemm(y, x, w, {.transpose_b = true}); });
  bench.rate(size + " fp8 forward", flops, [&] { device.ops().gemm_fp8(y, x8.rowwise, w8.rowwise, {}); });
  bench.rate(size + " fp8 dgrad", flops, [&] { device.ops().gemm_fp8(x, dy8.rowwise, w8.colwise, {}); });
  bench.rate(size + " fp8 wgrad +=", flops,
             [&] { device.ops().gemm_fp8(dw, dy8.colwise, x8.colwise, {.accumulate = true}); });
}

constexpr const char* kHelp =
    "Usage: cuda_ops_bench [--once]\n\n"
    "Times single ops of the CUDA device at the shapes of real models, and prints TB/s of the elementwise\n"
    "ones, attention's and the matrix products' TFLOP/s. Needs a GPU.\n"
    "  --once       run every op a single time and print no figures, for a profiler of kernels\n"
    "  -h, --help   print this\n";

void run_all() {
  const auto device = make_cuda_device({});
  Tensor workspace{nullptr, DType::U8, {int64_t{512} << 20}};
  const auto memory = device->allocate(workspace.bytes());
  workspace.data = memory.get();
  device->ops().set_workspace(workspace);
  elementwise(*device, 65536, 768, 3072, NormKind::LayerNorm, Activation::Gelu);
  elementwise(*device, 12288, 2048, 8192, NormKind::RmsNorm, Activation::SwiGlu);
  elementwise(*device, 8192, 4096, 14336, NormKind::RmsNorm, Activation::SwiGlu);
  elementwise(*device, 4096, 5120, 13824, NormKind::RmsNorm, Activation::SwiGlu);
  attention(*device, 8, 1024, {.heads = 32, .kv_heads = 8, .head_dim = 128, .scale = 0.088f}, true);
  attention(*device, 8, 1024, {.heads = 32, .kv_heads = 8, .head_dim = 128, .scale = 0.088f}, false);
  attention(*device, 2, 4096, {.heads = 32, .kv_heads = 8, .head_dim = 128, .scale = 0.088f}, false);
  attention(*device, 64, 1024, {.heads = 12, .kv_heads = 12, .head_dim = 64, .scale = 0.125f}, true);
  loss(*device, 16384, 50304);
  loss(*device, 8192, 128256);
  loss(*device, 8192, 152064);
  optimizer(*device, 14336, 4096, false);
  optimizer(*device, 13824, 5120, true);
  gemms(*device, 65536, 3072, 768);
  gemms(*device, 8192, 28672, 4096);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view argument = argc > 1 ? argv[1] : "";
  if (argument == "-h" || argument == "--help") {
    fmt::print("{}", kHelp);
    return 0;
  }
  Bench::once = argument == "--once";
  if (argc > 2 || (argc == 2 && !Bench::once)) {
    fmt::print(stderr, "error: cuda_ops_bench takes --once or nothing\n");
    return 2;
  }
  try {
    run_all();
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
