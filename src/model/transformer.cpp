#include "model/transformer.h"

#include <algorithm>
#include <array>
#include <bit>

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

// Elements [begin, begin + count) of a vector.
Tensor part_of(const Tensor& vector, int64_t begin, int64_t count) {
  return {static_cast<std::byte*>(vector.data) + begin * static_cast<int64_t>(size_of(vector.dtype)),
          vector.dtype,
          {count}};
}

}  // namespace

void Transformer::weights_changed() {
  ops().set_workspace(workspace_);
  for (Linear* linear : linears_) linear->set_pass(scales_, false);
  if (sharding().shares_state()) {
    const bool delayed = scales_.config().recipe == Fp8Recipe::Delayed && !scales_.calibrating();
    quantize_parts(delayed);
    require(static_cast<bool>(rank_hooks_.gather),
            "[model] weights that ranks share were changed without ranks");
    rank_hooks_.gather();
    // RankSync quantises weights that arrive from other ranks. A frozen head does not: it is whole on every rank.
    for (Linear* linear : linears_) {
      if (!linear->weight().storage.is_shared()) linear->quantize_weight(ops());
    }
    return;
  }
  for (Linear* linear : linears_) linear->quantize_weight(ops());
}

void Transformer::quantize_parts(bool delayed) {
  bool agreed = true;
  for (Linear* linear : linears_) {
    if (!linear->sends_codes() || !linear->weight().storage.dense) continue;
    linear->quantize_part(ops(), delayed);
    agreed &= delayed || linear->weight_fp8()->rule.granularity != Granularity::Tensor;
  }
  if (agreed) return;
  rank_hooks_.merge_slots();
  for (Linear* linear : linears_) {
    if (linear->sends_codes() && linear->weight().storage.dense && linear->weight().storage.rows > 0)
      linear->quantize_part(ops(), true);
  }
}

bool Transformer::parts_need_scales() const {
  return std::ranges::any_of(linears_, [](const Linear* linear) {
    return linear->sends_codes() && linear->trains() && !linear->knows_scale();
  });
}

void Transformer::initialise(uint64_t seed, bool base) {
  ops().set_workspace(workspace_);
  parameters_.initialise(device_, seed, base);
  if (!base) return;
  for (Linear* linear : linears_) {
    const Parameter& p = linear->weight();
    if (p.storage.dense) continue;
    fill_weight(*linear, [&](Tensor rows, int64_t begin) { fill_rows(device_, rows, p, seed, begin); });
  }
}

void Transformer::fill_weight(Linear& linear, const Linear::StageRows& stage) {
  ops().set_workspace(workspace_);
  const bool shared = linear.sends_codes() && sharding().ranks > 1;
  linear.fill_weight(device_, staging_, numerics_.dense(), stage,
                     shared ? rank_hooks_.largest : Linear::LargestOverRanks{});
}

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
  // The others are the first ones without a target. Empty rows would change the mean, which head_loss takes.
  for (int64_t i = 0; i < n && std::ssize(head_rows_host_) < rounded; ++i) {
    if (targets[static_cast<size_t>(i)] < 0) head_rows_host_.push_back(static_cast<int32_t>(i));
  }
  head_targets_host_.resize(static_cast<size_t>(rounded), -1);
}

void Transformer::load(const HostBatch& batch, std::optional<float> gradient_scale, uint64_t dropout_seed) {
  const auto n = static_cast<size_t>(shape_.tokens());
  require(batch.tokens.size() == n && batch.targets.size() == n && batch.positions.size() == n,
          "[model] a micro-batch of {} tokens, {} targets and {} positions, expected {} of each",
          batch.tokens.size(), batch.targets.size(), batch.positions.size(), n);
  const size_t documents = batch.document_starts.size() - 1;
  require(batch.document_starts.size() >= 2 && documents <= n, "[model] {} documents in {} tokens", documents,
          n);
  ops().set_workspace(workspace_);  // several Transformers may share one device
  documents_ = {document_starts_, static_cast<int64_t>(documents), 0};
  for (size_t i = 0; i < documents; ++i) {
    documents_.max_length =
        std::max<int64_t>(documents_.max_length, batch.document_starts[i + 1] - batch.document_starts[i]);
  }
  padded_starts_.assign(batch.document_starts.begin(), batch.document_starts.end());
  // A recording contains these two numbers. They are rounded up, so that few different recordings occur. The added
  // documents are empty. This is done only if the documents cover all tokens, because count * max_length == tokens
  // means that all documents have one length.
  const bool covers = batch.document_starts.front() == 0 && batch.document_starts.back() == shape_.tokens();
  if (shape_.graphs && covers && documents_.count * documents_.max_length != shape_.tokens()) {
    const auto power_of_two = [](int64_t value, int64_t most) {
      return std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value))), most);
    };
    documents_.count = power_of_two(documents_.count, shape_.tokens());
    documents_.max_length = power_of_two(documents_.max_length, shape_.length);
    padded_starts_.resize(static_cast<size_t>(documents_.count) + 1, batch.document_starts.back());
  }
  Tensor starts = document_starts_;
  starts.shape = {std::ssize(padded_starts_)};
  std::vector<InputCopy> inputs = {{tokens_, batch.tokens.data()},
                                   {targets_, batch.targets.data()},
                                   {positions_, batch.positions.data()},
                                   {starts, padded_starts_.data()}};
  if (gradient_scale) inputs.push_back({gradient_scale_, &*gradient_scale});
  choose_head_rows(batch.targets);
  const float target_share = 1.0f / static_cast<float>(std::max<int64_t>(target_count_, 1));
  if (target_share_) inputs.push_back({target_share_, &target_share});
  if (head_count_ < shape_.tokens()) {
    inputs.push_back({part_of(target_rows_, 0, head_count_), head_rows_host_.data()});
    inputs.push_back({part_of(gathered_targets_, 0, head_count_), head_targets_host_.data()});
  }
  if (dropout_seed_) inputs.push_back({dropout_seed_, &dropout_seed});
  device_.feed(inputs);
}

LayerPass Transformer::pass(bool fp8) const {
  return {.ops = ops(),
          .config = config_,
          .keep = keep_,
          .fp8 = fp8,
          .stops_at_bottom = !wte_->storage.trainable && !(wpe_ && wpe_->storage.trainable) &&
                             !blocks_.front().attention.norm.gain->storage.trainable,
          .positions = positions_,
          .rope_table = rope_table_,
          .documents = documents_};
}

void Transformer::block_forward(size_t index, const LayerPass& pass) {
  Block& block = blocks_[index];
  const Tensor residual = block.attention_acts.residual;
  Tensor x = residual, delta;
  if (index > 0 && !pass.recompute) x = blocks_[index - 1].mlp_acts.residual, delta = shared_.delta;
  block.attention.forward(pass, block.attention_acts, x, delta, shared_.delta);
  block.mlp.forward(pass, block.mlp_acts, residual, shared_.delta, shared_.delta);
}

// Embedding, all blocks and the final norm.
void Transformer::forward_body(const LayerPass& pass) {
  device_.begin_phase(Phase::Forward);
  call(hooks_.before_forward, 0);
  segment("embedding", [&] {
    ops().embedding_forward(blocks_.front().attention_acts.residual, tokens_, positions_, wte_->whole,
                            wpe_ ? wpe_->whole : Tensor{});
  });
  for (size_t l = 0; l < blocks_.size(); ++l) {
    call(hooks_.before_forward, l + 1);
    segment(fmt::format("forward {}", l), [&] { block_forward(l, pass); });
  }
  call(hooks_.before_forward, last_group());
  segment("final norm", [&] {
    final_norm_.forward(pass, {.dense = final_normed_}, final_residual_, final_mean_, final_inv_,
                        blocks_.back().mlp_acts.residual, shared_.delta);
  });
}

// Work between two hooks. It is recorded on its own if hooks are called, because collectives must not be recorded.
void Transformer::segment(std::string_view name, const std::function<void()>& work) {
  if (segments_.empty()) return work();
  device_.repeat(fmt::format("{} {}", segments_, name), work);
}

// Logits, loss and their gradients, one chunk of rows at a time, so that the logits need a limited amount of memory.
void Transformer::head_loss(bool backward, const PenaltyOptions& penalty, bool first, bool fp8) {
  device_.begin_phase(Phase::Head);
  const LossOptions options{config_.vocab, gradient_scale_, penalty.kind, penalty.weight};
  const bool gathers = gathers_head_rows(backward), few_rows = gathers && backward;
  const int64_t n = gathers ? head_count_ : shape_.tokens();
  const Tensor gathered_input = shape_.scoring ? head_input_ : dfinal_normed_;
  const Tensor input = gathers ? gathered_input : final_normed_,
               targets = gathers ? gathered_targets_ : targets_;
  // The rows that are gathered lie where dfinal_normed_ will be, and their gradient where they came from.
  const Tensor gradient = gathers ? final_normed_ : dfinal_normed_;
  if (gathers) ops().gather_rows(input.row_range(0, n), final_normed_, part_of(target_rows_, 0, n));
  bool corrects = false;
  // The rows of the input are often nearly equal, most of all early in a run. FP8 then rounds away their differences, from
  // which the weight learns. So the product for the weight's gradient reads rows without their mean, and the mean's share is
  // added afterwards. With d the gradients of logits:
  //   sum over rows of d x^T = sum of d (x - mean)^T + (sum of d) mean^T.
  const bool centres = backward && centres_head_input();
  // Layers sum over rows, and there the gradients of the input nearly cancel. The errors of FP8 do not: the weights are
  // rounded alike for all rows, and so are alike probabilities. So the sum over rows is also computed without FP8, and the
  // difference is spread over the rows with a target.
  const bool keeps_mean = backward && keeps_mean_of_head_gradient();
  const float mean_factor = 1.0f / static_cast<float>(n);
  if (centres) {
    device_.zero(head_input_sums_);
    ops().add_column_sum(head_input_sums_, input.row_range(0, n));
  }
  if (centres || keeps_mean) device_.zero(logit_gradient_sums_);
  for (int64_t begin = 0; begin < n; begin += head_rows_) {
    const int64_t rows = std::min(head_rows_, n - begin);
    Quantized input8, gradient8;  // the chunk's views of the Linear's copies
    const Operand x = chunk_operand(head_.input(input.row_range(begin, rows), fp8), rows, input8);
    Quantized for_logits = input8, for_weight = input8;
    if (centres || !backward) for_logits.colwise = {};
    if (centres) for_weight.rowwise = {};
    if (for_logits.rowwise || for_logits.colwise) ops().quantize({.dense = x.dense, .fp8 = &for_logits});
    const Tensor logits = logits_.row_range(0, rows);
    head_.forward(ops(), logits, x);
    if (centres) {
      // Both copies share a slot. If logits are in FP8, it keeps the scale and the statistics of the rows with their mean.
      if (for_logits.rowwise) {
        for_weight.rule.delayed = true;
        for_weight.stats = nullptr;
      }
      ops().add_outer(x.dense, {}, head_input_sums_, -mean_factor);  // in place: add_to_rows reads them, too
      ops().quantize({.dense = x.dense, .fp8 = &for_weight});
    }
    const auto part = [&](const Tensor& t) { return part_of(t, begin, rows); };
    const Tensor &loss = few_rows ? gathered_loss_ : loss_,
                 &penalties = few_rows ? gathered_penalty_ : penalty_;
    if (backward) {
      Operand dlogits = chunk_operand(head_.gradient(logits, false), rows, gradient8);
      if (centres || keeps_mean) dlogits.column_sum = logit_gradient_sums_;
      corrects = dlogits.fp8 && dlogits.fp8->rule.delayed && head_.has_dense();
      ops().cross_entropy(dlogits, corrects ? part(correction_) : Tensor{}, part(loss), part(penalties), {},
                          logits, part(targets), options);
      head_.backward(ops(), gradient.row_range(begin, rows), x, dlogits, first && begin == 0);
    } else {
      ops().cross_entropy({}, {}, part(loss), part(penalties), part(correct_), logits, part(targets),
                          options);
    }
  }
  // The gradients of a row's logits add up to nothing: what is common to all tokens does not matter to the loss, so the
  // loss does not hold it in place. E5M2 rounds many alike probabilities alike, by up to an eighth. Without this, all
  // embeddings would drift, and logits with a large common part have few bits left for their differences.
  if (corrects) {
    const Tensor factors = part_of(correction_, 0, n), rows = part_of(targets, 0, n);
    if (head_.choice()[Product::Dgrad].fp8)
      ops().add_scaled_rows(gradient.row_range(0, n), head_.weight().whole, rows, factors);
    // Of centred rows: the mean's share has the sums of gradients that were not rounded.
    if (head_.trains() && head_.choice()[Product::Wgrad].fp8)
      ops().add_to_rows(head_.weight().gradient, input.row_range(0, n), rows, factors);
  }
  if (centres) ops().add_outer(head_.weight().gradient, logit_gradient_sums_, head_input_sums_, mean_factor);
  if (keeps_mean) {
    const Tensor rows = gradient.row_range(0, n);
    const Tensor error = head_gradient_error_.row_range(0, 1), share = head_gradient_error_.row_range(1, 1);
    device_.zero(head_gradient_error_);
    ops().add_column_sum(error, head_.weight().whole, logit_gradient_sums_, 1.0f);
    ops().add_column_sum(error, rows, {}, -1.0f);
    // Divided on the device: a recording is used for batches with other numbers of targets.
    ops().add_column_sum(share, error, target_share_, 1.0f);
    ops().shift_rows(rows, share, part_of(targets, 0, n), 1.0f);
  }
  if (few_rows) {
    // Back to their places, so that sums over all tokens have the same bits as if all rows were computed.
    const Tensor rows = part_of(target_rows_, 0, n);
    ops().scatter_rows(dfinal_normed_, gradient.row_range(0, n), rows);
    const auto scatter = [&](const Tensor& to, const Tensor& from) {
      ops().scatter_rows(to.reshaped({shape_.tokens(), 1}), part_of(from, 0, n).reshaped({n, 1}), rows);
    };
    scatter(loss_, gathered_loss_);
    scatter(penalty_, gathered_penalty_);
  }
  const int64_t summed = few_rows ? shape_.tokens() : n;
  const auto add_to_sum = [&](int64_t index, Tensor values) {
    const Tensor sum{static_cast<float*>(sums_.data) + index, DType::F32, {1}};
    ops().add_column_sum(sum, part_of(values, 0, summed).reshaped({summed, 1}));
  };
  add_to_sum(0, loss_);
  add_to_sum(1, penalty_);
}

void Transformer::block_backward(size_t index, const LayerPass& pass, bool first) {
  LayerPass again = pass;
  again.recompute = true;
  block_forward(index, again);
  // dresidual holds the gradient of the block's output, already in the form that down reads.
  Block& block = blocks_[index];
  block.mlp.backward(pass, block.mlp_acts, shared_.gradients, &block.attention.out, first);
  block.attention.backward(pass, block.attention_acts, shared_.gradients, linear_below(index), first);
}

void Transformer::backward_body(bool first) {
  device_.begin_phase(Phase::Backward);
  const LayerPass pass = this->pass(true);
  const GradientBuffers& gradients = shared_.gradients;
  segment("final norm backward", [&] {
    device_.zero(gradients.dresidual);
    final_norm_.backward(pass, gradients.residual_for(&blocks_.back().mlp.down), dfinal_normed_,
                         final_residual_, final_mean_, final_inv_);
  });
  call(hooks_.after_backward, last_group());
  for (size_t l = blocks_.size(); l-- > 0;) {
    call(hooks_.before_backward, l + 1);
    segment(fmt::format("backward {}", l), [&] { block_backward(l, pass, first); });
    call(hooks_.after_backward, l + 1);
  }
  const Tensor dwpe = wpe_ ? wpe_->gradient : Tensor{};
  if (wte_->gradient || dwpe) {
    segment("embedding backward", [&] {
      ops().embedding_backward(wte_->gradient, dwpe, gradients.dresidual, tokens_, positions_);
    });
  }
  call(hooks_.after_backward, 0);
}

void Transformer::forward_backward(const PenaltyOptions& penalty, bool first, bool fp8_stats) {
  for (Linear* linear : linears_) linear->set_pass(scales_, fp8_stats);
  shared_.adapter.dropout.active = true;
  if (first) {
    // Linears overwrite the gradients of their weights and adapters; all other gradients are added to.
    std::vector<Tensor> added;
    for (Parameter& p : parameters_.all()) {
      const bool written =
          p.spec.is_adapter() || std::any_of(linears_.begin(), linears_.end(),
                                             [&](const Linear* linear) { return &linear->weight() == &p; });
      if (p.gradient && !written) added.push_back(p.gradient);
    }
    device_.zero(added);
  }
  const auto forward = [&] { forward_body(pass(true)); };
  const auto head = [&] { head_loss(true, penalty, first, true); };
  const auto backward = [&] { backward_body(first); };
  if (!shape_.graphs) {
    forward();
    head();
    backward();
  } else {
    const std::string common = common_signature(first, fp8_stats);
    const std::string body = fmt::format("{} body {} {}", common, documents_.count, documents_.max_length);
    const auto body_part = [&](const char* name, const std::function<void()>& work) {
      if (!has_hooks_) return device_.repeat(fmt::format("{} {}", body, name), work);
      segments_ = body;
      work();
      segments_.clear();
    };
    body_part("forward", forward);
    device_.repeat(fmt::format("{} head {} {} {}", common, head_count_, static_cast<int>(penalty.kind),
                               std::bit_cast<uint32_t>(penalty.weight)),
                   head);
    body_part("backward", backward);
  }
  scales_.end_calibration();
}

// The Transformer's number determines the buffers. What load() has set is added by the parts that read it.
std::string Transformer::common_signature(bool first, bool fp8_stats) const {
  return fmt::format("{} {} {} {}", number_, first, fp8_stats, scales_.calibrating());
}

void Transformer::forward_loss(const PenaltyOptions& penalty, bool fp8) {
  // First: making FP8 copies of new weights changes slots, and evaluation must not.
  if (rank_hooks_.settle) rank_hooks_.settle();
  scales_.push_slots(device_);
  for (Linear* linear : linears_) linear->set_pass(scales_, false);
  shared_.adapter.dropout.active = false;
  forward_body(pass(fp8));
  head_loss(false, penalty, false, fp8);
  device_.begin_phase(Phase::Outside);
  scales_.pop_slots(device_);
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
  device_.copy_to_host(rows.data(), part_of(loss_, 0, std::ssize(rows)));
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
  if (rank_hooks_.settle) rank_hooks_.settle();
  scales_.push_slots(device_);
  for (Linear* linear : linears_) linear->set_pass(scales_, false);
  shared_.adapter.dropout.active = false;
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
  device_.begin_phase(Phase::Outside);
  scales_.pop_slots(device_);
  return result;
}

std::vector<AdamWParameter> Transformer::optimizer_view(float weight_decay, float loraplus_ratio) {
  std::vector<Parameter*> all;
  for (Parameter& p : parameters_.all()) all.push_back(&p);
  return optimizer_view(all, weight_decay, loraplus_ratio);
}

std::vector<AdamWParameter> Transformer::optimizer_view(std::span<Parameter* const> parameters,
                                                        float weight_decay, float loraplus_ratio) {
  require(memory_ != nullptr, "[model] optimizer_view() before allocate()");
  std::vector<AdamWParameter> view;
  for (const Parameter* parameter : parameters) {
    const Parameter& p = *parameter;
    if (!p.storage.trainable || p.weight.numel() == 0) continue;
    AdamWParameter entry{
        .weight = p.weight,
        .remainder = p.remainder,
        .gradient = p.update,
        .m = p.m,
        .v = p.v,
        .m_scales = p.m_scales,
        .v_scales = p.v_scales,
        .weight_decay = p.spec.decay ? weight_decay : 0.0f,
        .learning_rate_scale = p.spec.adapter == ParameterSpec::Adapter::B ? loraplus_ratio : 1.0f,
        .stream = p.stream(),
        .first_row = p.storage.first_row};
    for (Linear* linear : linears_) {
      if (&linear->weight() == &p) entry.fp8 = linear->updated_fp8();
    }
    view.push_back(entry);
  }
  return view;
}

}  // namespace octet
