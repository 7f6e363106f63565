#include <memory>
#include <numeric>

#include "support/op_table_detail.h"

// The ops that adapters add: narrow products of FP8 codes, transposed codes, rows by index, dropout.
namespace octet::test {
namespace {

// Codes of normal numbers, with zeros and the smallest ones between them.
Fill codes_of_normals(int64_t count, DType format, uint64_t seed) {
  return [=](int64_t most) {
    std::vector<double> codes = random_values(std::min(count, most), DType::F32, seed, 3.0);
    const bool e5m2 = format == DType::E5M2;
    constexpr uint8_t special[] = {0x00, 0x80, 0x01, 0x81};
    for (size_t i = 0; i < codes.size(); ++i) {
      const auto x = static_cast<float>(codes[i]);
      codes[i] = i % 29 == 7 ? special[i / 29 % std::size(special)] : e5m2 ? to_e5m2(x) : to_e4m3(x);
    }
    return codes;
  };
}

std::string suffix(bool flag, const char* text) {
  return flag ? text : "";
}

constexpr double kScale = 0.375;
constexpr float kAlpha = -1.5f;

// Timing reads another copy of x in every call, so that it comes from memory and not from the cache.
struct Copies {
  int64_t count = 1;
  std::shared_ptr<int64_t> next = std::make_shared<int64_t>(0);
  int64_t take() const { return (*next)++ % count; }
};

}  // namespace

// Backward is narrow_product_over_rows: it gives the gradient of w.
OpCase narrow_product_case(DType dtype, int64_t rows, int64_t depth, int64_t rank,
                           const NarrowVariant& variant) {
  const bool transpose = variant.transpose_w;
  const int64_t before = variant.strided ? 16 : 0, wide = std::max(variant.wide, depth + 2 * before);
  const int64_t u_before = variant.strided ? 8 : 0, u_wide = rank + 2 * u_before;
  const Copies copies{.count =
                          variant.timed ? std::max<int64_t>(1, (int64_t{300} << 20) / (rows * wide)) : 1};
  OpCase op =
      start(fmt::format("narrow_product_{}{}{}{}", octet::name_of(variant.format), suffix(transpose, "_t"),
                        suffix(variant.accumulate, "_add"), suffix(wide > depth, "_part")),
            dtype, {rows, depth, rank});
  op.needs.tokens = rows;
  op.needs.width = std::max(depth, rank);
  op.needs.narrow = true;
  const double operand_bytes = static_cast<double>(rows * depth) + bytes_for(dtype, rows * rank);
  op.bytes = operand_bytes + bytes_for(dtype, depth * rank);
  op.backward_bytes = operand_bytes + bytes_for(DType::F32, depth * rank);
  op.add_input("x", variant.format, {copies.count * rows, wide},
               codes_of_normals(copies.count * rows * wide, variant.format, 1));
  op.add_input("scale", DType::F32, {4}, fixed({kScale, 0, 0, 0}));
  const int w = op.add_gradient_input("w", dtype, transpose ? Shape{rank, depth} : Shape{depth, rank},
                                      normal(depth * rank, dtype, 2), variant.accumulate);
  op.inputs[at(w)].gradient_dtype = DType::F32;
  op.add_output("u", dtype, {rows, u_wide});
  const auto part_of_x = [=](const Args& args) {
    const QuantizedMatrix x{.codes = args.in[0], .tensor_scale = static_cast<const float*>(args.in[1].data)};
    return x.rows(copies.take() * rows, rows).columns(before, depth);
  };
  op.prepare = [](Device& device, Args& args) { device.zero(args.out[0]); };  // what lies around u
  op.forward = [=](Device& device, Args& args) {
    device.ops().narrow_product(Matrix(args.out[0]).columns(u_before, rank), part_of_x(args), args.in[2],
                                transpose, kAlpha);
  };
  op.backward = [=](Device& device, Args& args) {
    device.ops().narrow_product_over_rows(args.grad[2], part_of_x(args),
                                          Matrix(args.upstream[0]).columns(u_before, rank), transpose, kAlpha,
                                          variant.accumulate);
  };
  op.reference = [=](const Arrays& in) {
    const float* values = fp8_values(variant.format);
    std::vector<double> u(at(rows * u_wide));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < rank; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < depth; ++k) {
          const auto code = static_cast<size_t>(in[0][at(i * wide + before + k)]);
          sum += static_cast<double>(values[code]) * in[2][at(transpose ? j * depth + k : k * rank + j)];
        }
        u[at(i * u_wide + u_before + j)] = static_cast<double>(kAlpha) * kScale * sum;
      }
    }
    return Arrays{u};
  };
  return op;
}

OpCase dequantize_case(DType dtype, DType format, int64_t rows, int64_t cols, bool strided = false) {
  const int64_t before = strided ? 16 : 0, wide = cols + 2 * before;
  OpCase op = start(fmt::format("dequantize_{}{}", octet::name_of(format), suffix(strided, "_part")), dtype,
                    {rows, cols});
  op.bytes = static_cast<double>(rows * cols) + bytes_for(dtype, rows * cols);
  op.add_input("x", format, {rows, wide}, codes_of_normals(rows * wide, format, 1));
  op.add_input("scale", DType::F32, {4}, fixed({kScale, 0, 0, 0}));
  op.add_output("dense", dtype, {rows, cols}, Compare::Exact);
  op.forward = [=](Device& device, Args& args) {
    const QuantizedMatrix x{.codes = args.in[0], .tensor_scale = static_cast<const float*>(args.in[1].data)};
    device.ops().dequantize(args.out[0], x.columns(before, cols));
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> dense(at(rows * cols));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const auto code = static_cast<size_t>(in[0][at(i * wide + before + j)]);
        dense[at(i * cols + j)] = static_cast<double>(fp8_values(format)[code] * kScale);
      }
    }
    return Arrays{dense};
  };
  return op;
}

OpCase transpose_fp8_case(DType format, int64_t rows, int64_t cols, Granularity granularity) {
  OpCase op = start(fmt::format("transpose_fp8_{}", name_of(granularity)), format, {rows, cols});
  const int64_t down = div_up(rows, 128), across = div_up(cols, 128);
  op.bytes = 2.0 * static_cast<double>(rows * cols);
  op.add_input("x", format, {rows, cols}, [=](int64_t most) {
    return ids(std::min(rows * cols, most), 256, 1);  // every code, and NaN
  });
  op.add_input("scales", DType::F32, {down, across}, normal(down * across, DType::F32, 2));
  op.add_output("y", format, {cols, rows}, Compare::Exact);
  op.add_output("scales", DType::F32, {across, down}, Compare::Exact);
  op.prepare = [](Device& device, Args& args) { device.zero(args.out[1]); };
  op.forward = [=](Device& device, Args& args) {
    const QuantizedMatrix from{.codes = args.in[0], .scales = args.in[1], .granularity = granularity};
    const QuantizedMatrix to{.codes = args.out[0], .scales = args.out[1], .granularity = granularity};
    device.ops().transpose_fp8(to, from);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> y(at(rows * cols)), scales(at(down * across));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) y[at(c * rows + r)] = in[0][at(r * cols + c)];
    }
    for (int64_t r = 0; r < down && granularity == Granularity::Block128; ++r) {
      for (int64_t c = 0; c < across; ++c) scales[at(c * down + r)] = in[1][at(r * across + c)];
    }
    return Arrays{y, scales};
  };
  return op;
}

// Backward is scatter_rows: the gradient of the rows that were gathered.
OpCase gather_rows_case(DType dtype, int64_t count, int64_t rows, int64_t width) {
  OpCase op = start("gather_rows", dtype, {count, rows, width});
  // Every third place is filler, the others are rows in a mixed order: steps that have no divisor in common with the
  // number of rows.
  std::vector<double> places(at(count), -1.0);
  int64_t step = rows / 2 + 1;
  while (std::gcd(step, rows) != 1) ++step;
  for (int64_t i = 0, row = 3 % rows; i < count; ++i) {
    if (i % 3 == 1) continue;
    places[at(i)] = static_cast<double>(row);
    row = (row + step) % rows;
  }
  op.needs.tokens = rows;
  op.needs.width = width;
  op.bytes = bytes_for(dtype, 2 * count * width);
  op.backward_bytes = bytes_for(dtype, (count + rows) * width);
  op.add_gradient_input("from", dtype, {rows, width}, normal(rows * width, dtype, 1), false);
  op.add_input("rows", DType::I32, {count}, fixed(places));
  op.add_output("to", dtype, {count, width});
  op.outputs[0].compare = Compare::Exact;
  op.forward = [](Device& device, Args& args) {
    device.ops().gather_rows(args.out[0], args.in[0], args.in[1]);
  };
  op.backward = [](Device& device, Args& args) {
    device.ops().scatter_rows(args.grad[0], args.upstream[0], args.in[1]);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> to(at(count * width));
    for (int64_t i = 0; i < count; ++i) {
      const auto row = static_cast<int64_t>(in[1][at(i)]);
      for (int64_t c = 0; c < width && row >= 0; ++c) to[at(i * width + c)] = in[0][at(row * width + c)];
    }
    return Arrays{to};
  };
  return op;
}

// Backward is add_to_rows: the gradient of the rows that were added.
OpCase scaled_rows_case(DType dtype, DType gradient, int64_t count, int64_t rows, int64_t width) {
  OpCase op = start("scaled_rows_" + std::string(name_of(gradient)), dtype, {count, rows, width});
  // Some places are empty, and the others are few different rows, so that a row gets many summands.
  std::vector<double> places = ids(count, rows + 1, 3);
  for (double& place : places) place = place >= static_cast<double>(rows) / 2 && rows > 2 ? 1.0 : place - 1.0;
  op.needs.tokens = std::max(rows, count);
  op.needs.width = width;
  op.bytes = bytes_for(dtype, 3 * count * width);
  op.backward_bytes = bytes_for(dtype, (count + rows) * width);
  op.add_gradient_input("from", dtype, {rows, width}, normal(rows * width, dtype, 1), true);
  op.inputs.back().gradient_dtype = gradient;
  op.add_input("to_before", dtype, {count, width}, normal(count * width, dtype, 2));
  op.add_input("rows", DType::I32, {count}, fixed(places));
  op.add_input("factors", DType::F32, {count}, normal(count, DType::F32, 4));
  op.add_output("to", dtype, {count, width});
  op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[1]); };
  op.forward = [](Device& device, Args& args) {
    device.ops().add_scaled_rows(args.out[0], args.in[0], args.in[2], args.in[3]);
  };
  op.backward = [](Device& device, Args& args) {
    device.ops().add_to_rows(args.grad[0], args.upstream[0], args.in[2], args.in[3]);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> to = in[1];
    for (int64_t i = 0; i < count; ++i) {
      const auto row = static_cast<int64_t>(in[2][at(i)]);
      for (int64_t c = 0; c < width && row >= 0; ++c)
        to[at(i * width + c)] += in[3][at(i)] * in[0][at(row * width + c)];
    }
    return Arrays{to};
  };
  return op;
}

OpCase outer_case(DType dtype, int64_t rows, int64_t width, bool with_column) {
  OpCase op = start(with_column ? "outer" : "outer_ones", dtype, {rows, width});
  op.needs.tokens = rows;
  op.needs.width = width;
  op.bytes = bytes_for(dtype, 2 * rows * width);
  op.add_input("to_before", dtype, {rows, width}, normal(rows * width, dtype, 1));
  op.add_input("column", DType::F32, {rows}, normal(rows, DType::F32, 2));
  op.add_input("row", DType::F32, {width}, normal(width, DType::F32, 3));
  op.add_output("to", dtype, {rows, width});
  op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[0]); };
  op.forward = [=](Device& device, Args& args) {
    device.ops().add_outer(args.out[0], with_column ? args.in[1] : Tensor{}, args.in[2], -0.75f);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> to = in[0];
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < width; ++c)
        to[at(i * width + c)] -= 0.75 * (with_column ? in[1][at(i)] : 1.0) * in[2][at(c)];
    }
    return Arrays{to};
  };
  return op;
}

// Every second row has a target. The bits are the same on every device; what the noise does is tested in
// adapter_ops_test.cpp.
OpCase shift_rows_case(DType dtype, int64_t rows, int64_t width) {
  OpCase op = start("shift_rows", dtype, {rows, width});
  op.needs.tokens = rows;
  op.needs.width = width;
  op.bytes = bytes_for(dtype, 2 * rows * width);
  std::vector<double> targets(at(rows));
  for (int64_t i = 0; i < rows; ++i) targets[at(i)] = i % 2 == 0 ? static_cast<double>(i) : -1.0;
  op.add_input("to_before", dtype, {rows, width}, normal(rows * width, dtype, 1));
  op.add_input("row", DType::F32, {width}, normal(width, DType::F32, 2));
  op.add_input("targets", DType::I32, {rows}, fixed(targets));
  op.add_output("to", dtype, {rows, width});
  op.outputs[0].compare = Compare::Exact;
  op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[0]); };
  op.forward = [](Device& device, Args& args) {
    device.ops().shift_rows(args.out[0], args.in[1], args.in[2], -0.75f);
  };
  if (dtype != DType::F32) return op;
  op.reference = [=](const Arrays& in) {
    std::vector<double> to = in[0];
    for (int64_t i = 0; i < rows; i += 2) {
      for (int64_t c = 0; c < width; ++c) to[at(i * width + c)] -= 0.75 * in[1][at(c)];
    }
    return Arrays{to};
  };
  return op;
}

// Backward is dropout of the gradient, with the same bits.
OpCase dropout_case(DType dtype, int64_t rows, int64_t width, float probability, bool accumulate) {
  OpCase op = start(accumulate ? "dropout_add" : "dropout", dtype, {rows, width});
  op.name += fmt::format("_{:.0f}", static_cast<double>(100 * probability));
  constexpr uint64_t kSeed = 0xFEDCBA9876543210u, kStream = 12345678901234567u;
  const auto word = [](uint64_t bits) { return static_cast<double>(static_cast<int32_t>(bits)); };
  const int64_t count = rows * width;
  op.bytes = op.backward_bytes = bytes_for(dtype, (accumulate ? 3 : 2) * count);
  op.add_gradient_input("x", dtype, {rows, width}, normal(count, dtype, 1), accumulate);
  op.add_input("y_before", dtype, {rows, width}, normal(count, dtype, 2));
  op.add_input("seed", DType::I32, {2}, fixed({word(kSeed & 0xFFFFFFFFu), word(kSeed >> 32)}));
  op.add_output("y", dtype, {rows, width});
  op.outputs[0].compare = Compare::Exact;
  if (accumulate) op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[1]); };
  op.forward = [=](Device& device, Args& args) {
    device.ops().dropout(args.out[0], args.in[0], probability, args.in[2], kStream, accumulate);
  };
  op.backward = [=](Device& device, Args& args) {
    device.ops().dropout(args.grad[0], args.upstream[0], probability, args.in[2], kStream, accumulate);
  };
  op.reference = [=](const Arrays& in) {
    const Philox random(kSeed, kStream);
    std::vector<double> y(at(count));
    for (size_t i = 0; i < y.size(); ++i) {
      const bool kept = random.uniform(i) >= probability;
      y[i] =
          (kept ? in[0][i] / (1.0 - static_cast<double>(probability)) : 0.0) + (accumulate ? in[1][i] : 0.0);
    }
    return Arrays{y};
  };
  return op;
}

// ---- which cases there are ----

void add_adapters(std::vector<OpCase>& table) {
  const DType bf16 = DType::BF16, fp32 = DType::F32, e4m3 = DType::E4M3, e5m2 = DType::E5M2;
  for (const DType dtype : {fp32, bf16}) {
    for (const bool transpose : {false, true}) {
      // Whole vectors and not, a single column, a part of x, results that are added to.
      table.push_back(narrow_product_case(dtype, 17, 64, 8, {.transpose_w = transpose}));
      table.push_back(narrow_product_case(dtype, 9, 50, 5, {.transpose_w = transpose, .accumulate = true}));
      table.push_back(
          narrow_product_case(dtype, 33, 48, 1, {.transpose_w = transpose, .strided = true, .format = e5m2}));
    }
    table.push_back(gather_rows_case(dtype, 17, 40, 24));
    table.push_back(gather_rows_case(dtype, 5, 3, 7));
    table.push_back(large(gather_rows_case(dtype, 300, 700, 384)));
    for (const DType gradient : {DType::F32, DType::BF16}) {
      if (size_of(gradient) < size_of(dtype)) continue;
      table.push_back(scaled_rows_case(dtype, gradient, 17, 40, 24));
      table.push_back(scaled_rows_case(dtype, gradient, 5, 3, 7));
    }
    table.push_back(large(scaled_rows_case(dtype, DType::F32, 700, 300, 384)));
    table.push_back(outer_case(dtype, 17, 24, true));
    table.push_back(outer_case(dtype, 5, 7, false));
    table.push_back(large(outer_case(dtype, 700, 384, true)));
    table.push_back(shift_rows_case(dtype, 17, 24));
    table.push_back(shift_rows_case(dtype, 5, 7));
    table.push_back(large(shift_rows_case(dtype, 700, 392)));
    table.push_back(dropout_case(dtype, 17, 24, 0.25f, false));
    table.push_back(dropout_case(dtype, 3, 7, 0.5f, true));
    table.push_back(dropout_case(dtype, 3, 8, 0.0f, false));
    table.push_back(large(dropout_case(dtype, 300, 384, 0.1f, true)));
  }
  struct Sizes {
    int64_t rows, depth, rank;
  };
  // Ranks and depths of all kinds; rows that are not a whole number of tiles. The GPU reduces in parts: narrow_product
  // in 1, 2, 4 and 8, for 64, 272, 528 and 1040 columns, and narrow_product_over_rows in 1, 2, 4, 8 and 16, for 300,
  // 600, 1100, 3000 and 5000 rows.
  constexpr Sizes kSizes[] = {{300, 64, 1},    {130, 4112, 8},  {257, 4112, 16}, {129, 272, 24},
                              {300, 528, 48},  {200, 1040, 64}, {70, 2064, 90},  {100, 400, 128},
                              {140, 400, 192}, {150, 272, 512}, {600, 144, 16},  {1100, 80, 40}};
  int number = 0;
  for (const auto& [rows, depth, rank] : kSizes) {
    for (const bool transpose : {false, true}) {
      const NarrowVariant variant{.transpose_w = transpose,
                                  .accumulate = number % 3 == 1,
                                  .strided = number % 4 >= 2,
                                  .format = number % 2 == 0 ? e4m3 : e5m2};
      table.push_back(large(narrow_product_case(bf16, rows, depth, rank, variant)));
      ++number;
    }
  }
  table.push_back(large(narrow_product_case(bf16, 3000, 256, 12, {.accumulate = true})));
  table.push_back(large(narrow_product_case(bf16, 5000, 64, 16, {.transpose_w = true})));
  table.push_back(large(narrow_product_case(fp32, 130, 272, 48, {.strided = true})));
  for (const DType format : {e4m3, e5m2}) {
    table.push_back(transpose_fp8_case(format, 37, 53, Granularity::Tensor));
    for (const DType dtype : {bf16, fp32}) {
      table.push_back(dequantize_case(dtype, format, 37, 53));
      table.push_back(dequantize_case(dtype, format, 40, 272, true));
    }
    table.push_back(transpose_fp8_case(format, 400, 272, Granularity::Tensor));
    table.push_back(transpose_fp8_case(format, 400, 272, Granularity::Block128));
    table.push_back(transpose_fp8_case(format, 130, 257, Granularity::Block128));
  }
}

void add_model_adapters(std::vector<OpCase>& table) {
  const DType bf16 = DType::BF16, e5m2 = DType::E5M2;
  struct Sizes {
    int64_t rows, depth, rank, wide = 0;
  };
  // x A^T of Llama-3.1 8B: q, k and v together, output, gate and up together, down; of rank 16 and 64. Then 70B and 1B.
  for (const auto& [rows, depth, rank, wide] : {Sizes{8192, 4096, 48},
                                                {8192, 4096, 16},
                                                {8192, 4096, 32},
                                                {8192, 14336, 16},
                                                {8192, 4096, 192},
                                                {8192, 4096, 64},
                                                {8192, 4096, 128},
                                                {8192, 14336, 64},
                                                {4096, 8192, 48},
                                                {4096, 8192, 32},
                                                {4096, 28672, 16},
                                                {16384, 2048, 48},
                                                {16384, 8192, 16}}) {
    table.push_back(narrow_product_case(bf16, rows, depth, rank, {.transpose_w = true, .timed = true}));
  }
  // dy B, of parts of fused gradients.
  for (const auto& [rows, depth, rank, wide] : {Sizes{8192, 4096, 16, 6144},
                                                {8192, 1024, 16, 6144},
                                                {8192, 14336, 16, 28672},
                                                {8192, 4096, 16},
                                                {8192, 4096, 64, 6144},
                                                {8192, 1024, 64, 6144},
                                                {8192, 14336, 64, 28672},
                                                {4096, 8192, 16, 10240},
                                                {4096, 28672, 16, 57344},
                                                {16384, 2048, 16, 3072}}) {
    table.push_back(narrow_product_case(bf16, rows, depth, rank,
                                        {.accumulate = true, .format = e5m2, .wide = wide, .timed = true}));
  }
  table.push_back(transpose_fp8_case(DType::E4M3, 28672, 4096, Granularity::Tensor));
  table.push_back(dequantize_case(bf16, DType::E4M3, 8192, 14336));
  table.push_back(transpose_fp8_case(DType::E4M3, 57344, 8192, Granularity::Tensor));
  table.push_back(gather_rows_case(bf16, 6000, 8192, 4096));
  table.push_back(dropout_case(bf16, 8192, 4096, 0.1f, false));
  table.push_back(dropout_case(bf16, 8192, 4096, 0.1f, true));
  table.push_back(adapters_adamw_case(32));
}

}  // namespace octet::test
