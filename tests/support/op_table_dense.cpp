#include "base/error.h"
#include "support/op_table_detail.h"

// Products, embedding, norms and activations. References are plain loops in double, written for reading.
namespace octet::test {

OpCase gemm_case(DType dtype, int64_t m, int64_t n, int64_t k, GemmVariant variant) {
  const auto [ta, tb, accumulate, bias, c_dtype, alpha] = variant;
  const std::string name =
      fmt::format("gemm_{}{}{}{}{}_c{}", ta ? "t" : "n", tb ? "t" : "n", accumulate ? "_add" : "",
                  bias ? "_bias" : "", alpha != 1.0f ? "_alpha" : "", name_of(c_dtype));
  OpCase op = start(name, dtype, {m, n, k});
  op.gemms = {{m, n, k}};
  op.flops = 2.0 * static_cast<double>(m * n * k);
  op.add_input("a", dtype, ta ? Shape{k, m} : Shape{m, k}, normal(m * k, dtype, 1));
  op.add_input("b", dtype, tb ? Shape{n, k} : Shape{k, n}, normal(k * n, dtype, 2));
  op.add_input("c_before", c_dtype, {m, n}, normal(m * n, c_dtype, 3));
  op.add_input("bias", c_dtype, {n}, normal(n, c_dtype, 4));
  op.add_output("c", c_dtype, {m, n});
  if (accumulate) op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[2]); };
  op.forward = [=](Device& device, Args& args) {
    GemmOptions options{
        .transpose_a = ta, .transpose_b = tb, .accumulate = accumulate, .alpha = alpha, .bias = {}};
    if (bias) options.bias = args.in[3];
    device.ops().gemm(args.out[0], args.in[0], args.in[1], options);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> c(at(m * n));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = accumulate ? in[2][at(i * n + j)] : 0.0;
        if (bias) sum += in[3][at(j)];
        for (int64_t p = 0; p < k; ++p) {
          sum += static_cast<double>(alpha) * in[0][at(ta ? p * m + i : i * k + p)] *
                 in[1][at(tb ? j * k + p : p * n + j)];
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
  op.bytes = bytes_for(dtype, (has_positions ? 3 : 2) * rows * width);
  op.backward_bytes = bytes_for(dtype, 3 * rows * width);
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
    return [=](int64_t most) {
      std::vector<double> values = random_values(std::min(rows * width, most), dtype, seed, 1.0, offset);
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
  op.bytes = bytes_for(dtype, (has_delta ? 4 : 2) * rows * width);
  op.backward_bytes = bytes_for(dtype, 4 * rows * width);
  op.prepare = [=](Device& device, Args& args) {
    if (!has_delta) device.copy(args.out[1], args.in[0]);
    if (!layer_norm) device.zero(args.out[2]);
  };
  op.forward = [=](Device& device, Args& args) {
    device.ops().norm_forward(kind, operand(args.out[0]), has_delta ? args.out[1] : Tensor{},
                              layer_norm ? args.out[2] : Tensor{}, args.out[3], args.in[0],
                              has_delta ? args.in[1] : Tensor{}, args.in[2],
                              layer_norm ? args.in[3] : Tensor{}, epsilon);
  };
  // The gradient of the residual stream comes in through the buffer that backward adds to.
  op.prepare_backward = [](Device& device, Args& args) { device.copy(args.grad[0], args.upstream[1]); };
  op.backward = [=](Device& device, Args& args) {
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
  op.bytes = bytes_for(dtype, rows * (in_width + width));
  op.backward_bytes = bytes_for(dtype, rows * (2 * in_width + width));
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

// ---- which cases there are ----

void add_dense(std::vector<OpCase>& table, DType dtype) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true})
      table.push_back(gemm_case(dtype, 17, 24, 100, {ta, tb, false, false, dtype}));
  }
  table.push_back(gemm_case(dtype, 1, 259, 24, {false, true, false, true, dtype}));
  table.push_back(gemm_case(dtype, 3, 100, 17, {true, false, true, false, DType::F32}));
  table.push_back(gemm_case(dtype, 130, 70, 33, {false, true, true, true, dtype}));
  table.push_back(gemm_case(dtype, 24, 40, 17, {true, true, false, false, dtype, -0.75f}));
  table.push_back(gemm_case(dtype, 130, 72, 32, {false, true, true, true, dtype, 2.5f}));
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
}

}  // namespace octet::test
