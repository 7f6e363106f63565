#include "model/parameter_parts.h"

#include "model/parameters.h"

namespace octet {
namespace {

int64_t bytes_of_rows(const Parameter& p, int64_t rows, DType dtype) {
  return rows * p.width() * static_cast<int64_t>(size_of(dtype));
}

}  // namespace

void plan_shared_weight(Parameter& p, DType dtype, BufferPlanner& planner) {
  const ParameterStorage& storage = p.storage;
  const RowParts& cut = storage.cut;
  ParameterParts& parts = *p.parts;
  const auto add = [&](Tensor& view, int64_t rows) {
    planner.add(view, p.spec.name, dtype, p.shape_of_rows(rows), MemoryCategory::Weights, Lifetime::always(),
                storage.place);
  };
  const auto alias_part = [&](const Tensor& base, int64_t begin) {
    const int64_t offset = bytes_of_rows(p, begin, dtype);
    planner.alias(parts.weight_part, base, dtype, p.shape_of_rows(cut.part_rows), offset);
    planner.alias(p.own_rows, base, dtype, p.shape(), offset);
  };
  if (storage.sends_codes) {
    // Codes are what ranks have together; of the dense weight only this rank's part is needed.
    add(parts.weight_group, cut.part_rows);
    alias_part(parts.weight_group, 0);
  } else if (storage.residency == Residency::PerLayer) {
    add(parts.weight_group, cut.group_rows());
    alias_part(parts.weight_group, cut.begin_in_group());
  } else {
    add(parts.weight_parts, cut.all_rows());
    planner.alias(p.weight, parts.weight_parts, dtype, p.spec.shape);
    planner.alias(parts.weight_group, parts.weight_parts, dtype, p.shape_of_rows(cut.group_rows()),
                  bytes_of_rows(p, cut.group_begin(), dtype));
    alias_part(parts.weight_parts, cut.begin());
  }
}

// The sum over ranks lies between what backward writes and what the optimizer reads.
void plan_cut_gradient(Parameter& p, DType dtype, BufferPlanner& planner) {
  const ParameterStorage& storage = p.storage;
  const RowParts& cut = storage.cut;
  ParameterParts& parts = *p.parts;
  const auto add = [&](Tensor& view, const char* what, DType type, int64_t rows) {
    planner.add(view, p.spec.name + what, type, p.shape_of_rows(rows), MemoryCategory::Gradients,
                Lifetime::always(), storage.place);
  };
  parts.gradient_parts.dtype = dtype;
  if (!storage.gradient_per_layer) {
    add(parts.gradient_parts, ".gradient", dtype, cut.all_rows());
    planner.alias(p.gradient, parts.gradient_parts, dtype, p.spec.shape);
    if (cut.parts == 1) return;  // nothing is added up over ranks
  }
  if (storage.is_shared()) {
    add(parts.sum_part, ".gradient_part", DType::F32, cut.part_rows);
    planner.alias(parts.summed_gradient, parts.sum_part, DType::F32, p.shape());
    return;
  }
  if (dtype == DType::F32) {
    planner.alias(parts.sum_parts, parts.gradient_parts, DType::F32, p.shape_of_rows(cut.all_rows()));
  } else {
    add(parts.sum_parts, ".gradient_sum", DType::F32, cut.all_rows());
  }
  // Bound after sum_parts: aliases get their memory in the order of these calls.
  planner.alias(parts.sum_part, parts.sum_parts, DType::F32, p.shape_of_rows(cut.part_rows),
                bytes_of_rows(p, cut.begin(), DType::F32));
  planner.alias(parts.summed_gradient, parts.sum_parts, DType::F32, p.spec.shape);
}

}  // namespace octet
