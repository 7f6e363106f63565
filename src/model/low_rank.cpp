#include "model/low_rank.h"

namespace octet {

bool LowRank::covers(int64_t out) const {
  int64_t columns = 0;
  for (const Part& part : parts_) columns += part.columns;
  return columns == out;
}

std::vector<WorkspaceNeeds::Gemm> LowRank::gemms(int64_t tokens, bool training) const {
  const int64_t in = a_->spec.shape[1];
  std::vector<WorkspaceNeeds::Gemm> gemms = {{tokens, ranks(), in}};
  for (const Part& part : parts_) gemms.push_back({tokens, part.columns, part.rank});
  if (!training) return gemms;
  gemms.push_back({ranks(), in, tokens});
  gemms.push_back({tokens, in, ranks()});
  for (const Part& part : parts_) {
    gemms.push_back({part.columns, part.rank, tokens});
    gemms.push_back({tokens, part.rank, part.columns});
  }
  return gemms;
}

Tensor LowRank::dhidden(int64_t rows) const {
  return {scratch_->dhidden.data, hidden_.dtype, {rows, ranks()}};
}

Tensor LowRank::dropped(Ops& ops, Tensor x, uint64_t stream) const {
  const AdapterDropout& dropout = scratch_->dropout;
  const Tensor result{dropout.scratch.data, x.dtype, x.shape};
  ops.dropout(result, x, dropout.probability, dropout.seed, stream, false);
  return result;
}

void LowRank::down(Ops& ops, Tensor x, const QuantizedMatrix* codes, uint64_t stream) const {
  const int64_t rows = codes ? codes->codes.rows() : x.rows();
  const Tensor hidden = hidden_.row_range(0, rows);
  if (codes) {
    ops.narrow_product(hidden, *codes, a_->weight, true, 1.0f);
  } else {
    ops.gemm(hidden, drops() ? dropped(ops, x, stream) : x, a_->weight, {.transpose_b = true});
  }
}

void LowRank::up(Ops& ops, Matrix y, bool accumulate) const {
  const Matrix hidden = hidden_.row_range(0, y.rows);
  for (const Part& part : parts_) {
    ops.gemm(y.columns(part.first_column, part.columns), hidden.columns(part.first_rank, part.rank),
             part.b->weight, {.transpose_b = true, .accumulate = accumulate, .alpha = part.scale});
  }
}

void LowRank::backward(Ops& ops, Tensor x, const QuantizedMatrix* x_codes, Tensor dy,
                       const QuantizedMatrix* dy_codes, uint64_t stream, bool overwrite) const {
  const int64_t rows = dy_codes ? dy_codes->codes.rows() : dy.rows();
  const Matrix hidden = hidden_.row_range(0, rows), dhidden_all = dhidden(rows);
  for (const Part& part : parts_) {
    const Matrix hidden_part = hidden.columns(part.first_rank, part.rank);
    const Matrix dhidden_part = dhidden_all.columns(part.first_rank, part.rank);
    if (dy_codes) {
      const QuantizedMatrix dy_part = dy_codes->columns(part.first_column, part.columns);
      ops.narrow_product_over_rows(part.b->gradient, dy_part, hidden_part, false, part.scale, !overwrite);
      ops.narrow_product(dhidden_part, dy_part, part.b->weight, false, part.scale);
    } else {
      const Matrix dy_part = Matrix(dy).columns(part.first_column, part.columns);
      ops.gemm(part.b->gradient, dy_part, hidden_part,
               {.transpose_a = true, .accumulate = !overwrite, .alpha = part.scale, .part = GemmPart::Wgrad});
      ops.gemm(dhidden_part, dy_part, part.b->weight, {.alpha = part.scale, .part = GemmPart::Dgrad});
    }
  }
  if (x_codes) {
    ops.narrow_product_over_rows(a_->gradient, *x_codes, dhidden_all, true, 1.0f, !overwrite);
  } else {
    ops.gemm(a_->gradient, dhidden_all, drops() ? dropped(ops, x, stream) : x,
             {.transpose_a = true, .accumulate = !overwrite, .part = GemmPart::Wgrad});
  }
}

void LowRank::write_input_gradient(Ops& ops, Matrix dx) const {
  require(!drops(), "[adapter] the gradient of a dropped input is written without dropout");
  ops.gemm(dx, dhidden(dx.rows), a_->weight, {.part = GemmPart::Dgrad});
}

void LowRank::add_dropped_input_gradient(Ops& ops, Matrix dx, uint64_t stream) const {
  require(drops(), "[adapter] the gradient of an input without dropout is added with dropout");
  require(dx.contiguous(), "[adapter] the gradient of a dropped input is part of a matrix");
  const AdapterDropout& dropout = scratch_->dropout;
  const Tensor scratch{dropout.scratch.data, dx.dtype, {dx.rows, dx.cols}};
  ops.gemm(scratch, dhidden(dx.rows), a_->weight, {.part = GemmPart::Dgrad});
  ops.dropout({dx.data, dx.dtype, {dx.rows, dx.cols}}, scratch, dropout.probability, dropout.seed, stream,
              true);
}

LowRank find_low_rank(ParameterSet& parameters, const AdapterPlan& adapters, const ParameterSpec& weight) {
  std::vector<LowRank::Part> parts;
  const std::string name = weight.name.substr(0, weight.name.rfind('.'));
  int64_t ranks = 0;
  for (const HfPart& part : weight.hf) {
    const std::string module = part.module();
    const Adapter* adapter = adapters.find(module);
    if (!adapter) continue;
    Parameter& b = parameters[lora_b_name(name, module)];
    parts.push_back({part.row_begin, part.rows, ranks, adapter->rank, adapter->scale(), &b});
    ranks += adapter->rank;
  }
  return parts.empty() ? LowRank{} : LowRank(parameters[lora_a_name(name)], std::move(parts));
}

}  // namespace octet
