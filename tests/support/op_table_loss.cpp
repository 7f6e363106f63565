#include <numeric>

#include "support/op_table_detail.h"

// The loss and the sums.
namespace octet::test {

OpCase cross_entropy_case(DType dtype, int64_t rows, int64_t vocab, int64_t width, PenaltyKind penalty,
                          std::string label, bool weighted) {
  OpCase op = start("cross_entropy_" + label + (weighted ? "_weighted" : ""), dtype, {rows, vocab, width});
  op.needs.tokens = rows;
  op.needs.width = width;
  const LossOptions options{.vocab = vocab, .penalty = penalty, .penalty_weight = 0.3f};
  op.upstream_value = 0.25;
  std::vector<double> targets = ids(rows, vocab + 1, 2);
  for (double& target : targets) target -= 1.0;  // some are -1
  if (rows == 1) targets[0] = 1.0;
  op.add_gradient_input("logits", dtype, {rows, width}, normal(rows * width, dtype, 1, 3.0), false);
  op.add_input("targets", DType::I32, {rows}, fixed(targets));
  op.add_input("gradient_scale", DType::F32, {1}, fixed({0.25}));
  op.add_output("loss", DType::F32, {rows}, !weighted);
  op.add_output("penalty", DType::F32, {rows});
  op.add_output("correct", DType::I32, {rows}, false);
  if (weighted) {
    std::vector<double> places(at(rows));
    std::iota(places.begin(), places.end(), 0.0);
    op.add_input("row_factors", DType::F32, {rows}, normal(rows, DType::F32, 3));
    op.add_input("places", DType::I32, {rows}, fixed(places));
    op.add_output("weighted_loss", DType::F32, {rows, 1});  // whose gradient is computed
  }
  op.bytes = bytes_for(dtype, rows * width);
  op.backward_bytes =
      bytes_for(dtype, 3 * rows * width);  // a row must be known before its gradient: read twice
  const auto run = [=](Device& device, Args& args, const Tensor& gradient) {
    LossOptions scaled = options;
    scaled.gradient_scale = args.in[2];
    if (weighted) scaled.row_factors = args.in[3];
    device.ops().cross_entropy(operand(gradient), {}, args.out[0], args.out[1], args.out[2], args.in[0],
                               args.in[1], scaled);
  };
  op.forward = [=](Device& device, Args& args) {
    run(device, args, {});
    if (!weighted) return;
    device.zero(args.out[3]);
    device.ops().add_scaled_rows(args.out[3], args.out[0].reshaped({rows, 1}), args.in[4], args.in[3]);
  };
  op.backward = [=](Device& device, Args& args) { run(device, args, args.grad[0]); };
  op.reference = [=](const Arrays& in) {
    std::vector<double> loss(at(rows)), extra(at(rows)), correct(at(rows));
    const double weight = static_cast<double>(options.penalty_weight), n = static_cast<double>(vocab);
    for (int64_t r = 0; r < rows; ++r) {
      const auto target = static_cast<int64_t>(in[1][at(r)]);
      if (target < 0) continue;
      const double* logits = in[0].data() + r * width;
      const double* best = std::max_element(logits, logits + vocab);
      double total = 0, squares = 0, entropy = 0;
      for (int64_t i = 0; i < vocab; ++i) total += std::exp(logits[i] - *best);
      const double lse = *best + std::log(total);
      for (int64_t i = 0; i < vocab; ++i) {
        squares += logits[i] * logits[i];
        entropy -= std::exp(logits[i] - lse) * (logits[i] - lse);
      }
      loss[at(r)] = lse - logits[target];
      correct[at(r)] = best - logits == target ? 1.0 : 0.0;
      if (penalty == PenaltyKind::ZLoss) extra[at(r)] = weight * lse * lse;
      if (penalty == PenaltyKind::Entropy) extra[at(r)] = -weight * entropy;
      if (penalty == PenaltyKind::LogitL2) extra[at(r)] = weight * squares / n;
    }
    Arrays outputs{loss, extra, correct};
    if (weighted) {
      for (size_t r = 0; r < loss.size(); ++r) loss[r] *= in[3][r];
      outputs.push_back(loss);
    }
    return outputs;
  };
  return op;
}

OpCase column_sum_case(DType dtype, int64_t rows, int64_t width, bool with_factors) {
  OpCase op = start(with_factors ? "column_sum_factors" : "column_sum", dtype, {rows, width});
  op.needs.tokens = rows;
  op.needs.width = width;
  op.bytes = bytes_for(dtype, rows * width);
  op.add_input("x", dtype, {rows, width}, normal(rows * width, dtype, 1, 1.0, 0.3));
  op.add_input("before", DType::F32, {width}, normal(width, DType::F32, 2));
  op.add_input("factors", DType::F32, {rows}, normal(rows, DType::F32, 3, 1.0, 0.3));
  op.add_output("column_sum", DType::F32, {width});
  op.tolerance = kFp32;
  op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[1]); };
  op.forward = [=](Device& device, Args& args) {
    if (with_factors)
      device.ops().add_column_sum(args.out[0], args.in[0], args.in[2], -0.75f);
    else
      device.ops().add_column_sum(args.out[0], args.in[0], {}, 1.0f);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> columns = in[1];
    for (size_t i = 0; i < in[0].size(); ++i)
      columns[i % at(width)] += with_factors ? -0.75 * in[2][i / at(width)] * in[0][i] : in[0][i];
    return Arrays{columns};
  };
  return op;
}

OpCase sum_case(DType dtype, int64_t count) {
  OpCase op = start("sum", dtype, {count});
  op.needs.tokens = count;
  op.bytes = bytes_for(dtype, count);
  op.add_input("x", dtype, {count}, normal(count, dtype, 1, 1.0, 0.3));
  op.add_output("total", DType::F32, {1});
  op.forward = [](Device& device, Args& args) { device.ops().sum(args.out[0], args.in[0]); };
  op.reference = [](const Arrays& in) {
    double total = 0;
    for (const double x : in[0]) total += x;
    return Arrays{{total}};
  };
  return op;
}

// Two tensors, so that the clip factor is below 1.
OpCase grad_norm_case(DType dtype, int64_t rows, int64_t width) {
  OpCase op = start("grad_norm", dtype, {rows, width});
  op.needs.width = width;
  op.needs.parameters = 2;
  op.bytes = bytes_for(dtype, rows * width);
  op.add_input("gradient", dtype, {rows, width}, normal(rows * width, dtype, 1, 1.0, 0.3));
  op.add_input("other", DType::F32, {width}, normal(width, DType::F32, 3));
  op.add_input("guard", DType::F32, {2}, fixed({1.0, -2.0}));
  op.add_output("norm", DType::F32, {2});
  op.forward = [](Device& device, Args& args) {
    const Tensor gradients[] = {args.in[0], args.in[1]};
    device.ops().grad_norm(args.out[0], gradients, 0.5f, args.in[2]);
  };
  op.reference = [](const Arrays& in) {
    double squares = 0;
    for (const double x : in[0]) squares += x * x;
    for (const double x : in[1]) squares += x * x;
    const double norm = std::sqrt(squares);
    return Arrays{{norm, std::min(1.0, 0.5 / norm)}};
  };
  return op;
}

// ---- which cases there are ----

void add_loss(std::vector<OpCase>& table, DType dtype) {
  table.push_back(cross_entropy_case(dtype, 17, 100, 128, PenaltyKind::None, "plain"));
  table.push_back(cross_entropy_case(dtype, 1, 259, 259, PenaltyKind::None, "plain"));
  table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::ZLoss, "z"));
  table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::Entropy, "entropy"));
  table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::LogitL2, "l2"));
  for (const auto& [penalty, label] : {std::pair{PenaltyKind::None, "plain"},
                                       {PenaltyKind::ZLoss, "z"},
                                       {PenaltyKind::Entropy, "entropy"},
                                       {PenaltyKind::LogitL2, "l2"}})
    table.push_back(cross_entropy_case(dtype, 17, 24, 32, penalty, label, true));
  table.push_back(large(cross_entropy_case(dtype, 300, 1000, 1024, PenaltyKind::None, "plain")));
  table.push_back(large(cross_entropy_case(dtype, 5, 20001, 20008, PenaltyKind::None, "long")));
  table.push_back(large(cross_entropy_case(dtype, 5, 16384, 16384, PenaltyKind::Entropy, "entropy_long")));
  table.push_back(large(cross_entropy_case(dtype, 5, 8195, 8195, PenaltyKind::LogitL2, "l2_long")));
  for (const bool with_factors : {false, true}) {
    table.push_back(column_sum_case(dtype, 17, 100, with_factors));
    table.push_back(column_sum_case(dtype, 5, 7, with_factors));
    table.push_back(large(column_sum_case(dtype, 3000, 392, with_factors)));
  }
  table.push_back(sum_case(dtype, 1700));
  table.push_back(large(sum_case(dtype, 395520)));
  table.push_back(grad_norm_case(dtype, 17, 100));
  table.push_back(large(grad_norm_case(dtype, 1030, 384)));
}

}  // namespace octet::test
