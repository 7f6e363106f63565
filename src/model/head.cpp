#include "model/head.h"

#include <algorithm>

namespace octet {
namespace {

// As few chunks as the memory allows, all of about the same size, because a short last chunk runs its products slowly.
// Large chunks are whole GEMM tiles if both still hold.
int64_t even_chunk(int64_t tokens, int64_t most_rows) {
  const int64_t even_rows = div_up(tokens, div_up(tokens, most_rows));
  const int64_t tiled_rows = round_up(even_rows, 128);
  const int64_t last_rows = tokens - (div_up(tokens, tiled_rows) - 1) * tiled_rows;
  const bool tiled = even_rows >= 1024 && tiled_rows <= most_rows && 4 * last_rows >= 3 * tiled_rows;
  return std::min(tiled ? tiled_rows : round_up(even_rows, 16), tokens);
}

DType logits_dtype(const RunShape& shape, const Numerics& numerics) {
  return shape.scoring ? DType::F32 : numerics.dense();
}

// An operand of the head for `rows` rows; `view` holds its FP8 copies.
Operand chunk_operand(Operand operand, int64_t rows, Quantized& view) {
  if (operand.fp8) {
    view = with_rows(*operand.fp8, rows);
    operand.fp8 = &view;
  }
  return operand;
}

}  // namespace

int64_t Head::chunk_rows(const ModelConfig& config, const RunShape& shape, const Numerics& numerics) {
  const int64_t row_bytes =
      config.padded_vocab() * static_cast<int64_t>(size_of(octet::logits_dtype(shape, numerics)));
  const int64_t most_rows = std::max<int64_t>(shape.head_chunk_bytes / row_bytes / 16 * 16, 16);
  return even_chunk(shape.tokens(), most_rows);
}

Head::Head(const ModelConfig& config, const RunShape& shape, const Numerics& numerics, Device& device)
    : shape_(shape),
      device_(device),
      vocab_(config.vocab),
      padded_vocab_(config.padded_vocab()),
      width_(config.width),
      chunk_rows_(chunk_rows(config, shape, numerics)),
      dense_(numerics.dense()),
      logits_dtype_(logits_dtype(shape, numerics)) {}

void Head::plan(BufferPlanner& planner, QuantizedScratch& scratch, const Timeline& time) {
  const int64_t n = shape_.tokens();
  const Lifetime at_head = {time.head(), time.head()}, into_backward = {time.head(), time.head() + 1};
  const auto add = [&](Tensor& view, const char* name, DType dtype, Shape shape, Lifetime lifetime) {
    planner.add(view, name, dtype, shape, MemoryCategory::Activations, lifetime);
  };
  linear_.operands.attach_scratch(planner, scratch, chunk_rows_);
  linear_.operands.attach_input(planner, chunk_rows_, at_head, nullptr);
  add(input_, "final.normed", dense_, {n, width_}, into_backward);
  // score() reads bf16 logits' memory as fp32: it must have room for 16 rows of those.
  const int64_t fp32_rows = logits_dtype_ == DType::F32 ? 0 : 2 * std::min<int64_t>(16, n);
  add(logits_, "logits", logits_dtype_, {std::max(chunk_rows_, fp32_rows), padded_vocab_}, at_head);
  if (shape_.scoring) add(scoring_input_, "head.input", dense_, {n, width_}, at_head);
  if (shape_.training) {
    add(input_gradient_, "final.dnormed", dense_, {n, width_}, into_backward);
    if (linear_.spec.choice[Product::Dgrad].fp8 || linear_.spec.choice[Product::Wgrad].fp8)
      add(correction_, "head.correction", DType::F32, {n}, at_head);
    if (centres_input()) add(input_sums_, "head.input_sums", DType::F32, {width_}, at_head);
    if (keeps_mean_of_gradient()) add(mean_error_, "head.gradient_error", DType::F32, {2, width_}, at_head);
    if (centres_input() || keeps_mean_of_gradient())
      add(gradient_sums_, "head.gradient_sums", DType::F32, {padded_vocab_}, at_head);
  }

  const auto keep = [&](Tensor& view, const char* name, DType dtype, Shape shape) {
    planner.add(view, name, dtype, shape, MemoryCategory::Workspace, Lifetime::always());
  };
  const bool gathers_in_training = shape_.training && !shape_.head_all_rows;
  if (shape_.training && keeps_mean_of_gradient()) keep(target_share_, "batch.target_share", DType::F32, {1});
  if (gathers_in_training) {
    keep(gathered_loss_, "batch.gathered_loss", DType::F32, {n});
    keep(gathered_penalty_, "batch.gathered_penalty", DType::F32, {n});
    keep(gathered_weights_, "batch.gathered_weights", DType::F32, {n});
  }
  if (shape_.training) {
    keep(weights_, "batch.weights", DType::F32, {n});
    keep(objective_loss_, "batch.objective_loss", DType::F32, {1});
  }
  if (gathers_in_training || shape_.scoring) {
    keep(rows_, "batch.target_rows", DType::I32, {n});
    keep(row_targets_, "batch.gathered_targets", DType::I32, {n});
  }
  keep(loss_, "loss", DType::F32, {n});
  keep(penalty_, "penalty", DType::F32, {n});
  keep(correct_, "correct", DType::I32, {n});
  keep(sums_, "sums", DType::F32, {2});
}

int64_t Head::staged_bytes() const {
  return octet::staged_bytes({target_share_, rows_, row_targets_, weights_, objective_loss_});
}

int64_t Head::bytes_moved_by_chunks() const {
  const int64_t sum_bytes = padded_vocab_ * width_ * static_cast<int64_t>(sizeof(float));
  return linear_.weight.trains() ? 2 * sum_bytes * (div_up(shape_.tokens(), chunk_rows_) - 1) : 0;
}

void Head::load(const HostBatch& batch, std::vector<InputCopy>& copies) {
  const int64_t n = shape_.tokens();
  const std::span<const int32_t> targets = batch.targets;
  weighted_ = batch.weights.empty() || !weights_ ? Weights::None : Weights::OfBatch;
  if (weighted_ == Weights::OfBatch) copies.push_back({weights_, batch.weights.data()});
  row_count_ = n;
  rows_on_host_.clear();
  for (int64_t i = 0; i < n; ++i) {
    if (targets[static_cast<size_t>(i)] >= 0) rows_on_host_.push_back(static_cast<int32_t>(i));
  }
  target_count_ = std::ssize(rows_on_host_);
  target_share_on_host_ = 1.0f / static_cast<float>(std::max<int64_t>(target_count_, 1));
  if (target_share_) copies.push_back({target_share_, &target_share_on_host_});
  if (!rows_) return;
  const int64_t unit = round_up(div_up(n, 16), 16);
  const int64_t rounded = round_up(std::max<int64_t>(target_count_, 1), unit);
  if (rounded >= n) return;
  row_count_ = rounded;
  row_targets_on_host_.clear();
  for (const int32_t row : rows_on_host_) row_targets_on_host_.push_back(targets[static_cast<size_t>(row)]);
  // The others are the first ones without a target. Empty rows would change the mean of the inputs.
  for (int64_t i = 0; i < n && std::ssize(rows_on_host_) < rounded; ++i) {
    if (targets[static_cast<size_t>(i)] < 0) rows_on_host_.push_back(static_cast<int32_t>(i));
  }
  row_targets_on_host_.resize(static_cast<size_t>(rounded), -1);
  copies.push_back({rows_.part(0, rounded), rows_on_host_.data()});
  copies.push_back({row_targets_.part(0, rounded), row_targets_on_host_.data()});
}

std::string Head::signature() const {
  return fmt::format("{} {}", row_count_, static_cast<int>(weighted_));
}

Head::Rows Head::gather(const Tensor& targets, bool backward) const {
  const bool weighted = backward && weighted_ != Weights::None;
  if (!gathers(backward)) {
    return {.count = shape_.tokens(),
            .input = input_,
            .gradient = input_gradient_,
            .targets = targets,
            .weights = weighted ? weights_ : Tensor{},
            .loss = loss_,
            .penalty = penalty_};
  }
  // In training, rows are gathered where the gradient of the input will be, and their gradient lies where they came from.
  Rows rows{.count = row_count_,
            .input = (shape_.scoring ? scoring_input_ : input_gradient_).row_range(0, row_count_),
            .gradient = input_.row_range(0, row_count_),
            .targets = row_targets_.part(0, row_count_),
            .weights = weighted ? gathered_weights_.part(0, row_count_) : Tensor{},
            .loss = backward ? gathered_loss_ : loss_,
            .penalty = backward ? gathered_penalty_ : penalty_,
            .needs_scatter = backward};
  const Tensor places = rows_.part(0, row_count_);
  ops().gather_rows(rows.input, input_, places);
  if (weighted)
    ops().gather_rows(rows.weights.reshaped({row_count_, 1}), weights_.reshaped({shape_.tokens(), 1}),
                      places);
  return rows;
}

// Back to their places, so that sums over all tokens have the same bits as if all rows were computed.
void Head::scatter(const Rows& rows) const {
  const Tensor places = rows_.part(0, rows.count);
  ops().scatter_rows(input_gradient_, rows.gradient, places);
  const auto scatter_values = [&](const Tensor& to, const Tensor& from) {
    ops().scatter_rows(to.reshaped({shape_.tokens(), 1}), from.part(0, rows.count).reshaped({rows.count, 1}),
                       places);
  };
  scatter_values(loss_, rows.loss);
  scatter_values(penalty_, rows.penalty);
}

// fp32 logits may be requested of a head that has memory for bf16: then a chunk has half as many rows.
std::vector<Head::Chunk> Head::chunks_of(const Rows& rows, DType logits) const {
  int64_t most = chunk_rows_;
  if (logits != logits_dtype_) {
    const int64_t fit = logits_.bytes() / (padded_vocab_ * static_cast<int64_t>(size_of(logits)));
    most = fit < 16 ? fit : fit / 16 * 16;
  }
  std::vector<Chunk> chunks;
  for (int64_t begin = 0; begin < rows.count; begin += most) {
    const int64_t count = std::min(most, rows.count - begin);
    const auto values = [&](const Tensor& all) { return all ? all.part(begin, count) : Tensor{}; };
    chunks.push_back({.first = begin == 0,
                      .input = rows.input.row_range(begin, count),
                      .gradient = rows.gradient ? rows.gradient.row_range(begin, count) : Tensor{},
                      .logits = {logits_.data, logits, {count, padded_vocab_}},
                      .targets = values(rows.targets),
                      .weights = values(rows.weights),
                      .loss = values(rows.loss),
                      .penalty = values(rows.penalty),
                      .correct = values(correct_),
                      .correction = values(correction_)});
  }
  return chunks;
}

// `for_weight`: the FP8 copy that the product for the weight's gradient reads is made, too.
void Head::compute_logits(const Chunk& chunk, const Operand& x, bool for_weight) const {
  if (x.fp8) {
    Quantized copies = *x.fp8;
    if (!for_weight) copies.colwise = {};
    if (copies.rowwise || copies.colwise) ops().quantize({.dense = x.dense, .fp8 = &copies});
  }
  linear_.forward(ops(), chunk.logits, x);
}

void Head::losses(const BatchInputs& batch, const PenaltyOptions& penalty, bool fp8) {
  device_.begin_phase(Phase::Head);
  const Rows rows = gather(batch.targets, false);
  for (const Chunk& chunk : chunks_of(rows, logits_dtype_)) {
    Quantized input8;
    const Operand x = chunk_operand(linear_.input(chunk.input, fp8), chunk.rows(), input8);
    compute_logits(chunk, x, false);
    ops().cross_entropy({}, {}, chunk.loss, chunk.penalty, chunk.correct, chunk.logits, chunk.targets,
                        {.vocab = vocab_, .penalty = penalty.kind, .penalty_weight = penalty.weight});
  }
  add_to_sum(0, loss_.part(0, rows.count), {});
  add_to_sum(1, penalty_.part(0, rows.count), {});
}

void Head::score(const BatchInputs& batch, bool fp8) {
  device_.begin_phase(Phase::Head);
  for (const Chunk& chunk : chunks_of(gather(batch.targets, shape_.training), DType::F32)) {
    Quantized input8;
    const Operand x = chunk_operand(linear_.input(chunk.input, fp8), chunk.rows(), input8);
    const QuantizePass uncounted{input8.pass->scale, false};  // the second pass counts
    input8.pass = &uncounted;
    compute_logits(chunk, x, false);
    ops().cross_entropy({}, {}, chunk.loss, {}, {}, chunk.logits, chunk.targets, {.vocab = vocab_});
  }
}

std::vector<float> Head::row_losses() const {
  const auto n = static_cast<size_t>(shape_.tokens());
  const bool gathered = gathers(shape_.training);
  std::vector<float> computed(gathered ? static_cast<size_t>(target_count_) : n);
  const Tensor& losses = gathered && shape_.training ? gathered_loss_ : loss_;
  if (!computed.empty()) device_.copy_to_host(computed.data(), losses.part(0, std::ssize(computed)));
  if (!gathered) return computed;
  std::vector<float> in_place(n);
  for (size_t i = 0; i < computed.size(); ++i) in_place[static_cast<size_t>(rows_on_host_[i])] = computed[i];
  return in_place;
}

void Head::weigh(const WeighRows& objective) {
  const std::vector<float> losses = row_losses();
  std::vector<float> weights(losses.size());
  const auto loss = static_cast<float>(objective(losses, weights));
  device_.feed(std::vector<InputCopy>{{weights_, weights.data()}, {objective_loss_, &loss}});
  weighted_ = Weights::OfObjective;
}

void Head::losses_and_gradients(const BatchInputs& batch, const PenaltyOptions& penalty, bool first) {
  device_.begin_phase(Phase::Head);
  const Rows rows = gather(batch.targets, true);
  const bool centres = centres_input(), keeps_mean = keeps_mean_of_gradient(), corrects = corrects_row_sums();
  const float mean_factor = 1.0f / static_cast<float>(rows.count);
  begin_corrections(rows);
  for (const Chunk& chunk : chunks_of(rows, logits_dtype_)) {
    Quantized input8, gradient8;  // the chunk's views of the Linear's copies
    const Operand x = chunk_operand(linear_.input(chunk.input, true), chunk.rows(), input8);
    compute_logits(chunk, x, !centres);
    if (centres) quantize_centred(x, mean_factor);
    // The gradient of the logits takes their place.
    Operand dlogits = chunk_operand(linear_.gradient(chunk.logits, false), chunk.rows(), gradient8);
    if (centres || keeps_mean) dlogits.column_sum = gradient_sums_;
    ops().cross_entropy(dlogits, corrects ? chunk.correction : Tensor{}, chunk.loss, chunk.penalty, {},
                        chunk.logits, chunk.targets,
                        {.vocab = vocab_,
                         .gradient_scale = batch.gradient_scale,
                         .row_factors = chunk.weights,
                         .penalty = penalty.kind,
                         .penalty_weight = penalty.weight});
    linear_.backward(ops(), chunk.gradient, x, dlogits, first && chunk.first);
  }
  if (corrects) correct_row_sums(rows);
  if (centres) add_share_of_mean(mean_factor);
  if (keeps_mean) keep_mean_of_gradient(rows);
  if (rows.needs_scatter) scatter(rows);
  if (weighted_ == Weights::OfObjective) {
    add_to_sum(0, objective_loss_, {});
  } else {
    add_to_sum(0, loss_, weighted_ == Weights::OfBatch ? weights_ : Tensor{});
  }
  add_to_sum(1, penalty_, {});
}

void Head::add_to_sum(int64_t index, const Tensor& values, const Tensor& factors) const {
  ops().add_column_sum(sums_.part(index, 1), values.reshaped({values.numel(), 1}), factors, 1.0f);
}

// ---- corrections of FP8 gradients ----

void Head::begin_corrections(const Rows& rows) const {
  if (centres_input()) {
    device_.zero(input_sums_);
    ops().add_column_sum(input_sums_, rows.input, {}, 1.0f);
  }
  if (centres_input() || keeps_mean_of_gradient()) device_.zero(gradient_sums_);
}

// The rows of the input are often nearly equal, most of all early in a run. FP8 then rounds away their differences, from
// which the weight learns. So the product for the weight's gradient reads rows without their mean, and the mean's share is
// added afterwards. With d the gradients of logits:
//   sum over rows of d x^T = sum of d (x - mean)^T + (sum of d) mean^T.
// `mean_factor` makes the mean of input_sums_. Afterwards x itself is without it, too: correct_row_sums reads it.
void Head::quantize_centred(const Operand& x, float mean_factor) const {
  Quantized copy = *x.fp8;
  // Both copies share a slot. If logits are in FP8, this one has the scale that was chosen for the rows with their mean, and
  // is not part of the statistics.
  if (copy.rowwise) copy.pass = &kScaleFromSlot;
  copy.rowwise = {};
  ops().add_outer(x.dense, {}, input_sums_, -mean_factor);
  ops().quantize({.dense = x.dense, .fp8 = &copy});
}

// The second term of the sum above.
void Head::add_share_of_mean(float mean_factor) const {
  ops().add_outer(linear_.weight.gradient(), gradient_sums_, input_sums_, mean_factor);
}

// The gradients of a row's logits add up to zero: what is common to all tokens does not matter to the loss, so the
// loss does not hold it in place. E5M2 rounds equal probabilities in the same way, by up to an eighth. Without this, all
// embeddings would drift, and logits with a large common part have few bits left for their differences. The errors are
// known only with a delayed scale, so not in a pass that calibrates.
void Head::correct_row_sums(const Rows& rows) const {
  const Tensor factors = correction_.part(0, rows.count);
  if (linear_.spec.choice[Product::Dgrad].fp8)
    ops().add_scaled_rows(rows.gradient, linear_.weight.parameter().weight, rows.targets, factors);
  // For centred rows: the mean's share has the sums of gradients that were not rounded.
  if (linear_.weight.trains() && linear_.spec.choice[Product::Wgrad].fp8)
    ops().add_to_rows(linear_.weight.gradient(), rows.input, rows.targets, factors);
}

// Layers sum over rows, and there the gradients of the input nearly cancel. The errors of FP8 do not: it rounds the weights
// in the same way for every row, and equal probabilities, too. So the sum over rows is also computed without FP8, and the
// difference is spread over the rows with a target.
void Head::keep_mean_of_gradient(const Rows& rows) const {
  const Tensor error = mean_error_.row_range(0, 1), share = mean_error_.row_range(1, 1);
  device_.zero(mean_error_);
  ops().add_column_sum(error, linear_.weight.parameter().weight, gradient_sums_, 1.0f);
  ops().add_column_sum(error, rows.gradient, {}, -1.0f);
  // Divided on the device: a recording is used for batches with other numbers of targets.
  ops().add_column_sum(share, error, target_share_, 1.0f);
  ops().shift_rows(rows.gradient, share, rows.targets, 1.0f);
}

// ---- what the host reads ----

int64_t Head::correct_targets() const {
  std::vector<int32_t> correct(static_cast<size_t>(shape_.tokens()));
  device_.copy_to_host(correct.data(), correct_);
  return std::count(correct.begin(), correct.end(), 1);
}

std::vector<float> Head::target_losses() const {
  const bool gathered = gathers(false);
  std::vector<float> rows(static_cast<size_t>(gathered ? target_count_ : shape_.tokens()));
  if (rows.empty()) return rows;
  device_.copy_to_host(rows.data(), loss_.part(0, std::ssize(rows)));
  if (gathered) return rows;
  std::vector<float> losses;
  losses.reserve(static_cast<size_t>(target_count_));
  for (int64_t i = 0; i < target_count_; ++i)
    losses.push_back(rows[static_cast<size_t>(rows_on_host_[static_cast<size_t>(i)])]);
  return losses;
}

std::vector<float> Head::logits_of(int64_t token) {
  const Tensor logits = logits_.row_range(0, 1);
  Quantized input8;
  const Operand x = chunk_operand(linear_.input(input_.row_range(token, 1), false), 1, input8);
  if (x.fp8) ops().quantize(x);
  linear_.forward(ops(), logits, x);
  std::vector<float> values(static_cast<size_t>(padded_vocab_));
  if (logits.dtype == DType::F32) {
    device_.copy_to_host(values.data(), logits);
  } else {
    std::vector<Bf16> narrow_values(values.size());
    device_.copy_to_host(narrow_values.data(), logits);
    std::transform(narrow_values.begin(), narrow_values.end(), values.begin(),
                   [](Bf16 value) { return to_float(value); });
  }
  values.resize(static_cast<size_t>(vocab_));
  return values;
}

}  // namespace octet
