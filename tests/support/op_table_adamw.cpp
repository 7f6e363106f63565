#include "ops/stochastic.h"
#include "support/op_table_fp8.h"

// AdamW: every bit of the state is the same on every device.
namespace octet::test {
namespace {

// Whole numbers below `bound`, from `least` on: codes and remainders.
Fill codes(int64_t count, int64_t least, int64_t bound, uint64_t seed) {
  return [=](int64_t most) {
    std::vector<double> values = ids(std::min(count, most), bound - least, seed);
    for (double& value : values) value += static_cast<double>(least);
    return values;
  };
}

Fill magnitudes(int64_t count, DType dtype, uint64_t seed, double scale) {
  return [=](int64_t most) {
    std::vector<double> values = random_values(std::min(count, most), dtype, seed, scale);
    for (double& value : values) value = std::abs(value);
    return values;
  };
}

// Over many powers of two, some so small that their squares are denormal or nothing, and zeros.
Fill gradients(int64_t count, DType dtype) {
  return [=](int64_t most) {
    std::vector<double> values = random_values(std::min(count, most), dtype, 2);
    for (size_t i = 0; i < values.size(); ++i) {
      const int exponent = i % 577 == 5  ? 75
                           : i % 41 == 7 ? 60 + static_cast<int>(i % 53)
                                         : static_cast<int>(i % 23);
      values[i] = i % 300 < 40 ? 0.0 : round_to(dtype, std::ldexp(values[i], -exponent));
    }
    return values;
  };
}

}  // namespace

OpCase adamw_case(int64_t rows, int64_t cols, const AdamWVariant& variant) {
  const bool small = variant.moments == DType::E4M3, bf16 = variant.weight == DType::BF16;
  const bool compact = variant.remainder == RemainderKind::Compact;
  const std::string kind = !bf16                                       ? ""
                           : variant.remainder == RemainderKind::Exact ? "_exact"
                           : compact                                   ? "_compact"
                                                                       : "_stochastic";
  OpCase op = start(fmt::format("adamw{}_g{}_m{}{}{}{}", kind, octet::name_of(variant.gradient),
                                octet::name_of(variant.moments), variant.fp8 ? "_fp8" : "",
                                variant.finite ? "" : "_skipped", variant.rate_scale != 1.0f ? "_rate" : ""),
                    variant.weight, {rows, cols});
  const int64_t count = rows * cols;
  const Shape shape{rows, cols}, scales{rows, div_up(cols, 128)};
  op.needs.tokens = rows;
  op.needs.width = cols;
  op.needs.parameters = 1;
  op.add_input("gradient", variant.gradient, shape, gradients(count, variant.gradient));
  op.add_input("clip", DType::F32, {2}, fixed({variant.finite ? 3.0 : NAN, 0.7}));
  // The state: what is at out[i] starts as in[first + i].
  const size_t first = op.inputs.size();
  const auto add_state = [&](const char* name, DType dtype, const Shape& of, Fill fill) {
    op.bytes += 2 * bytes_for(dtype, of.numel());
    op.add_input(name, dtype, of, std::move(fill));
    return op.add_output(name, dtype, of, Compare::Exact);
  };
  const int weight = add_state("weight", variant.weight, shape, normal(count, variant.weight, 1));
  const int m = add_state("m", variant.moments, shape,
                          small ? codes(count, 0, 120, 3) : normal(count, variant.moments, 3, 0.1));
  const int v = add_state("v", dtype_of_v(variant.moments), shape,
                          small ? codes(count, 0, 256, 4) : magnitudes(count, variant.moments, 4, 0.01));
  int remainder = -1, m_scales = -1, v_scales = -1;
  if (variant.remainder == RemainderKind::Exact)
    remainder = add_state("remainder", DType::U16, shape, codes(count, 0, 65536, 5));
  if (compact) {
    const Shape pairs{rows, compact_row_bytes(cols)};
    remainder = add_state("remainder", DType::U8, pairs, codes(pairs.numel(), 0, 256, 5));
  }
  if (small) {
    m_scales = add_state("m scales", DType::F32, scales, magnitudes(scales.numel(), DType::F32, 6, 1e-3));
    v_scales = add_state("v scales", DType::F32, scales, magnitudes(scales.numel(), DType::F32, 7, 1e-3));
  }
  Fp8Outputs w8;
  if (variant.fp8) {
    op.add_input("slot", DType::U8, {sizeof(ScaleSlot)}, bytes_of(used_slot(37.5f, 37.5f)));
    w8 = add_fp8(op, "fp8", rows, cols, {.delayed = true}, Compare::Exact);
    op.bytes += 2.0 * static_cast<double>(count);
  }
  op.bytes += bytes_for(variant.gradient, count);
  const size_t states = static_cast<size_t>(std::max({weight, m, v, remainder, v_scales})) + 1;
  op.prepare = [=](Device& device, Args& args) {
    for (size_t i = 0; i < states; ++i) device.copy(args.out[i], args.in[first + i]);
    if (w8.slot >= 0) device.copy(args.out[at(w8.slot)], args.in.back());
  };
  op.forward = [=](Device& device, Args& args) {
    const auto state = [&](int i) { return i < 0 ? Tensor{} : args.out[at(i)]; };
    Quantized copies;
    if (w8.slot >= 0) copies = w8.of(args);
    const AdamWParameter parameter{.weight = state(weight),
                                   .remainder = state(remainder),
                                   .gradient = args.in[0],
                                   .m = state(m),
                                   .v = state(v),
                                   .m_scales = state(m_scales),
                                   .v_scales = state(v_scales),
                                   .weight_decay = 0.1f,
                                   .learning_rate_scale = variant.rate_scale,
                                   .stream = 77,
                                   .first_row = 6,
                                   .fp8 = w8.slot >= 0 ? &copies : nullptr};
    device.ops().adamw(std::span(&parameter, 1), args.in[1], {.learning_rate = 3e-3f, .step = 3, .seed = 5});
  };
  return op;
}

OpCase adapters_adamw_case(int64_t layers) {
  // The sizes of a layer: q, k, v, output, gate, up, down.
  constexpr std::pair<int64_t, int64_t> kInOut[] = {{4096, 4096},  {4096, 1024},  {4096, 1024}, {4096, 4096},
                                                    {4096, 14336}, {4096, 14336}, {14336, 4096}};
  constexpr int64_t kRank = 16;
  struct Part {
    int64_t begin;
    Shape shape;
    float rate_scale;
  };
  std::vector<Part> parts;
  int64_t count = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const auto& [in, out] : kInOut) {
      parts.push_back({count, {kRank, in}, 1.0f});
      count += kRank * in;
      parts.push_back({count, {out, kRank}, 16.0f});
      count += out * kRank;
    }
  }
  OpCase op = start("adamw_adapters", DType::F32, {layers});
  op.needs.parameters = std::ssize(parts);
  op.bytes = bytes_for(DType::F32, 7 * count);
  op.add_input("gradient", DType::F32, {count}, gradients(count, DType::F32));
  op.add_input("clip", DType::F32, {2}, fixed({3.0, 0.7}));
  op.add_input("weight", DType::F32, {count}, normal(count, DType::F32, 1));
  op.add_input("m", DType::F32, {count}, normal(count, DType::F32, 3, 0.1));
  op.add_input("v", DType::F32, {count}, magnitudes(count, DType::F32, 4, 0.01));
  for (const char* name : {"weight", "m", "v"}) op.add_output(name, DType::F32, {count}, Compare::Exact);
  op.prepare = [](Device& device, Args& args) {
    for (size_t i = 0; i < 3; ++i) device.copy(args.out[i], args.in[i + 2]);
  };
  op.forward = [=](Device& device, Args& args) {
    std::vector<AdamWParameter> parameters;
    for (const Part& part : parts) {
      const auto view = [&](const Tensor& whole) {
        return Tensor{static_cast<float*>(whole.data) + part.begin, DType::F32, part.shape};
      };
      parameters.push_back({.weight = view(args.out[0]),
                            .gradient = view(args.in[0]),
                            .m = view(args.out[1]),
                            .v = view(args.out[2]),
                            .weight_decay = 0.1f,
                            .learning_rate_scale = part.rate_scale});
    }
    device.ops().adamw(parameters, args.in[1], {.learning_rate = 3e-3f, .step = 3, .seed = 5});
  };
  return op;
}

// ---- which cases there are ----

void add_adamw(std::vector<OpCase>& table) {
  const DType bf16 = DType::BF16, fp32 = DType::F32, e4m3 = DType::E4M3;
  for (const DType moments : {fp32, bf16, e4m3}) {
    table.push_back(adamw_case(17, 100, {.weight = fp32, .moments = moments}));
    for (const RemainderKind remainder :
         {RemainderKind::Exact, RemainderKind::Compact, RemainderKind::None}) {
      for (const DType gradient : {fp32, bf16}) {
        const AdamWVariant variant{
            .remainder = remainder, .gradient = gradient, .moments = moments, .fp8 = true};
        table.push_back(adamw_case(130, 136, variant));
        table.push_back(adamw_case(33, 77, variant));
      }
    }
    table.push_back(adamw_case(
        130, 136, {.remainder = RemainderKind::Exact, .moments = moments, .fp8 = true, .finite = false}));
    table.push_back(adamw_case(
        130, 136, {.remainder = RemainderKind::Compact, .moments = moments, .fp8 = true, .finite = false}));
  }
  // Adapters have few rows or columns, and matrices may have learning rates of their own.
  for (const auto& [rows, cols] : {std::pair{16, 264}, {264, 16}, {5, 128}, {3, 40}}) {
    table.push_back(adamw_case(rows, cols, {.weight = fp32, .rate_scale = 16}));
    table.push_back(
        adamw_case(rows, cols, {.remainder = RemainderKind::Exact, .moments = bf16, .rate_scale = 0.3f}));
    table.push_back(adamw_case(rows, cols, {.remainder = RemainderKind::Compact, .moments = e4m3}));
    table.push_back(adamw_case(rows, cols, {.gradient = bf16, .moments = e4m3, .rate_scale = 16}));
  }
  // Bytes of nibbles that a row does not fill.
  for (const auto& [rows, cols] : {std::pair{3, 1}, {2, 129}, {1, 15}})
    table.push_back(adamw_case(rows, cols, {.remainder = RemainderKind::Compact, .moments = e4m3}));
  table.push_back(adapters_adamw_case(1));
}

}  // namespace octet::test
