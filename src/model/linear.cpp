#include "model/linear.h"

#include <algorithm>

namespace octet {

Shape scales_shape(Granularity granularity, int64_t rows, int64_t depth) {
  switch (granularity) {
    case Granularity::Tensor:
      return {};
    case Granularity::Block128:
      return {div_up(rows, 128), div_up(depth, 128)};
    case Granularity::Row128:
    case Granularity::Row32:
      return {rows, div_up(depth, block_depth(granularity))};
  }
  return {};
}

DType scales_dtype(Granularity granularity) {
  return granularity == Granularity::Row32 ? DType::E8M0 : DType::F32;
}

namespace {

// Plans one copy of a quantised tensor in its own memory.
void plan_matrix(BufferPlanner& planner, QuantizedMatrix& matrix, const std::string& name, DType format,
                 Granularity granularity, int64_t rows, int64_t depth, MemoryCategory category,
                 Lifetime lifetime) {
  matrix.granularity = granularity;
  planner.add(matrix.codes, name, format, {rows, depth}, category, lifetime);
  const Shape scales = scales_shape(granularity, rows, depth);
  if (scales.rank() > 0) {
    planner.add(matrix.scales, name + ".scales", scales_dtype(granularity), scales, category, lifetime);
  }
}

// Places one copy of a quantised tensor in shared memory.
void alias_matrix(BufferPlanner& planner, QuantizedMatrix& matrix, const Tensor& codes,
                  const Tensor& scales_base, DType format, Granularity granularity, int64_t rows,
                  int64_t depth) {
  matrix.granularity = granularity;
  planner.alias(matrix.codes, codes, format, {rows, depth});
  const Shape scales = scales_shape(granularity, rows, depth);
  if (scales.rank() > 0) planner.alias(matrix.scales, scales_base, scales_dtype(granularity), scales);
}

// Rows [begin, begin + rows); whole blocks where there are blocks of rows.
QuantizedMatrix row_range(const QuantizedMatrix& matrix, int64_t begin, int64_t rows) {
  QuantizedMatrix result = matrix;
  result.codes = matrix.codes.row_range(begin, rows);
  if (matrix.granularity == Granularity::Block128)
    result.scales = matrix.scales.row_range(begin / 128, div_up(rows, 128));
  return result;
}

QuantizedMatrix first_rows(const QuantizedMatrix& matrix, int64_t rows, bool rows_are_depth) {
  QuantizedMatrix result = matrix;
  if (!matrix) return result;
  const int64_t r = rows_are_depth ? matrix.codes.rows() : rows;
  const int64_t depth = rows_are_depth ? rows : matrix.codes.cols();
  result.codes.shape = {r, depth};
  if (matrix.scales) result.scales.shape = scales_shape(matrix.granularity, r, depth);
  return result;
}

}  // namespace

Quantized with_rows(const Quantized& quantized, int64_t rows) {
  Quantized result = quantized;
  result.rowwise = first_rows(quantized.rowwise, rows, false);
  result.colwise = first_rows(quantized.colwise, rows, true);
  return result;
}

Linear::Linear(LinearSite site, LinearChoice choice, Parameter& weight, Parameter* bias)
    : site_(std::move(site)), choice_(std::move(choice)), weight_(&weight), bias_(bias) {}

// Up to here, products read codes. At rank 16 that is fast, at rank 64 dense products are faster (bench/RESULTS.md). The
// border between them is a choice.
constexpr int64_t kNarrowInputRanks = 48;     // of all parts
constexpr int64_t kNarrowGradientRanks = 32;  // of one part

bool Linear::adapter_keeps_input_codes() const {
  return adapter_ && !adapter_drops_ && !adapter_dense_input_ && fp8(Product::Forward) && !has_dense() &&
         input8_.rule().granularity == Granularity::Tensor;
}

bool Linear::adapter_reads_input_codes() const {
  return adapter_keeps_input_codes() && adapter_.ranks() <= kNarrowInputRanks;
}

bool Linear::adapter_reads_gradient_codes() const {
  return adapter_ && fp8(Product::Dgrad) && gradient8_.rule().granularity == Granularity::Tensor &&
         std::ranges::all_of(adapter_.parts(),
                             [](const LowRank::Part& part) { return part.rank <= kNarrowGradientRanks; });
}

void Linear::plan(BufferPlanner& planner, ScaleTable& scales, bool training, WeightCopies copies) {
  require(has_dense() || (fp8(Product::Forward) && (fp8(Product::Dgrad) || !training)),
          "[model] {} has no dense weight and cannot run in FP8 alone", site_.name);
  if (!choice_.any_fp8()) return;
  const Fp8Config fp8_settings = settings_of(site_, scales.config());
  input8_ = Quantized(quantize_rule(fp8_settings, Role::Input));
  weight8_ = Quantized(quantize_rule(fp8_settings, Role::Weight));
  gradient8_ = Quantized(quantize_rule(fp8_settings, Role::Gradient));
  input_slot_ = scales.add(site_.name + ".input", input8_.rule());
  weight_slot_ = scales.add(site_.name + ".weight", weight8_.rule());
  gradient_slot_ = scales.add(site_.name + ".gradient", gradient8_.rule());

  const QuantizeRule& rule = weight8_.rule();
  const std::string name = weight_->spec.name + ".fp8";
  const bool per_layer = weight_->storage.residency == Residency::PerLayer;
  if (sends_codes()) {
    plan_codes(planner);
  } else if (per_layer) {
    // Placed by attach_per_layer.
  } else if (fp8(Product::Forward)) {
    plan_matrix(planner, weight8_.rowwise, name, rule.format_rowwise, rule.granularity, site_.out, site_.in,
                MemoryCategory::Weights, Lifetime::always());
  }
  // The transpose of blocks along rows has other blocks, so both copies are kept.
  const bool codes_suffice =
      fp8(Product::Forward) && fp8(Product::Dgrad) && rule.granularity != Granularity::Row32;
  const bool one_copy = per_layer ? sends_codes() : copies == WeightCopies::One;
  transposes_ = one_copy && training && codes_suffice;
  if (fp8(Product::Dgrad) && training && !transposes_ && !per_layer) {
    plan_matrix(planner, weight8_.colwise, name + "_transposed", rule.format_colwise, rule.granularity,
                site_.in, site_.out, MemoryCategory::Weights, Lifetime::always());
  }
}

// The codes of this rank lie in their place among those of all ranks, or apart if the others come layer by layer.
void Linear::plan_codes(BufferPlanner& planner) {
  const RowParts& cut = weight_->storage.cut;
  const QuantizeRule& rule = weight8_.rule();
  const int64_t part_rows = cut.part_rows, rows = cut.all_rows();
  const std::string name = weight_->spec.name + ".fp8";
  const bool blocks = rule.granularity == Granularity::Block128;
  require(rule.granularity == Granularity::Tensor || (blocks && part_rows % 128 == 0),
          "[model] {}: ranks cannot share codes in parts of {} rows", site_.name, part_rows);
  part8_ = Quantized(rule);
  weight8_.rowwise.granularity = part8_.rowwise.granularity = rule.granularity;
  const int64_t scale_cols = div_up(site_.in, 128);
  const auto add = [&](Tensor& view, const std::string& what, DType dtype, Shape shape) {
    planner.add(view, what, dtype, shape, MemoryCategory::Weights, Lifetime::always());
  };
  const int64_t group_rows = cut.group_rows(), scale_bytes = scale_cols * 4;
  if (weight_->storage.residency == Residency::PerLayer) {
    add(shared_.group, name, rule.format_rowwise, {group_rows, site_.in});
    planner.alias(shared_.part, shared_.group, rule.format_rowwise, {part_rows, site_.in},
                  cut.begin_in_group() * site_.in);
    if (blocks) {
      add(shared_.scales_group, name + ".scales", DType::F32, {group_rows / 128, scale_cols});
      planner.alias(shared_.scales_part, shared_.scales_group, DType::F32, {part_rows / 128, scale_cols},
                    cut.begin_in_group() / 128 * scale_bytes);
    }
  } else {
    add(shared_.parts, name, rule.format_rowwise, {rows, site_.in});
    planner.alias(shared_.group, shared_.parts, rule.format_rowwise, {group_rows, site_.in},
                  cut.group_begin() * site_.in);
    planner.alias(shared_.part, shared_.parts, rule.format_rowwise, {part_rows, site_.in},
                  cut.begin() * site_.in);
    planner.alias(weight8_.rowwise.codes, shared_.parts, rule.format_rowwise, {site_.out, site_.in});
    if (blocks) {
      add(shared_.scales_parts, name + ".scales", DType::F32, {rows / 128, scale_cols});
      planner.alias(shared_.scales_group, shared_.scales_parts, DType::F32, {group_rows / 128, scale_cols},
                    cut.group_begin() / 128 * scale_bytes);
      planner.alias(shared_.scales_part, shared_.scales_parts, DType::F32, {part_rows / 128, scale_cols},
                    cut.begin() / 128 * scale_bytes);
      planner.alias(weight8_.rowwise.scales, shared_.scales_parts, DType::F32,
                    scales_shape(rule.granularity, site_.out, site_.in));
    }
  }
  planner.alias(part8_.rowwise.codes, shared_.part, rule.format_rowwise, {weight_->rows(), site_.in});
  if (blocks) {
    planner.alias(part8_.rowwise.scales, shared_.scales_part, DType::F32,
                  scales_shape(rule.granularity, weight_->rows(), site_.in));
  }
}

namespace {

int64_t aligned(int64_t bytes) {
  return round_up(bytes, MemoryPlan::kAlignment);
}

}  // namespace

int64_t Linear::per_layer_bytes() const {
  const ParameterStorage& storage = weight_->storage;
  if (storage.residency != Residency::PerLayer) return 0;
  const int64_t rows = storage.cut.all_rows();
  const QuantizeRule& rule = weight8_.rule();
  if (sends_codes()) {
    const bool blocks = rule.granularity == Granularity::Block128;
    return aligned(rows * site_.in) + (blocks ? aligned(rows / 128 * div_up(site_.in, 128) * 4) : 0);
  }
  int64_t bytes = aligned(rows * site_.in * static_cast<int64_t>(size_of(weight_->own_rows.dtype)));
  const auto add_copy = [&](int64_t height, int64_t depth) {
    const Shape scales = scales_shape(rule.granularity, height, depth);
    bytes += aligned(height * depth);
    if (scales.rank() > 0)
      bytes += aligned(scales.numel() * static_cast<int64_t>(size_of(scales_dtype(rule.granularity))));
  };
  if (fp8(Product::Forward)) add_copy(site_.out, site_.in);
  if (fp8(Product::Dgrad)) add_copy(site_.in, site_.out);
  return bytes;
}

void Linear::attach_per_layer(BufferPlanner& planner, const Tensor& ring, int64_t offset) {
  const ParameterStorage& storage = weight_->storage;
  if (storage.residency != Residency::PerLayer) return;
  const int64_t rows = storage.cut.all_rows();
  const QuantizeRule& rule = weight8_.rule();
  const auto place = [&](Tensor& view, DType dtype, Shape shape) {
    planner.alias(view, ring, dtype, shape, offset);
    offset += aligned(view.bytes());
  };
  if (sends_codes()) {
    const int64_t begin = offset;
    place(shared_.parts, rule.format_rowwise, {rows, site_.in});
    planner.alias(weight8_.rowwise.codes, ring, rule.format_rowwise, {site_.out, site_.in}, begin);
    if (rule.granularity != Granularity::Block128) return;
    const int64_t scales_begin = offset;
    place(shared_.scales_parts, DType::F32, {rows / 128, div_up(site_.in, 128)});
    planner.alias(weight8_.rowwise.scales, ring, DType::F32,
                  scales_shape(rule.granularity, site_.out, site_.in), scales_begin);
    return;
  }
  const DType dtype = weight_->own_rows.dtype;
  const int64_t begin = offset;
  place(weight_->parts->weight_parts, dtype, {rows, site_.in});
  planner.alias(weight_->weight, ring, dtype, {site_.out, site_.in}, begin);
  const auto place_copy = [&](QuantizedMatrix& matrix, DType format, int64_t height, int64_t depth) {
    matrix.granularity = rule.granularity;
    place(matrix.codes, format, {height, depth});
    const Shape scales = scales_shape(rule.granularity, height, depth);
    if (scales.rank() > 0) place(matrix.scales, scales_dtype(rule.granularity), scales);
  };
  if (fp8(Product::Forward)) place_copy(weight8_.rowwise, rule.format_rowwise, site_.out, site_.in);
  if (fp8(Product::Dgrad)) place_copy(weight8_.colwise, rule.format_colwise, site_.in, site_.out);
}

void Linear::attach_scratch(BufferPlanner& planner, QuantizedScratch& scratch, int64_t tokens) {
  if (fp8(Product::Forward) && !adapter_keeps_input_codes()) {
    alias_matrix(planner, input8_.rowwise, scratch.input_rowwise, scratch.input_rowwise_scales,
                 input8_.rule().format_rowwise, input8_.rule().granularity, tokens, site_.in);
  }
  if (fp8(Product::Dgrad) && scratch.gradient_rowwise.numel() > 0) {
    alias_matrix(planner, gradient8_.rowwise, scratch.gradient_rowwise, scratch.gradient_rowwise_scales,
                 gradient8_.rule().format_rowwise, gradient8_.rule().granularity, tokens, site_.out);
  }
  if (input_needed_colwise() && scratch.gradient_colwise.numel() > 0) {
    alias_matrix(planner, gradient8_.colwise, scratch.gradient_colwise, scratch.gradient_colwise_scales,
                 gradient8_.rule().format_colwise, gradient8_.rule().granularity, site_.out, tokens);
  }
}

void Linear::attach_input(BufferPlanner& planner, int64_t tokens, Lifetime lifetime,
                          QuantizedBuffers* shared) {
  const QuantizeRule& rule = input8_.rule();
  const auto place = [&](QuantizedMatrix& matrix, const char* name, DType format, int64_t rows,
                         int64_t depth) {
    if (shared) {
      alias_matrix(planner, matrix, shared->codes, shared->scales, format, rule.granularity, rows, depth);
    } else {
      plan_matrix(planner, matrix, site_.name + name, format, rule.granularity, rows, depth,
                  MemoryCategory::Activations, lifetime);
    }
  };
  if (input_needed_colwise()) {
    place(input8_.colwise, ".input.fp8_transposed", rule.format_colwise, site_.in, tokens);
  } else if (adapter_keeps_input_codes()) {
    place(input8_.rowwise, ".input.fp8", rule.format_rowwise, tokens, site_.in);
  }
}

void Linear::attach_adapter(BufferPlanner& planner, int64_t tokens, DType dtype, Lifetime lifetime,
                            const AdapterScratch& scratch) {
  if (!adapter_) return;
  planner.add(adapter_.hidden(), site_.name + ".lora_hidden", dtype, {tokens, adapter_.ranks()},
              MemoryCategory::Activations, lifetime);
  adapter_.use(&scratch);
}

void Linear::attach_transposed(BufferPlanner& planner, const QuantizedBuffers& shared) {
  if (!transposes_) return;
  alias_matrix(planner, transpose8_, shared.codes, shared.scales, weight8_.rule().format_colwise,
               weight8_.rule().granularity, site_.in, site_.out);
}

void Linear::attach_decoding(BufferPlanner& planner, QuantizedScratch& scratch, int64_t tokens, DType dtype,
                             const AdapterScratch& adapters) {
  attach_adapter(planner, tokens, dtype, Lifetime::always(), adapters);
  if (has_dense()) return;
  alias_matrix(planner, input8_.rowwise, scratch.input_rowwise, scratch.input_rowwise_scales,
               input8_.rule().format_rowwise, input8_.rule().granularity, tokens, site_.in);
  input8_.colwise = {};
  input8_.pass = &kScaleFromValues;
}

void Linear::set_decoding_rows(int64_t rows) {
  if (!has_dense()) input8_.rowwise = first_rows(input8_.rowwise, rows, false);
}

void Linear::bind(const ScaleTable& scales) {
  if (!choice_.any_fp8()) return;
  scales.bind(input8_, input_slot_);
  scales.bind(weight8_, weight_slot_);
  scales.bind(part8_, weight_slot_);
  scales.bind(gradient8_, gradient_slot_);
  transpose8_.tensor_scale = weight8_.colwise.tensor_scale;
}

Operand Linear::input(Tensor dense, bool with_fp8) {
  if (!(with_fp8 || !has_dense()) || !input_needed_fp8()) return {.dense = dense};
  return {.dense = dense,
          .fp8 = &input8_,
          .keep_dense =
              !fp8(Product::Forward) || (adapter_ && !adapter_reads_input_codes()) || input_needed_dense()};
}

Operand Linear::gradient(Tensor dense, bool keep_dense) {
  Operand operand{.dense = dense};
  if (bias_) operand.column_sum = bias_->gradient;
  if (fp8(Product::Dgrad) || input_needed_colwise()) {
    operand.fp8 = &gradient8_;
    operand.keep_dense = keep_dense || !fp8(Product::Dgrad) || (trains() && !fp8(Product::Wgrad)) ||
                         (adapter_ && !adapter_reads_gradient_codes());
  }
  return operand;
}

void Linear::forward(Ops& ops, Matrix y, const Operand& x, bool recompute) const {
  GemmOptions options{.transpose_b = true};
  if (bias_) options.bias = bias_->weight;
  const bool runs_fp8 = x.fp8 && fp8(Product::Forward);
  if (adapter_ && !recompute) {
    adapter_.down(ops, x.dense, runs_fp8 && adapter_reads_input_codes() ? &x.fp8->rowwise : nullptr,
                  weight_->stream());
  }
  // The adapters write first where they cover all of y: the large product then adds to it while it computes, and y is
  // written once more instead of read and written.
  options.accumulate = adapter_ && adapter_.covers(y.cols);
  if (options.accumulate) adapter_.up(ops, y, false);
  if (runs_fp8) {
    options.fast_accumulation = choice_[Product::Forward].fast_accumulation;
    ops.gemm_fp8(y, x.fp8->rowwise, weight8_.rowwise, options);
  } else {
    ops.gemm(y, x.dense, weight_->weight, options);
  }
  if (adapter_ && !options.accumulate) adapter_.up(ops, y, true);
}

void Linear::backward(Ops& ops, Matrix dx, const Operand& x, const Operand& dy, bool overwrite) const {
  if (weight_->storage.gradient_per_layer) overwrite = true;  // other layers have used its memory
  if (input_needed_colwise()) {
    ops.gemm_fp8(weight_->gradient, dy.fp8->colwise, x.fp8->colwise,
                 {.accumulate = !overwrite,
                  .part = GemmPart::Wgrad,
                  .fast_accumulation = choice_[Product::Wgrad].fast_accumulation});
  } else if (trains()) {
    ops.gemm(weight_->gradient, dy.dense, x.dense,
             {.transpose_a = true, .accumulate = !overwrite, .part = GemmPart::Wgrad});
  }
  bool accumulate = false;  // dx holds the adapters' share
  if (adapter_) {
    const bool reads_codes = adapter_reads_input_codes();
    // Always, so that the result does not depend on what else is recomputed.
    if (adapter_keeps_input_codes() && !reads_codes) ops.dequantize(x.dense, x.fp8->rowwise);
    adapter_.backward(ops, x.dense, reads_codes ? &x.fp8->rowwise : nullptr, dy.dense,
                      dy.fp8 && !dy.keep_dense ? &dy.fp8->rowwise : nullptr, weight_->stream(), overwrite);
    accumulate = dx && !adapter_.drops();
    if (accumulate) adapter_.write_input_gradient(ops, dx);
  }
  if (!dx) return;
  if (fp8(Product::Dgrad)) {
    if (transposes_) ops.transpose_fp8(transpose8_, weight8_.rowwise);
    ops.gemm_fp8(dx, dy.fp8->rowwise, transposes_ ? transpose8_ : weight8_.colwise,
                 {.accumulate = accumulate,
                  .part = GemmPart::Dgrad,
                  .fast_accumulation = choice_[Product::Dgrad].fast_accumulation});
  } else {
    ops.gemm(dx, dy.dense, weight_->weight, {.accumulate = accumulate, .part = GemmPart::Dgrad});
  }
  if (adapter_ && adapter_.drops()) adapter_.add_dropped_input_gradient(ops, dx, weight_->stream());
}

void Linear::quantize_weight(Ops& ops) {
  quantize_weight(ops, weight8_.pass->scale);
}

void Linear::quantize_weight(Ops& ops, ScaleFrom scale) {
  if (!has_dense() || !weight_fp8()) return;
  const QuantizePass pass{scale, weight8_.pass->statistics};
  Quantized copies = weight8_;
  copies.pass = &pass;
  ops.quantize({.dense = weight_->weight, .fp8 = &copies});
}

void Linear::quantize_part(Ops& ops, ScaleFrom scale) {
  if (weight_->rows() == 0) {
    // The slot must not look as if it had seen rows.
    ops.device().zero({&part8_.slot->amax_last, DType::F32, {1}});
    return;
  }
  const QuantizePass pass{scale, part8_.pass->statistics};
  Quantized part = part8_;
  part.pass = &pass;
  ops.quantize({.dense = weight_->own_rows, .fp8 = &part});
}

void Linear::transpose_codes(Ops& ops) {
  if (weight8_.colwise) ops.transpose_fp8(weight8_.colwise, weight8_.rowwise);
}

Quantized* Linear::updated_fp8() {
  if (!weight_->storage.is_shared()) return weight_fp8();
  return sends_codes() && knows_scale() && weight_->rows() > 0 ? &part8_ : nullptr;
}

int64_t Linear::fill_rows(int64_t most) const {
  // The transposed copy of blocks along rows comes from the dense weight, not from the other copy.
  if (weight8_.rule().granularity == Granularity::Row32) return site_.out;
  return std::min(std::max<int64_t>(most / 128 * 128, 128), site_.out);
}

void Linear::fill_weight(Device& device, Tensor staging, DType dtype, const StageRows& stage,
                         const LargestOverRanks& largest) {
  const int64_t row_bytes = site_.in * static_cast<int64_t>(size_of(dtype));
  const int64_t step = fill_rows(staging.bytes() / row_bytes);
  require(step * row_bytes <= staging.bytes(), "[model] {}: {} bytes of staging memory, expected {}",
          site_.name, staging.bytes(), step * row_bytes);
  const int64_t first = sends_codes() ? weight_->first_row() : 0,
                count = sends_codes() ? weight_->rows() : site_.out;
  const Quantized& target = sends_codes() ? part8_ : weight8_;
  const QuantizeRule& rule = target.rule();
  Quantized part = target;
  part.pass = &kScaleFromValues;
  const bool per_tensor = rule.granularity == Granularity::Tensor;
  // Blocks along rows are made for both copies from the dense weight.
  const bool whole = rule.granularity == Granularity::Row32;
  if (!whole) part.colwise = {};
  const auto quantize_ranges = [&] {
    for (int64_t begin = 0; begin < count; begin += step) {
      const Tensor rows{staging.data, dtype, {std::min(step, count - begin), site_.in}};
      stage(rows, first + begin);
      if (!whole) part.rowwise = row_range(target.rowwise, begin, rows.rows());
      device.ops().quantize({.dense = rows, .fp8 = &part});
    }
  };
  const Tensor slot{weight8_.slot, DType::U8, {sizeof(ScaleSlot)}};
  ScaleSlot values;
  device.copy_to_device(slot, &values);
  quantize_ranges();
  if (per_tensor && (step < site_.out || largest)) {
    // The slot has now seen the largest value of all ranges.
    device.copy_to_host(&values, slot);
    if (largest) values.amax = values.amax_last = largest(values.amax);
    values.scale_rowwise = scale_from_amax(values.amax, rule.format_rowwise, rule.margin, 1.0f);
    values.scale_colwise = scale_from_amax(values.amax, rule.format_colwise, rule.margin, 1.0f);
    values.inverse_rowwise = 1.0f / values.scale_rowwise;
    values.inverse_colwise = 1.0f / values.scale_colwise;
    device.copy_to_device(slot, &values);
    part.pass = &kScaleFromSlot;
    quantize_ranges();
  }
  if (weight8_.colwise && !whole && !sends_codes())
    device.ops().transpose_fp8(weight8_.colwise, weight8_.rowwise);
}

}  // namespace octet
