#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "support/op_table_detail.h"

// The cases. References are plain loops in double, written for reading.
namespace octet::test {
namespace {

struct GemmVariant {
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType c_dtype = DType::F32;
};

OpCase gemm_case(DType dtype, int64_t m, int64_t n, int64_t k, GemmVariant variant) {
  const auto [ta, tb, accumulate, bias, c_dtype] = variant;
  const std::string name = fmt::format("gemm_{}{}{}{}_c{}", ta ? "t" : "n", tb ? "t" : "n",
                                       accumulate ? "_add" : "", bias ? "_bias" : "", name_of(c_dtype));
  OpCase op = start(name, dtype, {m, n, k});
  op.gemms = {{m, n, k}};
  op.flops = 2.0 * static_cast<double>(m * n * k);
  op.add_input("a", dtype, ta ? Shape{k, m} : Shape{m, k}, normal(m * k, dtype, 1));
  op.add_input("b", dtype, tb ? Shape{n, k} : Shape{k, n}, normal(k * n, dtype, 2));
  op.add_input("c_before", c_dtype, {m, n}, normal(m * n, c_dtype, 3));
  op.add_input("bias", c_dtype, {n}, normal(n, c_dtype, 4));
  op.add_output("c", c_dtype, {m, n});
  op.forward = [=](Device& device, Args& args) {
    GemmOptions options{.transpose_a = ta, .transpose_b = tb, .accumulate = accumulate, .bias = {}};
    if (bias) options.bias = args.in[3];
    if (accumulate) device.copy(args.out[0], args.in[2]);
    device.ops().gemm(args.out[0], args.in[0], args.in[1], options);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> c(at(m * n));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = accumulate ? in[2][at(i * n + j)] : 0.0;
        if (bias) sum += in[3][at(j)];
        for (int64_t p = 0; p < k; ++p) {
          sum += in[0][at(ta ? p * m + i : i * k + p)] * in[1][at(tb ? j * k + p : p * n + j)];
        }
        c[at(i * n + j)] = sum;
      }
    }
    return Arrays{c};
  };
  return op;
}

OpCase embedding_case(DType dtype, int64_t rows, int64_t width, int64_t vocab, bool has_positions) {
  OpCase op = start(has_positions ? "embedding_wpe" : "embedding", dtype, {rows, width, vocab});
  const int64_t positions = 7;
  op.needs.tokens = rows;
  op.needs.width = width;
  op.add_gradient_input("wte", dtype, {vocab, width}, normal(vocab * width, dtype, 1), true);
  op.add_gradient_input("wpe", dtype, {positions, width}, normal(positions * width, dtype, 2), true);
  op.add_input("tokens", DType::I32, {rows}, fixed(ids(rows, vocab, 3)));
  op.add_input("positions", DType::I32, {rows}, fixed(ids(rows, positions, 4)));
  op.add_output("x", dtype, {rows, width});
  op.forward = [=](Device& device, Args& args) {
    device.ops().embedding_forward(args.out[0], args.in[2], args.in[3], args.in[0],
                                   has_positions ? args.in[1] : Tensor{});
  };
  op.backward = [=](Device& device, Args& args) {
    device.ops().embedding_backward(args.grad[0], has_positions ? args.grad[1] : Tensor{}, args.upstream[0],
                                    args.in[2], args.in[3]);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> x(at(rows * width));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        x[at(r * width + c)] = in[0][at(static_cast<int64_t>(in[2][at(r)]) * width + c)];
        if (has_positions) x[at(r * width + c)] += in[1][at(static_cast<int64_t>(in[3][at(r)]) * width + c)];
      }
    }
    return Arrays{x};
  };
  return op;
}

OpCase norm_case(DType dtype, NormKind kind, int64_t rows, int64_t width, bool has_delta) {
  const bool layer_norm = kind == NormKind::LayerNorm;
  OpCase op = start(std::string(layer_norm ? "layer_norm" : "rms_norm") + (has_delta ? "_add" : ""), dtype,
                    {rows, width});
  op.needs.tokens = rows;
  op.needs.width = width;
  const float epsilon = 1e-5f;
  // Sixteenths, so that x + delta is exact in bf16 and the reference need not round it.
  const auto sixteenths = [=](uint64_t seed, double offset) -> Fill {
    return [=] {
      std::vector<double> values = random_values(rows * width, dtype, seed, 1.0, offset);
      for (double& x : values) x = std::clamp(std::round(x * 16.0) / 16.0, -7.5, 7.5);
      return values;
    };
  };
  op.add_gradient_input("x", dtype, {rows, width}, sixteenths(1, 0.5), false);
  op.add_input("delta", dtype, {rows, width}, sixteenths(2, 0.0));
  op.add_gradient_input("gain", dtype, {width}, normal(width, dtype, 3, 0.2, 1.0), true);
  op.add_gradient_input("bias", dtype, {width}, normal(width, dtype, 4, 0.2), true);
  op.add_output("y", dtype, {rows, width});
  op.add_output("residual", dtype, {rows, width});
  op.add_output("mean", DType::F32, {rows}, false);
  op.add_output("inv", DType::F32, {rows}, false);
  op.forward = [=](Device& device, Args& args) {
    if (!has_delta) device.copy(args.out[1], args.in[0]);
    if (!layer_norm) device.zero(args.out[2]);
    device.ops().norm_forward(kind, operand(args.out[0]), has_delta ? args.out[1] : Tensor{},
                              layer_norm ? args.out[2] : Tensor{}, args.out[3], args.in[0],
                              has_delta ? args.in[1] : Tensor{}, args.in[2],
                              layer_norm ? args.in[3] : Tensor{}, epsilon);
  };
  op.backward = [=](Device& device, Args& args) {
    // The gradient of the residual stream comes in through the buffer that backward adds to.
    device.copy(args.grad[0], args.upstream[1]);
    device.ops().norm_backward(kind, operand(args.grad[0]), args.grad[2],
                               layer_norm ? args.grad[3] : Tensor{}, args.upstream[0], args.out[1],
                               layer_norm ? args.out[2] : Tensor{}, args.out[3], args.in[2]);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> y(at(rows * width)), residual(at(rows * width)), mean(at(rows)), inv(at(rows));
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, squares = 0;
      for (int64_t c = 0; c < width; ++c) {
        const double x = in[0][at(r * width + c)] + (has_delta ? in[1][at(r * width + c)] : 0.0);
        residual[at(r * width + c)] = x;
        sum += x;
      }
      const double n = static_cast<double>(width), centre = layer_norm ? sum / n : 0.0;
      for (int64_t c = 0; c < width; ++c) squares += std::pow(residual[at(r * width + c)] - centre, 2);
      const double scale = 1.0 / std::sqrt(squares / n + static_cast<double>(epsilon));
      mean[at(r)] = centre;
      inv[at(r)] = scale;
      for (int64_t c = 0; c < width; ++c) {
        y[at(r * width + c)] = (residual[at(r * width + c)] - centre) * scale * in[2][at(c)];
        if (layer_norm) y[at(r * width + c)] += in[3][at(c)];
      }
    }
    return Arrays{y, residual, mean, inv};
  };
  return op;
}

OpCase activation_case(DType dtype, Activation activation, int64_t rows, int64_t width) {
  const bool gated = activation == Activation::SwiGlu;
  OpCase op = start(gated ? "swiglu" : "gelu", dtype, {rows, width});
  op.needs.tokens = rows;
  const int64_t in_width = gated ? 2 * width : width;
  op.needs.width = in_width;
  op.add_gradient_input("x", dtype, {rows, in_width}, normal(rows * in_width, dtype, 1, 3.0), false);
  op.add_output("h", dtype, {rows, width});
  op.forward = [=](Device& device, Args& args) {
    device.ops().activation_forward(activation, operand(args.out[0]), args.in[0]);
  };
  op.backward = [=](Device& device, Args& args) {
    device.ops().activation_backward(activation, operand(args.grad[0]), args.upstream[0], args.in[0]);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> h(at(rows * width));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const double x = in[0][at(r * in_width + c)];
        const double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
        h[at(r * width + c)] = gated ? x / (1.0 + std::exp(-x)) * in[0][at(r * in_width + width + c)]
                                     : 0.5 * x * (1.0 + std::tanh(u));
      }
    }
    return Arrays{h};
  };
  return op;
}

OpCase cross_entropy_case(DType dtype, int64_t rows, int64_t vocab, int64_t width, PenaltyKind penalty,
                          std::string label) {
  OpCase op = start("cross_entropy_" + label, dtype, {rows, vocab, width});
  op.needs.tokens = rows;
  op.needs.width = width;
  const LossOptions options{.vocab = vocab, .penalty = penalty, .penalty_weight = 0.3f};
  op.upstream_value = 0.25;
  std::vector<double> targets = ids(rows, vocab + 1, 2);
  for (double& target : targets) target -= 1.0;  // some are -1
  if (rows == 1) targets[0] = 1.0;
  op.add_gradient_input("logits", dtype, {rows, width}, normal(rows * width, dtype, 1, 3.0), false);
  op.add_input("targets", DType::I32, {rows}, fixed(targets));
  op.add_input("gradient_scale", DType::F32, {1}, fixed({0.25}));
  op.add_output("loss", DType::F32, {rows});
  op.add_output("penalty", DType::F32, {rows});
  op.add_output("correct", DType::I32, {rows}, false);
  const auto run = [=](Device& device, Args& args, const Tensor& gradient) {
    LossOptions scaled = options;
    scaled.gradient_scale = args.in[2];
    device.ops().cross_entropy(operand(gradient), args.out[0], args.out[1], args.out[2], args.in[0],
                               args.in[1], scaled);
  };
  op.forward = [=](Device& device, Args& args) { run(device, args, {}); };
  op.backward = [=](Device& device, Args& args) { run(device, args, args.grad[0]); };
  op.reference = [=](const Arrays& in) {
    std::vector<double> loss(at(rows)), extra(at(rows)), correct(at(rows));
    const double weight = static_cast<double>(options.penalty_weight), n = static_cast<double>(vocab);
    for (int64_t r = 0; r < rows; ++r) {
      const auto target = static_cast<int64_t>(in[1][at(r)]);
      if (target < 0) continue;
      const double* logits = in[0].data() + r * width;
      const double* best = std::max_element(logits, logits + vocab);
      double total = 0, squares = 0, entropy = 0;
      for (int64_t i = 0; i < vocab; ++i) total += std::exp(logits[i] - *best);
      const double lse = *best + std::log(total);
      for (int64_t i = 0; i < vocab; ++i) {
        squares += logits[i] * logits[i];
        entropy -= std::exp(logits[i] - lse) * (logits[i] - lse);
      }
      loss[at(r)] = lse - logits[target];
      correct[at(r)] = best - logits == target ? 1.0 : 0.0;
      if (penalty == PenaltyKind::ZLoss) extra[at(r)] = weight * lse * lse;
      if (penalty == PenaltyKind::Entropy) extra[at(r)] = -weight * entropy;
      if (penalty == PenaltyKind::LogitL2) extra[at(r)] = weight * squares / n;
    }
    return Arrays{loss, extra, correct};
  };
  return op;
}

OpCase sums_case(DType dtype, int64_t rows, int64_t width) {
  OpCase op = start("sums", dtype, {rows, width});
  op.needs.tokens = rows;
  op.needs.width = width;
  op.needs.parameters = 2;
  op.add_input("x", dtype, {rows, width}, normal(rows * width, dtype, 1, 1.0, 0.3));
  op.add_input("column_sum_before", DType::F32, {width}, normal(width, DType::F32, 2));
  op.add_input("other", DType::F32, {width}, normal(width, DType::F32, 3));
  op.add_output("column_sum", DType::F32, {width});
  op.add_output("total", DType::F32, {1});
  op.add_output("norm", DType::F32, {2});
  op.forward = [=](Device& device, Args& args) {
    device.copy(args.out[0], args.in[1]);
    device.ops().add_column_sum(args.out[0], args.in[0]);
    device.ops().sum(args.out[1], args.in[0]);
    const Tensor gradients[] = {args.in[0], args.in[2]};
    device.ops().grad_norm(args.out[2], gradients, 0.5f, {});
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> columns = in[1];
    double total = 0, squares = 0;
    for (size_t i = 0; i < in[0].size(); ++i) {
      columns[i % at(width)] += in[0][i];
      total += in[0][i];
      squares += in[0][i] * in[0][i];
    }
    for (const double x : in[2]) squares += x * x;
    const double norm = std::sqrt(squares);
    return Arrays{columns, {total}, {norm, std::min(1.0, 0.5 / norm)}};
  };
  return op;
}

OpCase large(OpCase op) {
  op.name = fmt::format("large_{}", op.name);
  op.large = true;
  return op;
}

}  // namespace

std::vector<OpCase> op_table() {
  std::vector<OpCase> table;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const DType f32 = DType::F32;
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true})
        table.push_back(gemm_case(dtype, 17, 24, 100, {ta, tb, false, false, dtype}));
    }
    table.push_back(gemm_case(dtype, 1, 259, 24, {false, true, false, true, dtype}));
    table.push_back(gemm_case(dtype, 3, 100, 17, {true, false, true, false, f32}));
    table.push_back(gemm_case(dtype, 130, 70, 33, {false, true, true, true, dtype}));
    table.push_back(large(gemm_case(dtype, 300, 200, 130, {false, true, true, true, dtype})));
    table.push_back(embedding_case(dtype, 17, 24, 5, true));
    table.push_back(embedding_case(dtype, 3, 100, 40, false));
    table.push_back(large(embedding_case(dtype, 300, 384, 50, true)));
    for (const NormKind kind : {NormKind::LayerNorm, NormKind::RmsNorm}) {
      for (const bool has_delta : {false, true}) {
        table.push_back(norm_case(dtype, kind, 1, 24, has_delta));
        table.push_back(norm_case(dtype, kind, 17, 100, has_delta));
      }
      table.push_back(large(norm_case(dtype, kind, 300, 384, true)));
      table.push_back(large(norm_case(dtype, kind, 75, 1600, false)));
    }
    for (const Activation activation : {Activation::Gelu, Activation::SwiGlu}) {
      table.push_back(activation_case(dtype, activation, 3, 24));
      table.push_back(activation_case(dtype, activation, 17, 100));
      table.push_back(large(activation_case(dtype, activation, 300, 384)));
    }
    table.push_back(rope_case(dtype, 17, {.heads = 3, .kv_heads = 1, .head_dim = 16}));
    table.push_back(rope_case(dtype, 3, {.heads = 2, .kv_heads = 2, .head_dim = 64}));
    table.push_back(qk_norm_case(dtype, 1, {.heads = 2, .kv_heads = 2, .head_dim = 6}));
    table.push_back(qk_norm_case(dtype, 17, {.heads = 3, .kv_heads = 1, .head_dim = 48}));
    table.push_back(large(qk_norm_case(dtype, 150, {.heads = 8, .kv_heads = 2, .head_dim = 128})));
    table.push_back(large(qk_norm_case(dtype, 40, {.heads = 2, .kv_heads = 1, .head_dim = 256})));
    table.push_back(attention_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16}, {17}, "one"));
    table.push_back(
        attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 16}, {1, 9, 1, 23, 3}, "packed"));
    table.push_back(attention_case(dtype, {.heads = 3, .kv_heads = 1, .head_dim = 64}, {5, 70}, "tiles"));
    table.push_back(
        large(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 64}, {150, 1, 90}, "packed")));
    table.push_back(
        attention_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16, .window = 1}, {9}, "window_1"));
    table.push_back(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 5},
                                   {1, 9, 1, 23, 3}, "window_packed"));
    table.push_back(attention_case(dtype, {.heads = 3, .kv_heads = 1, .head_dim = 64, .window = 33}, {5, 70},
                                   "window_tiles"));
    table.push_back(large(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 64, .window = 70},
                                         {350, 1, 70, 90}, "window_packed")));
    table.push_back(large(attention_case(dtype, {.heads = 2, .kv_heads = 1, .head_dim = 128, .window = 64},
                                         {384}, "window_one")));
    table.push_back(decode_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16}, {0}, 1, "first"));
    table.push_back(decode_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 24, .window = 6}, {40, 0, 7},
                                2, "window"));
    table.push_back(large(decode_case(dtype, {.heads = 8, .kv_heads = 2, .head_dim = 128, .window = 100},
                                      {900, 33}, 1, "long_window")));
    table.push_back(decode_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 24}, {40, 0, 7}, 1, "batch"));
    table.push_back(decode_case(dtype, {.heads = 9, .kv_heads = 1, .head_dim = 64}, {5, 70}, 17, "chunk"));
    table.push_back(
        large(decode_case(dtype, {.heads = 8, .kv_heads = 2, .head_dim = 128}, {900, 33}, 1, "long")));
    table.push_back(cross_entropy_case(dtype, 17, 100, 128, PenaltyKind::None, "plain"));
    table.push_back(cross_entropy_case(dtype, 1, 259, 259, PenaltyKind::None, "plain"));
    table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::ZLoss, "z"));
    table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::Entropy, "entropy"));
    table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::LogitL2, "l2"));
    table.push_back(large(cross_entropy_case(dtype, 300, 1000, 1024, PenaltyKind::None, "plain")));
    table.push_back(large(cross_entropy_case(dtype, 5, 20001, 20008, PenaltyKind::None, "long")));
    table.push_back(large(cross_entropy_case(dtype, 5, 16384, 16384, PenaltyKind::Entropy, "entropy_long")));
    table.push_back(large(cross_entropy_case(dtype, 5, 8195, 8195, PenaltyKind::LogitL2, "l2_long")));
    table.push_back(sums_case(dtype, 17, 100));
    table.push_back(large(sums_case(dtype, 1030, 384)));
  }
  return table;
}

}  // namespace octet::test
