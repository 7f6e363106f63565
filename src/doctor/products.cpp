#include "doctor/products.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/philox.h"
#include "model/linear.h"
#include "tensor/floats.h"

namespace octet {
namespace {

constexpr int kSamples = 8;  // rows and columns whose common elements are compared

// Tensors on a device that are freed together.
class Memory {
 public:
  explicit Memory(Device& device) : device_(device) {}
  Tensor tensor(DType dtype, Shape shape) {
    Tensor result{nullptr, dtype, shape};
    blocks_.push_back(device_.allocate(std::max<int64_t>(result.bytes(), 1)));
    result.data = blocks_.back().get();
    return result;
  }

 private:
  Device& device_;
  std::vector<std::shared_ptr<void>> blocks_;
};

// The three tensors of a Linear, in BF16 and in FP8.
class Operands {
 public:
  Operands(Device& device, const ProductShape& shape, const ProductOptions& options)
      : device_(device), memory_(device) {
    device.ops().set_workspace(memory_.tensor(DType::U8, {workspace_bytes(device, shape)}));
    const auto seed = static_cast<uint64_t>(options.seed);
    fill(input, shape.tokens, shape.in, 1.0f, seed, 0);
    fill(weight, shape.out, shape.in, 0.02f, seed, 1);
    fill(gradient, shape.tokens, shape.out, 1e-3f, seed, 2);
    quantize(input8, input, quantize_rule(options.fp8, Role::Input));
    quantize(weight8, weight, quantize_rule(options.fp8, Role::Weight));
    quantize(gradient8, gradient, quantize_rule(options.fp8, Role::Gradient));
    result_forward = memory_.tensor(DType::BF16, {shape.tokens, shape.out});
    result_dgrad = memory_.tensor(DType::BF16, {shape.tokens, shape.in});
    result_wgrad = memory_.tensor(DType::F32, {shape.out, shape.in});
  }

  Tensor input, weight, gradient;        // (tokens, in), (out, in), (tokens, out)
  Quantized input8, weight8, gradient8;  // with both copies
  Tensor result_forward, result_dgrad, result_wgrad;

 private:
  static int64_t workspace_bytes(Device& device, const ProductShape& s) {
    const WorkspaceNeeds::Gemm gemms[] = {
        {s.tokens, s.out, s.in}, {s.tokens, s.in, s.out}, {s.out, s.in, s.tokens}};
    return device.workspace_bytes({.gemms = gemms,
                                   .dtype = DType::BF16,
                                   .tokens = s.tokens,
                                   .width = std::max(s.out, s.in),
                                   .parameters = 1});
  }
  void fill(Tensor& tensor, int64_t rows, int64_t cols, float deviation, uint64_t seed, uint64_t stream) {
    tensor = memory_.tensor(DType::BF16, {rows, cols});
    device_.ops().fill_normal(tensor, {}, deviation, seed, stream);
  }
  QuantizedMatrix copy_of(const QuantizeRule& rule, DType format, int64_t rows, int64_t depth,
                          const float* tensor_scale) {
    QuantizedMatrix copy{.codes = memory_.tensor(format, {rows, depth}), .granularity = rule.granularity};
    if (rule.granularity == Granularity::Tensor) {
      copy.tensor_scale = tensor_scale;
    } else {
      copy.scales = memory_.tensor(rule.granularity == Granularity::Row32 ? DType::E8M0 : DType::F32,
                                   scales_shape(rule.granularity, rows, depth));
    }
    return copy;
  }
  // With scales from the values themselves: there is no history.
  void quantize(Quantized& to, Tensor from, const QuantizeRule& rule) {
    const Tensor slot = memory_.tensor(DType::U8, {static_cast<int64_t>(sizeof(ScaleSlot))});
    const ScaleSlot initial;
    device_.copy_to_device(slot, &initial);
    to = Quantized(rule);
    to.pass = &kScaleFromValues;
    to.slot = static_cast<ScaleSlot*>(slot.data);
    to.rowwise = copy_of(rule, rule.format_rowwise, from.rows(), from.cols(), &to.slot->inverse_rowwise);
    to.colwise = copy_of(rule, rule.format_colwise, from.cols(), from.rows(), &to.slot->inverse_colwise);
    device_.ops().quantize({.dense = from, .fp8 = &to});
  }

  Device& device_;
  Memory memory_;
};

// The values of some rows, on the host.
using Rows = std::vector<std::vector<double>>;

std::vector<int64_t> sampled(int64_t count, uint64_t seed) {
  std::vector<int64_t> rows;
  for (uint64_t i = 0; i < kSamples; ++i)
    rows.push_back(static_cast<int64_t>(Philox(seed, 77).bits(i) % static_cast<uint64_t>(count)));
  return rows;
}

double value_at(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::F32) return static_cast<const float*>(data)[at];
  return static_cast<double>(to_float(static_cast<const Bf16*>(data)[at]));
}

std::vector<std::byte> to_host(Device& device, Tensor tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  device.copy_to_host(bytes.data(), tensor);
  return bytes;
}

// Rows of a matrix, or with `transposed` its columns.
Rows dense_rows(Device& device, Tensor tensor, bool transposed, const std::vector<int64_t>& rows) {
  Rows result;
  if (!transposed) {
    for (const int64_t row : rows) {
      const std::vector<std::byte> bytes = to_host(device, tensor.row_range(row, 1));
      auto& values = result.emplace_back(static_cast<size_t>(tensor.cols()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = value_at(bytes.data(), tensor.dtype, static_cast<int64_t>(i));
    }
    return result;
  }
  const std::vector<std::byte> bytes = to_host(device, tensor);
  for (const int64_t column : rows) {
    auto& values = result.emplace_back(static_cast<size_t>(tensor.rows()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = value_at(bytes.data(), tensor.dtype, static_cast<int64_t>(i) * tensor.cols() + column);
  }
  return result;
}

// Rows of an FP8 matrix: codes times the scales of their blocks.
Rows quantized_rows(Device& device, const QuantizedMatrix& matrix, const ScaleSlot& slot, bool rowwise,
                    const std::vector<int64_t>& rows) {
  std::vector<std::byte> scales;
  if (matrix.scales) scales = to_host(device, matrix.scales);
  const auto scale = [&](int64_t row, int64_t column) -> double {
    if (matrix.granularity == Granularity::Tensor)
      return static_cast<double>(rowwise ? slot.inverse_rowwise : slot.inverse_colwise);
    const int64_t block_row = matrix.granularity == Granularity::Block128 ? row / 128 : row;
    const auto at =
        static_cast<size_t>(block_row * matrix.scales.cols() + column / block_depth(matrix.granularity));
    if (matrix.granularity == Granularity::Row32)
      return static_cast<double>(from_e8m0(static_cast<uint8_t>(scales[at])));
    return static_cast<double>(reinterpret_cast<const float*>(scales.data())[at]);
  };
  Rows result;
  for (const int64_t row : rows) {
    const std::vector<std::byte> codes = to_host(device, matrix.codes.row_range(row, 1));
    auto& values = result.emplace_back(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      values[i] = static_cast<double>(from_fp8(static_cast<uint8_t>(codes[i]), matrix.codes.dtype)) *
                  scale(row, static_cast<int64_t>(i));
    }
  }
  return result;
}

// The error of the sampled elements of c against a b^T.
double error_of(Device& device, Tensor c, const Rows& a, const Rows& b, const std::vector<int64_t>& rows,
                const std::vector<int64_t>& columns) {
  double squared_error = 0, squared = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<std::byte> bytes = to_host(device, c.row_range(rows[i], 1));
    for (size_t j = 0; j < columns.size(); ++j) {
      double sum = 0;
      for (size_t k = 0; k < a[i].size(); ++k) sum += a[i][k] * b[j][k];
      const double got = value_at(bytes.data(), c.dtype, columns[j]);
      squared_error += (got - sum) * (got - sum);
      squared += sum * sum;
    }
  }
  const double error = std::sqrt(squared_error / squared);
  return std::isfinite(error) ? error : INFINITY;
}

double median_ms(Device& device, const std::function<void()>& work) {
  constexpr int kRounds = 7;
  work();  // may choose an algorithm by timing several
  device.synchronize();
  const auto probe = Clock::now();
  work();
  device.synchronize();
  const int calls = std::clamp(static_cast<int>(0.004 / std::max(seconds_since(probe), 1e-6)), 1, 200);
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = Clock::now();
    for (int j = 0; j < calls; ++j) work();
    device.synchronize();
    rounds.push_back(1e3 * seconds_since(start) / calls);
  }
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
  return rounds[kRounds / 2];
}

// A product in both precisions: where its operands are, and how BF16 reads them.
struct Case {
  Product product;
  Tensor c, a, b;
  bool transpose_a, transpose_b;
  const Quantized *a8, *b8;
  bool a_rowwise, b_rowwise;
};

const QuantizedMatrix& copy_in(const Quantized& quantized, bool rowwise) {
  return rowwise ? quantized.rowwise : quantized.colwise;
}

ProductTrial try_case(Device& device, const Case& x, const ProductOptions& options) {
  const QuantizedMatrix &a8 = copy_in(*x.a8, x.a_rowwise), &b8 = copy_in(*x.b8, x.b_rowwise);
  ProductTrial trial{
      .product = x.product,
      .m = x.c.rows(),
      .n = x.c.cols(),
      .k = a8.codes.cols(),
      .fp8_kind = device.gemm_fp8_kind(x.c.rows(), x.c.cols(), a8.codes.cols(), a8.granularity,
                                       b8.granularity, a8.codes.dtype, b8.codes.dtype, x.c.dtype)};
  const GemmOptions dense{
      .transpose_a = x.transpose_a, .transpose_b = x.transpose_b, .part = static_cast<GemmPart>(x.product)};
  const GemmOptions fp8{.part = static_cast<GemmPart>(x.product)};
  const auto run_dense = [&] { device.ops().gemm(x.c, x.a, x.b, dense); };
  const auto run_fp8 = [&] { device.ops().gemm_fp8(x.c, a8, b8, fp8); };

  const auto seed = static_cast<uint64_t>(options.seed);
  const std::vector<int64_t> rows = sampled(trial.m, seed), columns = sampled(trial.n, seed + 1);
  const auto slot_of = [&](const Quantized& quantized) {
    ScaleSlot slot;
    device.copy_to_host(&slot, {quantized.slot, DType::U8, {static_cast<int64_t>(sizeof slot)}});
    return slot;
  };
  run_dense();
  trial.bf16.error = error_of(device, x.c, dense_rows(device, x.a, x.transpose_a, rows),
                              dense_rows(device, x.b, !x.transpose_b, columns), rows, columns);
  run_fp8();
  trial.fp8.error = error_of(device, x.c, quantized_rows(device, a8, slot_of(*x.a8), x.a_rowwise, rows),
                             quantized_rows(device, b8, slot_of(*x.b8), x.b_rowwise, columns), rows, columns);
  if (options.timed) {
    trial.bf16.ms = median_ms(device, run_dense);
    trial.fp8.ms = median_ms(device, run_fp8);
  }
  return trial;
}

}  // namespace

std::vector<ProductTrial> try_products(Device& device, const ProductShape& shape,
                                       const ProductOptions& options) {
  const Operands o(device, shape, options);
  const Case cases[] = {
      {Product::Forward, o.result_forward, o.input, o.weight, false, true, &o.input8, &o.weight8, true, true},
      {Product::Dgrad, o.result_dgrad, o.gradient, o.weight, false, false, &o.gradient8, &o.weight8, true,
       false},
      {Product::Wgrad, o.result_wgrad, o.gradient, o.input, true, false, &o.gradient8, &o.input8, false,
       false}};
  std::vector<ProductTrial> trials;
  for (const Case& x : cases) trials.push_back(try_case(device, x, options));
  return trials;
}

double sustain_product(Device& device, const ProductShape& shape, const ProductOptions& options,
                       double seconds, const std::function<void()>& look) {
  const Operands o(device, shape, options);
  const auto run = [&] { device.ops().gemm_fp8(o.result_forward, o.input8.rowwise, o.weight8.rowwise, {}); };
  const double once = 1e-3 * median_ms(device, run);
  constexpr int kLooks = 10;
  const int calls = std::max(1, static_cast<int>(seconds / kLooks / std::max(once, 1e-6)));
  const auto start = Clock::now();
  for (int i = 0; i < kLooks; ++i) {
    for (int j = 0; j < calls; ++j) run();
    look();  // the work is still going on
    device.synchronize();
  }
  const double flops = 2.0 * static_cast<double>(shape.tokens) * static_cast<double>(shape.out) *
                       static_cast<double>(shape.in) * calls * kLooks;
  return 1e-12 * flops / seconds_since(start);
}

}  // namespace octet
