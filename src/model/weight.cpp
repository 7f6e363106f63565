#include "model/weight.h"

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

void alias_matrix(BufferPlanner& planner, QuantizedMatrix& matrix, const Tensor& codes,
                  const Tensor& scales_base, DType format, Granularity granularity, int64_t rows,
                  int64_t depth) {
  matrix.granularity = granularity;
  planner.alias(matrix.codes, codes, format, {rows, depth});
  const Shape scales = scales_shape(granularity, rows, depth);
  if (scales.rank() > 0) planner.alias(matrix.scales, scales_base, scales_dtype(granularity), scales);
}

namespace {

// Rows [begin, begin + rows); whole blocks where there are blocks of rows.
QuantizedMatrix row_range(const QuantizedMatrix& matrix, int64_t begin, int64_t rows) {
  QuantizedMatrix result = matrix;
  result.codes = matrix.codes.row_range(begin, rows);
  if (matrix.granularity == Granularity::Block128)
    result.scales = matrix.scales.row_range(begin / 128, div_up(rows, 128));
  return result;
}

int64_t aligned(int64_t bytes) {
  return round_up(bytes, MemoryPlan::kAlignment);
}

}  // namespace

void Weight::plan(BufferPlanner& planner, ScaleTable& scales, const std::string& name,
                  const QuantizeRule& rule, const LinearChoice& choice, bool training, WeightCopies copies) {
  name_ = name;
  forward8_ = choice[Product::Forward].fp8;
  dgrad8_ = choice[Product::Dgrad].fp8;
  copies_ = Quantized(rule);
  const int slot = scales.add(name + ".weight", copies_);
  const std::string codes = parameter_->spec.name + ".fp8";
  const bool per_layer = parameter_->storage.residency == Residency::PerLayer;
  if (sends_codes()) {
    part_ = Quantized(rule);
    scales.share(slot, part_);
    plan_shared_codes(planner);
  } else if (per_layer) {
    // Placed by attach_per_layer.
  } else if (forward8_) {
    plan_matrix(planner, copies_.rowwise, codes, rule.format_rowwise, rule.granularity, out(), in(),
                MemoryCategory::Weights, Lifetime::always());
  }
  // The transpose of blocks along rows has other blocks, so both copies are kept.
  const bool codes_suffice = forward8_ && dgrad8_ && rule.granularity != Granularity::Row32;
  transposes_ = training && codes_suffice && (per_layer ? sends_codes() : copies == WeightCopies::One);
  if (transposes_) {
    transposed_ = Quantized(rule);
    scales.share(slot, transposed_);
  } else if (dgrad8_ && training && !per_layer) {
    plan_matrix(planner, copies_.colwise, codes + "_transposed", rule.format_colwise, rule.granularity, in(),
                out(), MemoryCategory::Weights, Lifetime::always());
  }
}

// The codes of this rank lie in their place among those of all ranks, or apart if the others come layer by layer.
void Weight::plan_shared_codes(BufferPlanner& planner) {
  const RowParts& cut = parameter_->storage.cut;
  const QuantizeRule& rule = copies_.rule();
  const int64_t part_rows = cut.part_rows, rows = cut.all_rows();
  const std::string name = parameter_->spec.name + ".fp8";
  const bool blocks = rule.granularity == Granularity::Block128;
  require(rule.granularity == Granularity::Tensor || (blocks && part_rows % 128 == 0),
          "[model] {}: ranks cannot share codes in parts of {} rows", name_, part_rows);
  copies_.rowwise.granularity = part_.rowwise.granularity = rule.granularity;
  const int64_t scale_cols = div_up(in(), 128);
  const auto add = [&](Tensor& view, const std::string& what, DType dtype, Shape shape) {
    planner.add(view, what, dtype, shape, MemoryCategory::Weights, Lifetime::always());
  };
  const int64_t group_rows = cut.group_rows(), scale_bytes = scale_cols * 4;
  if (parameter_->storage.residency == Residency::PerLayer) {
    add(shared_.group, name, rule.format_rowwise, {group_rows, in()});
    planner.alias(shared_.part, shared_.group, rule.format_rowwise, {part_rows, in()},
                  cut.begin_in_group() * in());
    if (blocks) {
      add(shared_.scales_group, name + ".scales", DType::F32, {group_rows / 128, scale_cols});
      planner.alias(shared_.scales_part, shared_.scales_group, DType::F32, {part_rows / 128, scale_cols},
                    cut.begin_in_group() / 128 * scale_bytes);
    }
  } else {
    add(shared_.parts, name, rule.format_rowwise, {rows, in()});
    planner.alias(shared_.group, shared_.parts, rule.format_rowwise, {group_rows, in()},
                  cut.group_begin() * in());
    planner.alias(shared_.part, shared_.parts, rule.format_rowwise, {part_rows, in()}, cut.begin() * in());
    planner.alias(copies_.rowwise.codes, shared_.parts, rule.format_rowwise, {out(), in()});
    if (blocks) {
      add(shared_.scales_parts, name + ".scales", DType::F32, {rows / 128, scale_cols});
      planner.alias(shared_.scales_group, shared_.scales_parts, DType::F32, {group_rows / 128, scale_cols},
                    cut.group_begin() / 128 * scale_bytes);
      planner.alias(shared_.scales_part, shared_.scales_parts, DType::F32, {part_rows / 128, scale_cols},
                    cut.begin() / 128 * scale_bytes);
      planner.alias(copies_.rowwise.scales, shared_.scales_parts, DType::F32,
                    scales_shape(rule.granularity, out(), in()));
    }
  }
  planner.alias(part_.rowwise.codes, shared_.part, rule.format_rowwise, {parameter_->rows(), in()});
  if (blocks) {
    planner.alias(part_.rowwise.scales, shared_.scales_part, DType::F32,
                  scales_shape(rule.granularity, parameter_->rows(), in()));
  }
}

int64_t Weight::per_layer_bytes() const {
  const ParameterStorage& storage = parameter_->storage;
  if (storage.residency != Residency::PerLayer) return 0;
  const int64_t rows = storage.cut.all_rows();
  const QuantizeRule& rule = copies_.rule();
  if (sends_codes()) {
    const bool blocks = rule.granularity == Granularity::Block128;
    return aligned(rows * in()) + (blocks ? aligned(rows / 128 * div_up(in(), 128) * 4) : 0);
  }
  int64_t bytes = aligned(rows * in() * static_cast<int64_t>(size_of(parameter_->own_rows.dtype)));
  const auto add_copy = [&](int64_t height, int64_t depth) {
    const Shape scales = scales_shape(rule.granularity, height, depth);
    bytes += aligned(height * depth);
    if (scales.rank() > 0)
      bytes += aligned(scales.numel() * static_cast<int64_t>(size_of(scales_dtype(rule.granularity))));
  };
  if (forward8_) add_copy(out(), in());
  if (dgrad8_) add_copy(in(), out());
  return bytes;
}

void Weight::attach_per_layer(BufferPlanner& planner, const Tensor& ring, int64_t offset) {
  const ParameterStorage& storage = parameter_->storage;
  if (storage.residency != Residency::PerLayer) return;
  const int64_t rows = storage.cut.all_rows();
  const QuantizeRule& rule = copies_.rule();
  const auto place = [&](Tensor& view, DType dtype, Shape shape) {
    planner.alias(view, ring, dtype, shape, offset);
    offset += aligned(view.bytes());
  };
  if (sends_codes()) {
    const int64_t begin = offset;
    place(shared_.parts, rule.format_rowwise, {rows, in()});
    planner.alias(copies_.rowwise.codes, ring, rule.format_rowwise, {out(), in()}, begin);
    if (rule.granularity != Granularity::Block128) return;
    const int64_t scales_begin = offset;
    place(shared_.scales_parts, DType::F32, {rows / 128, div_up(in(), 128)});
    planner.alias(copies_.rowwise.scales, ring, DType::F32, scales_shape(rule.granularity, out(), in()),
                  scales_begin);
    return;
  }
  const DType dtype = parameter_->own_rows.dtype;
  const int64_t begin = offset;
  place(parameter_->parts->weight_parts, dtype, {rows, in()});
  planner.alias(parameter_->weight, ring, dtype, {out(), in()}, begin);
  const auto place_copy = [&](QuantizedMatrix& matrix, DType format, int64_t height, int64_t depth) {
    matrix.granularity = rule.granularity;
    place(matrix.codes, format, {height, depth});
    const Shape scales = scales_shape(rule.granularity, height, depth);
    if (scales.rank() > 0) place(matrix.scales, scales_dtype(rule.granularity), scales);
  };
  if (forward8_) place_copy(copies_.rowwise, rule.format_rowwise, out(), in());
  if (dgrad8_) place_copy(copies_.colwise, rule.format_colwise, in(), out());
}

void Weight::attach_transposed(BufferPlanner& planner, const QuantizedBuffers& shared) {
  if (!transposes_) return;
  alias_matrix(planner, transposed_.colwise, shared.codes, shared.scales, copies_.rule().format_colwise,
               copies_.rule().granularity, in(), out());
}

bool Weight::knows_scale() const {
  return part_.rule().granularity != Granularity::Tensor || part_.keeps_scale();
}

void Weight::quantize(Ops& ops, ScaleFrom scale) const {
  if (!has_dense() || !copies()) return;
  const QuantizePass pass{scale, copies_.pass->statistics};
  Quantized copies = copies_;
  copies.pass = &pass;
  ops.quantize({.dense = parameter_->weight, .fp8 = &copies});
}

void Weight::quantize_part(Ops& ops, ScaleFrom scale) const {
  if (parameter_->rows() == 0) {
    // The slot must not look as if it had seen rows.
    ops.device().zero({&part_.slot->amax_last, DType::F32, {1}});
    return;
  }
  const QuantizePass pass{scale, part_.pass->statistics};
  Quantized part = part_;
  part.pass = &pass;
  ops.quantize({.dense = parameter_->own_rows, .fp8 = &part});
}

void Weight::transpose_codes(Ops& ops) const {
  if (copies_.colwise) ops.transpose_fp8(copies_.colwise, copies_.rowwise);
}

Quantized* Weight::updated_copies() {
  if (!parameter_->storage.is_shared()) return copies();
  return sends_codes() && knows_scale() && parameter_->rows() > 0 ? &part_ : nullptr;
}

int64_t Weight::fill_rows(int64_t most) const {
  // The transposed copy of blocks along rows comes from the dense weight, not from the other copy.
  if (copies_.rule().granularity == Granularity::Row32) return out();
  return std::min(std::max<int64_t>(most / 128 * 128, 128), out());
}

void Weight::fill(Device& device, Tensor staging, DType dtype, const StageRows& stage,
                  const LargestOverRanks& largest) const {
  const int64_t row_bytes = in() * static_cast<int64_t>(size_of(dtype));
  const int64_t step = fill_rows(staging.bytes() / row_bytes);
  require(step * row_bytes <= staging.bytes(), "[model] {}: {} bytes of staging memory, expected {}", name_,
          staging.bytes(), step * row_bytes);
  const int64_t first = sends_codes() ? parameter_->first_row() : 0,
                count = sends_codes() ? parameter_->rows() : out();
  const Quantized& target = sends_codes() ? part_ : copies_;
  const QuantizeRule& rule = target.rule();
  Quantized part = target;
  part.pass = &kScaleFromValues;
  const bool per_tensor = rule.granularity == Granularity::Tensor;
  // Blocks along rows are made for both copies from the dense weight.
  const bool whole = rule.granularity == Granularity::Row32;
  if (!whole) part.colwise = {};
  const auto quantize_ranges = [&] {
    for (int64_t begin = 0; begin < count; begin += step) {
      const Tensor rows{staging.data, dtype, {std::min(step, count - begin), in()}};
      stage(rows, first + begin);
      if (!whole) part.rowwise = row_range(target.rowwise, begin, rows.rows());
      device.ops().quantize({.dense = rows, .fp8 = &part});
    }
  };
  const Tensor slot{copies_.slot, DType::U8, {sizeof(ScaleSlot)}};
  ScaleSlot values;
  device.copy_to_device(slot, &values);
  quantize_ranges();
  if (per_tensor && (step < out() || largest)) {
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
  if (copies_.colwise && !whole && !sends_codes())
    device.ops().transpose_fp8(copies_.colwise, copies_.rowwise);
}

}  // namespace octet
