#include "support/op_table_fp8.h"

#include <limits>

// FP8 by itself: casts, products and delayed scales. Codes, scales and slots have the same bits on every device.
namespace octet::test {

const char* name_of(Granularity granularity) {
  constexpr const char* kNames[] = {"Tensor", "Row128", "Block128", "Row32"};
  return kNames[static_cast<size_t>(granularity)];
}

std::string name_of(const QuantizeRule& rule) {
  return fmt::format("{}_{}_{}{}{}", name_of(rule.granularity), octet::name_of(rule.format_rowwise),
                     octet::name_of(rule.format_colwise), rule.delayed ? "_delayed" : "",
                     rule.pow2_scales ? "_pow2" : "");
}

Quantized Fp8Outputs::of(const Args& args) const {
  const auto tensor = [&](int i) { return i < 0 ? Tensor{} : args.out[static_cast<size_t>(i)]; };
  Quantized result(rule);
  result.slot = static_cast<ScaleSlot*>(tensor(slot).data);
  result.rowwise = {.codes = tensor(rowwise), .scales = tensor(row_scales), .granularity = rule.granularity};
  result.colwise = {.codes = tensor(colwise), .scales = tensor(col_scales), .granularity = rule.granularity};
  if (rule.granularity == Granularity::Tensor) {
    result.rowwise.tensor_scale = &result.slot->inverse_rowwise;
    result.colwise.tensor_scale = &result.slot->inverse_colwise;
  }
  return result;
}

std::vector<int> Fp8Outputs::all() const {
  std::vector<int> present;
  for (const int i : {rowwise, colwise, row_scales, col_scales, slot}) {
    if (i >= 0) present.push_back(i);
  }
  return present;
}

Fp8Outputs add_fp8(OpCase& op, const std::string& name, int64_t rows, int64_t cols, const QuantizeRule& rule,
                   Compare compare) {
  const auto add_scales = [&](const char* which, int64_t copy_rows, int64_t depth) {
    if (rule.granularity == Granularity::Tensor) return -1;
    const int64_t scale_rows = rule.granularity == Granularity::Block128 ? div_up(copy_rows, 128) : copy_rows;
    return op.add_output(name + which, rule.granularity == Granularity::Row32 ? DType::E8M0 : DType::F32,
                         {scale_rows, div_up(depth, block_depth(rule.granularity))}, compare);
  };
  Fp8Outputs result{.rule = rule};
  result.rowwise = op.add_output(name + " rowwise", rule.format_rowwise, {rows, cols}, compare);
  result.colwise = op.add_output(name + " colwise", rule.format_colwise, {cols, rows}, compare);
  result.row_scales = add_scales(" rowwise scales", rows, cols);
  result.col_scales = add_scales(" colwise scales", cols, rows);
  result.slot = op.add_output(name + " slot", DType::U8, {static_cast<int64_t>(sizeof(ScaleSlot))}, compare);
  return result;
}

namespace {

// Normal numbers with what is at the ends of the formats between them.
Fill awkward(int64_t count, DType dtype, uint64_t seed) {
  return [=](int64_t most) {
    std::vector<double> values = random_values(std::min(count, most), dtype, seed, 3.0);
    const double special[] = {0.0, -0.0, 1e-30, -1e-42, 448.0, -464.0, -57344.0, 61440.0};
    for (size_t i = 0; i < std::size(special) && 11 * i + 3 < values.size(); ++i)
      values[11 * i + 3] = round_to(dtype, special[i]);
    return values;
  };
}

}  // namespace

OpCase quantize_case(DType dtype, const QuantizeRule& rule, int64_t rows, int64_t cols) {
  OpCase op = start("quantize_" + name_of(rule), dtype, {rows, cols});
  op.needs.tokens = rows;
  op.needs.width = cols;
  op.bytes = bytes_for(dtype, rows * cols) + 2.0 * static_cast<double>(rows * cols);
  op.add_input("x", dtype, {rows, cols}, awkward(rows * cols, dtype, 1));
  op.add_input("slot", DType::U8, {sizeof(ScaleSlot)}, bytes_of(used_slot()));
  const Fp8Outputs x8 = add_fp8(op, "x", rows, cols, rule, Compare::Exact);
  op.prepare = [=](Device& device, Args& args) { device.copy(args.out[at(x8.slot)], args.in[1]); };
  op.forward = [=](Device& device, Args& args) {
    Quantized target = x8.of(args);
    device.ops().quantize({.dense = args.in[0], .fp8 = &target});
  };
  return op;
}

OpCase gemm_fp8_case(int64_t m, int64_t n, int64_t k, const Fp8GemmVariant& variant) {
  const auto [granularity_a, granularity_b, format_a, format_b, accumulate, bias, c_dtype, alpha] = variant;
  const std::string name =
      fmt::format("gemm_fp8_{}_{}_{}_{}{}{}{}_c", name_of(granularity_a), octet::name_of(format_a),
                  name_of(granularity_b), octet::name_of(format_b), accumulate ? "_add" : "",
                  bias ? "_bias" : "", alpha != 1.0f ? "_alpha" : "");
  OpCase op = start(name, c_dtype, {m, n, k});
  op.gemms = {{m, n, k}};
  op.needs.tokens = m;
  op.needs.width = std::max(n, k);
  op.tolerance = kFp8Product;
  op.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const DType bf16 = DType::BF16;
  op.add_input("a", bf16, {m, k}, normal(m * k, bf16, 1));
  op.add_input("b", bf16, {n, k}, normal(n * k, bf16, 2, 0.1));
  op.add_input("c_before", c_dtype, {m, n}, normal(m * n, c_dtype, 3));
  op.add_input("bias", bf16, {n}, normal(n, bf16, 4));
  op.add_output("c", c_dtype, {m, n}, false);
  const auto rule = [](Granularity granularity, DType format) {
    return QuantizeRule{.format_rowwise = format, .format_colwise = format, .granularity = granularity};
  };
  const Fp8Outputs a8 = add_fp8(op, "a", m, k, rule(granularity_a, format_a), Compare::Exact);
  const Fp8Outputs b8 = add_fp8(op, "b", n, k, rule(granularity_b, format_b), Compare::Exact);
  op.prepare = [=](Device& device, Args& args) {
    for (const auto& [outputs, dense] : {std::pair{a8, args.in[0]}, std::pair{b8, args.in[1]}}) {
      device.zero(args.out[at(outputs.slot)]);
      Quantized target = outputs.of(args);
      device.ops().quantize({.dense = dense, .fp8 = &target});
    }
    if (accumulate) device.copy(args.out[0], args.in[2]);
  };
  op.forward = [=](Device& device, Args& args) {
    GemmOptions options{.accumulate = accumulate, .alpha = alpha};
    if (bias) options.bias = args.in[3];
    device.ops().gemm_fp8(args.out[0], a8.of(args).rowwise, b8.of(args).rowwise, options);
  };
  return op;
}

OpCase delayed_scales_case(int64_t count, int64_t length, bool most_recent, bool due) {
  OpCase op = start(fmt::format("delayed_scales{}{}", most_recent ? "_recent" : "", due ? "" : "_not_due"),
                    DType::F32, {count, length});
  std::vector<double> slots, formats, history = random_values(count * length, DType::F32, 9);
  for (double& amax : history) amax = std::abs(amax);
  for (int64_t i = 0; i < count; ++i) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kAmax[] = {0.5f, 0.0f, kInfinity, std::numeric_limits<float>::quiet_NaN(), 1e-38f, 7.0f};
    ScaleSlot slot = used_slot();
    slot.amax = kAmax[static_cast<size_t>(i) % std::size(kAmax)];
    const std::vector<double> bytes = bytes_of(slot)(0);
    slots.insert(slots.end(), bytes.begin(), bytes.end());
    formats.push_back(static_cast<double>(i % 2 ? DType::E5M2 : DType::E4M3));
    formats.push_back(static_cast<double>(DType::E5M2));
  }
  const Shape slot_bytes{count * static_cast<int64_t>(sizeof(ScaleSlot))};
  op.bytes = 2 * bytes_for(DType::F32, count * length);
  op.add_input("slots", DType::U8, slot_bytes, fixed(slots));
  op.add_input("history", DType::F32, {count, length}, fixed(history));
  op.add_input("formats", DType::U8, {count, 2}, fixed(formats));
  op.add_output("slots", DType::U8, slot_bytes, Compare::Exact);
  op.add_output("history", DType::F32, {count, length}, Compare::Exact);
  op.prepare = [](Device& device, Args& args) {
    device.copy(args.out[0], args.in[0]);
    device.copy(args.out[1], args.in[1]);
  };
  op.forward = [=](Device& device, Args& args) {
    device.ops().update_delayed_scales({.slots = args.out[0],
                                        .history = args.out[1],
                                        .formats = args.in[2],
                                        .count = count,
                                        .margin = 1,
                                        .most_recent = most_recent,
                                        .due = due});
  };
  return op;
}

// ---- which cases there are ----

namespace {

constexpr Granularity kGranularities[] = {Granularity::Tensor, Granularity::Row128, Granularity::Block128,
                                          Granularity::Row32};

// Every granularity and pair of formats, with the ways to get a scale that it has.
std::vector<QuantizeRule> rules() {
  std::vector<QuantizeRule> result;
  for (const Granularity granularity : kGranularities) {
    for (const auto& [row, col] : {std::pair{DType::E4M3, DType::E4M3}, std::pair{DType::E5M2, DType::E5M2},
                                   std::pair{DType::E4M3, DType::E5M2}}) {
      QuantizeRule rule{.format_rowwise = row, .format_colwise = col, .granularity = granularity};
      result.push_back(rule);
      rule.delayed = granularity == Granularity::Tensor;
      rule.pow2_scales = granularity == Granularity::Row128 || granularity == Granularity::Block128;
      if (rule.delayed || rule.pow2_scales) result.push_back(rule);
    }
  }
  return result;
}

}  // namespace

void add_fp8(std::vector<OpCase>& table) {
  for (const QuantizeRule& rule : rules()) {
    table.push_back(quantize_case(DType::BF16, rule, 130, 272));
    table.push_back(quantize_case(DType::F32, rule, 37, 53));
  }
  // Aligned, so that they run natively where the library can, and not.
  for (const Granularity a : kGranularities) {
    for (const Granularity b : kGranularities) {
      table.push_back(gemm_fp8_case(128, 256, 384, {.a = a, .b = b, .bias = true}));
      table.push_back(gemm_fp8_case(17, 23, 50, {.a = a, .b = b, .accumulate = true, .c_dtype = DType::F32}));
    }
    table.push_back(gemm_fp8_case(
        64, 48, 1040, {.a = a, .b = a, .format_a = DType::E5M2, .accumulate = true, .c_dtype = DType::F32}));
    table.push_back(gemm_fp8_case(64, 48, 1040, {.a = a, .b = a, .format_b = DType::E5M2}));
  }
  for (const Granularity a : {Granularity::Tensor, Granularity::Row128}) {
    table.push_back(gemm_fp8_case(128, 256, 384, {.a = a, .b = a, .bias = true, .alpha = -0.75f}));
    table.push_back(gemm_fp8_case(
        17, 23, 50, {.a = a, .b = a, .accumulate = true, .c_dtype = DType::F32, .alpha = 2.5f}));
  }
  for (const int64_t length : {1, 4, 33, 70}) {
    table.push_back(delayed_scales_case(7, length, false, true));
    table.push_back(delayed_scales_case(7, length, true, true));
  }
  table.push_back(delayed_scales_case(7, 4, false, false));
}

}  // namespace octet::test
