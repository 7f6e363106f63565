#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/plan.h"

namespace octet {

struct Parameter;

// How ranks cut a tensor: into `parts` equal parts of `part_rows` rows, padded at the end, of which this rank has number
// `part`. Without ranks there are no parts. A vector counts as rows of one element.
struct RowParts {
  int64_t part = 0, parts = 0, part_rows = 0;
  int64_t groups = 1;  // Sharding::groups(): so many consecutive parts are together in every group of ranks

  explicit operator bool() const { return parts > 0; }
  int64_t all_rows() const { return parts * part_rows; }
  int64_t group_rows() const { return groups * part_rows; }
  // The first row of this rank's part among all rows, and among those that its group has together.
  int64_t begin() const { return part * part_rows; }
  int64_t begin_in_group() const { return part % groups * part_rows; }
  int64_t group_begin() const { return part / groups * group_rows(); }
  // How many of a tensor's `rows` rows are in this rank's part; the others are padding.
  int64_t rows_of(int64_t rows) const { return std::clamp<int64_t>(rows - begin(), 0, part_rows); }
};

// The tensors of a parameter that exist only with ranks: P parts of part_rows rows. Those of Parameter are views of them.
// Absent are those that the parameter's storage has no use for.
struct ParameterParts {
  Tensor weight_part;      // (part_rows, ...) of this rank
  Tensor weight_group;     // (groups * part_rows, ...): of the ranks with this one's place in all groups
  Tensor weight_parts;     // (P * part_rows, ...) of all ranks
  Tensor gradient_parts;   // likewise, as backward has written it
  Tensor sum_part;         // (part_rows, ...) fp32: the gradient of this rank's part, summed over ranks
  Tensor sum_parts;        // (P * part_rows, ...) fp32: of all parts, if every rank updates all weights
  Tensor summed_gradient;  // the rows of these that the optimizer reads, without padding
};

// Plan the weight of a parameter whose residency is Parts or PerLayer, and the gradient of one that is cut.
void plan_shared_weight(Parameter& parameter, DType dtype, BufferPlanner& planner);
void plan_cut_gradient(Parameter& parameter, DType dtype, BufferPlanner& planner);

}  // namespace octet
