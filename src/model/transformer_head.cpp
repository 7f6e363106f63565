// The head: logits, loss, and corrections of its FP8 gradients.
#include <algorithm>

#include "model/transformer.h"

namespace octet {
namespace {

// An operand of the head for `rows` rows; `view` holds its FP8 copies.
Operand chunk_operand(Operand operand, int64_t rows, Quantized& view) {
  if (operand.fp8) {
    view = with_rows(*operand.fp8, rows);
    operand.fp8 = &view;
  }
  return operand;
}

}  // namespace

// In training and scoring, the head computes only the rows that have a target, and a few others: their number is rounded
// up, so that few different recordings and products occur.
void Transformer::choose_head_rows(std::span<const int32_t> targets) {
  const int64_t n = shape_.tokens();
  head_count_ = n;
  head_rows_host_.clear();
  for (int64_t i = 0; i < n; ++i) {
    if (targets[static_cast<size_t>(i)] >= 0) head_rows_host_.push_back(static_cast<int32_t>(i));
  }
  target_count_ = std::ssize(head_rows_host_);
  if (!target_rows_) return;
  const int64_t unit = round_up(div_up(n, 16), 16);
  const int64_t rounded = round_up(std::max<int64_t>(target_count_, 1), unit);
  if (rounded >= n) return;
  head_count_ = rounded;
  head_targets_host_.clear();
  for (const int32_t row : head_rows_host_) head_targets_host_.push_back(targets[static_cast<size_t>(row)]);
  // The others are the first ones without a target. Empty rows would change the mean of the inputs.
  for (int64_t i = 0; i < n && std::ssize(head_rows_host_) < rounded; ++i) {
    if (targets[static_cast<size_t>(i)] < 0) head_rows_host_.push_back(static_cast<int32_t>(i));
  }
  head_targets_host_.resize(static_cast<size_t>(rounded), -1);
}

Transformer::HeadRows Transformer::gather_head_rows(bool backward) {
  if (!gathers_head_rows(backward)) {
    return {.count = shape_.tokens(),
            .input = final_normed_,
            .gradient = dfinal_normed_,
            .targets = targets_,
            .loss = loss_,
            .penalty = penalty_};
  }
  // In training, rows are gathered where dfinal_normed_ will be, and their gradient lies where they came from.
  HeadRows rows{.count = head_count_,
                .input = (shape_.scoring ? head_input_ : dfinal_normed_).row_range(0, head_count_),
                .gradient = final_normed_.row_range(0, head_count_),
                .targets = gathered_targets_.part(0, head_count_),
                .loss = backward ? gathered_loss_ : loss_,
                .penalty = backward ? gathered_penalty_ : penalty_,
                .needs_scatter = backward};
  ops().gather_rows(rows.input, final_normed_, target_rows_.part(0, head_count_));
  return rows;
}

// Back to their places, so that sums over all tokens have the same bits as if all rows were computed.
void Transformer::scatter_head_rows(const HeadRows& rows) {
  const Tensor places = target_rows_.part(0, rows.count);
  ops().scatter_rows(dfinal_normed_, rows.gradient, places);
  const auto scatter = [&](const Tensor& to, const Tensor& from) {
    ops().scatter_rows(to.reshaped({shape_.tokens(), 1}), from.part(0, rows.count).reshaped({rows.count, 1}),
                       places);
  };
  scatter(loss_, rows.loss);
  scatter(penalty_, rows.penalty);
}

// The rows of the input are often nearly equal, most of all early in a run. FP8 then rounds away their differences, from
// which the weight learns. So the product for the weight's gradient reads rows without their mean, and the mean's share is
// added afterwards. With d the gradients of logits:
//   sum over rows of d x^T = sum of d (x - mean)^T + (sum of d) mean^T.
// `mean_factor` makes the mean of head_input_sums_. Afterwards x itself is without it, too: correct_row_sums reads it.
void Transformer::centre_head_input(const Operand& x, float mean_factor, Quantized& copy, bool has_scale) {
  // Both copies share a slot. If logits are in FP8, this one has the scale that was chosen for the rows with their mean, and
  // is not part of the statistics.
  if (has_scale) copy.pass = &kScaleFromSlot;
  ops().add_outer(x.dense, {}, head_input_sums_, -mean_factor);
  ops().quantize({.dense = x.dense, .fp8 = &copy});
}

// The gradients of a row's logits add up to zero: what is common to all tokens does not matter to the loss, so the
// loss does not hold it in place. E5M2 rounds equal probabilities in the same way, by up to an eighth. Without this, all
// embeddings would drift, and logits with a large common part have few bits left for their differences.
void Transformer::correct_row_sums(const HeadRows& rows) {
  const Tensor factors = correction_.part(0, rows.count);
  if (head_.spec.choice[Product::Dgrad].fp8)
    ops().add_scaled_rows(rows.gradient, head_.weight.parameter().weight, rows.targets, factors);
  // Of centred rows: the mean's share has the sums of gradients that were not rounded.
  if (head_.weight.trains() && head_.spec.choice[Product::Wgrad].fp8)
    ops().add_to_rows(head_.weight.parameter().gradient, rows.input, rows.targets, factors);
}

// Layers sum over rows, and there the gradients of the input nearly cancel. The errors of FP8 do not: it rounds the weights
// in the same way for every row, and equal probabilities, too. So the sum over rows is also computed without FP8, and the
// difference is spread over the rows with a target.
void Transformer::keep_mean_of_head_gradient(const HeadRows& rows) {
  const Tensor error = head_gradient_error_.row_range(0, 1), share = head_gradient_error_.row_range(1, 1);
  device_.zero(head_gradient_error_);
  ops().add_column_sum(error, head_.weight.parameter().weight, logit_gradient_sums_, 1.0f);
  ops().add_column_sum(error, rows.gradient, {}, -1.0f);
  // Divided on the device: a recording is used for batches with other numbers of targets.
  ops().add_column_sum(share, error, target_share_, 1.0f);
  ops().shift_rows(rows.gradient, share, rows.targets, 1.0f);
}

// Logits, loss and their gradients, one chunk of rows at a time, so that the logits need a limited amount of memory.
void Transformer::head_loss(bool backward, const PenaltyOptions& penalty, bool first, bool fp8) {
  device_.begin_phase(Phase::Head);
  const LossOptions options{config_.vocab, gradient_scale_, penalty.kind, penalty.weight};
  const HeadRows all = gather_head_rows(backward);
  const bool centres = backward && centres_head_input();
  const bool keeps_mean = backward && keeps_mean_of_head_gradient();
  const bool corrects = backward && corrects_row_sums();
  const float mean_factor = 1.0f / static_cast<float>(all.count);
  if (centres) {
    device_.zero(head_input_sums_);
    ops().add_column_sum(head_input_sums_, all.input, {}, 1.0f);
  }
  if (centres || keeps_mean) device_.zero(logit_gradient_sums_);
  for (int64_t begin = 0; begin < all.count; begin += head_rows_) {
    const int64_t rows = std::min(head_rows_, all.count - begin);
    const auto chunk = [&](const Tensor& vector) { return vector.part(begin, rows); };
    Quantized input8, gradient8;  // the chunk's views of the Linear's copies
    const Operand x = chunk_operand(head_.input(all.input.row_range(begin, rows), fp8), rows, input8);
    Quantized for_logits = input8, for_weight = input8;
    if (centres || !backward) for_logits.colwise = {};
    if (centres) for_weight.rowwise = {};
    if (for_logits.rowwise || for_logits.colwise) ops().quantize({.dense = x.dense, .fp8 = &for_logits});
    const Tensor logits = logits_.row_range(0, rows);
    head_.forward(ops(), logits, x);
    if (centres) centre_head_input(x, mean_factor, for_weight, static_cast<bool>(for_logits.rowwise));
    if (!backward) {
      ops().cross_entropy({}, {}, chunk(all.loss), chunk(all.penalty), chunk(correct_), logits,
                          chunk(all.targets), options);
      continue;
    }
    Operand dlogits = chunk_operand(head_.gradient(logits, false), rows, gradient8);
    if (centres || keeps_mean) dlogits.column_sum = logit_gradient_sums_;
    ops().cross_entropy(dlogits, corrects ? chunk(correction_) : Tensor{}, chunk(all.loss),
                        chunk(all.penalty), {}, logits, chunk(all.targets), options);
    head_.backward(ops(), all.gradient.row_range(begin, rows), x, dlogits, first && begin == 0);
  }
  if (corrects) correct_row_sums(all);
  if (centres)
    ops().add_outer(head_.weight.parameter().gradient, logit_gradient_sums_, head_input_sums_, mean_factor);
  if (keeps_mean) keep_mean_of_head_gradient(all);
  if (all.needs_scatter) scatter_head_rows(all);
  const int64_t summed = all.needs_scatter ? shape_.tokens() : all.count;
  const auto add_to_sum = [&](int64_t index, const Tensor& values) {
    ops().add_column_sum(sums_.part(index, 1), values.part(0, summed).reshaped({summed, 1}), {}, 1.0f);
  };
  add_to_sum(0, loss_);
  add_to_sum(1, penalty_);
}

int64_t Transformer::correct_targets() const {
  std::vector<int32_t> correct(static_cast<size_t>(shape_.tokens()));
  device_.copy_to_host(correct.data(), correct_);
  return std::count(correct.begin(), correct.end(), 1);
}

std::vector<float> Transformer::target_losses() const {
  const bool gathered = gathers_head_rows(false);
  std::vector<float> rows(static_cast<size_t>(gathered ? target_count_ : shape_.tokens()));
  if (rows.empty()) return rows;
  device_.copy_to_host(rows.data(), loss_.part(0, std::ssize(rows)));
  if (gathered) return rows;
  std::vector<float> losses;
  losses.reserve(static_cast<size_t>(target_count_));
  for (int64_t i = 0; i < target_count_; ++i)
    losses.push_back(rows[static_cast<size_t>(head_rows_host_[static_cast<size_t>(i)])]);
  return losses;
}

LossSums Transformer::sums() const {
  float values[2];
  device_.copy_to_host(values, sums_);
  return {values[0], values[1]};
}

std::vector<std::vector<float>> Transformer::logits_at(const std::vector<int64_t>& tokens) {
  begin_evaluation();
  forward_body(pass(false));
  std::vector<std::vector<float>> result;
  for (const int64_t token : tokens) {
    const Tensor logits = logits_.row_range(0, 1);
    Quantized input8;
    const Operand x = chunk_operand(head_.input(final_normed_.row_range(token, 1), false), 1, input8);
    if (x.fp8) ops().quantize(x);
    head_.forward(ops(), logits, x);
    std::vector<float> values(static_cast<size_t>(config_.padded_vocab()));
    if (logits.dtype == DType::F32) {
      device_.copy_to_host(values.data(), logits);
    } else {
      std::vector<Bf16> narrow_values(values.size());
      device_.copy_to_host(narrow_values.data(), logits);
      std::transform(narrow_values.begin(), narrow_values.end(), values.begin(),
                     [](Bf16 value) { return to_float(value); });
    }
    values.resize(static_cast<size_t>(config_.vocab));
    result.push_back(std::move(values));
  }
  end_evaluation();
  return result;
}

}  // namespace octet
