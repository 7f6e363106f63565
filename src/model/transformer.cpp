#include "model/transformer.h"

#include <algorithm>
#include <bit>

namespace octet {

void Transformer::weights_changed() {
  ops().set_workspace(workspace_);
  scales_.begin_pass(false);
  if (sharding().shares_state()) {
    const bool delayed = scales_.config().recipe == Fp8Recipe::Delayed && !scales_.calibrating();
    quantize_parts(delayed ? ScaleFrom::Slot : ScaleFrom::Values);
    require(mover_ != nullptr, "[model] weights that ranks share were changed without ranks");
    mover_->publish();
    // RankSync quantises weights that arrive from other ranks. A frozen head does not: it is whole on every rank.
    for (Linear* linear : linears_) {
      if (!linear->weight.parameter().storage.is_shared()) linear->weight.quantize(ops());
    }
    return;
  }
  for (Linear* linear : linears_) linear->weight.quantize(ops());
}

// A frozen weight must not be recorded again in restored scales, because nothing was recorded where they were saved.
void Transformer::weights_restored() {
  const Tensor slots = scales_.calibrating() ? Tensor{} : scales_.delayed_slots();
  std::vector<std::byte> kept(slots ? static_cast<size_t>(slots.numel()) : 0);
  if (slots) device_.copy_to_host(kept.data(), slots);
  weights_changed();
  if (slots) device_.copy_to_device(slots, kept.data());
}

void Transformer::quantize_parts(ScaleFrom scale) {
  bool agreed = true;
  for (Linear* linear : linears_) {
    if (!linear->weight.sends_codes() || !linear->weight.trains()) continue;
    linear->weight.quantize_part(ops(), scale);
    agreed &= scale == ScaleFrom::Slot || linear->weight.copies()->rule().granularity != Granularity::Tensor;
  }
  if (agreed) return;
  mover_->merge_slots();
  for (Linear* linear : linears_) {
    if (linear->weight.sends_codes() && linear->weight.trains() && linear->weight.parameter().rows() > 0)
      linear->weight.quantize_part(ops(), ScaleFrom::Slot);
  }
}

bool Transformer::parts_need_scales() const {
  return std::ranges::any_of(linears_, [](const Linear* linear) {
    return linear->weight.sends_codes() && linear->weight.trains() && !linear->weight.knows_scale();
  });
}

void Transformer::initialise(uint64_t seed, bool base) {
  ops().set_workspace(workspace_);
  parameters_.initialise(device_, seed, base);
  if (!base) return;
  for (Linear* linear : linears_) {
    const Parameter& p = linear->weight.parameter();
    if (p.storage.has_dense_rows()) continue;
    fill_weight(linear->weight,
                [&](Tensor rows, int64_t begin) { fill_rows(device_, rows, p, seed, begin); });
  }
}

void Transformer::fill_weight(Weight& weight, const Weight::StageRows& stage) {
  ops().set_workspace(workspace_);
  Weight::LargestOverRanks largest;
  if (weight.sends_codes() && sharding().ranks > 1 && mover_)
    largest = [this](float value) { return mover_->largest(value); };
  weight.fill(device_, staging_, numerics_.dense(), stage, largest);
}

void Transformer::load(const HostBatch& batch, std::optional<float> gradient_scale, uint64_t dropout_seed) {
  std::vector<InputCopy> copies;
  inputs_.load(batch, shape_, copies);
  head_.load(batch, copies);
  if (gradient_scale) copies.push_back({inputs_.gradient_scale, &*gradient_scale});
  if (inputs_.dropout_seed) copies.push_back({inputs_.dropout_seed, &dropout_seed});
  ops().set_workspace(workspace_);  // several Transformers may share one device
  device_.feed(copies);
}

LayerPass Transformer::pass(bool fp8) const {
  return {
      .ops = ops(),
      .config = config_,
      .keep = keep_,
      .fp8 = fp8,
      .stops_at_bottom = !embedding_.is_trained() && !blocks_.front().attention.norm.gain->storage.trainable,
      .positions = inputs_.positions,
      .rope_table = rope_table_,
      .documents = inputs_.documents};
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
  acquire(0, Sweep::Forward);
  segment("embedding", [&] {
    ops().embedding_forward(blocks_.front().attention_acts.residual, inputs_.tokens, inputs_.positions,
                            embedding_.tokens->weight, embedding_.position_weight());
  });
  for (size_t l = 0; l < blocks_.size(); ++l) {
    acquire(l + 1, Sweep::Forward);
    segment(fmt::format("forward {}", l), [&] { block_forward(l, pass); });
    release(l + 1, Sweep::Forward);
  }
  acquire(last_group(), Sweep::Forward);
  segment("final norm", [&] {
    final_.norm.forward(pass, {.dense = head_.input()}, final_.residual, final_.mean, final_.inv,
                        blocks_.back().mlp_acts.residual, shared_.delta);
  });
}

// Work between two calls of the mover. It is recorded on its own, because what the mover queues must not be recorded.
void Transformer::segment(std::string_view name, const std::function<void()>& work) {
  if (segments_.empty()) return work();
  device_.repeat(fmt::format("{} {}", segments_, name), work);
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
    final_.norm.backward(pass, gradients.residual_for(&blocks_.back().mlp.down), head_.input_gradient(),
                         final_.residual, final_.mean, final_.inv);
  });
  release(last_group(), Sweep::Backward);
  for (size_t l = blocks_.size(); l-- > 0;) {
    acquire(l + 1, Sweep::Backward);
    segment(fmt::format("backward {}", l), [&] { block_backward(l, pass, first); });
    release(l + 1, Sweep::Backward);
  }
  if (embedding_.tokens->gradient || embedding_.position_gradient()) {
    segment("embedding backward", [&] {
      ops().embedding_backward(embedding_.tokens->gradient, embedding_.position_gradient(),
                               gradients.dresidual, inputs_.tokens, inputs_.positions);
    });
  }
  release(0, Sweep::Backward);
}

void Transformer::forward_backward(const PenaltyOptions& penalty, bool first, bool fp8_stats,
                                   const WeighRows& weigh) {
  scales_.begin_pass(fp8_stats);
  shared_.adapter.dropout.active = true;
  if (first) {
    // Linears overwrite the gradients of their weights and adapters. All others accumulate, so they are zeroed here.
    std::vector<Tensor> added;
    for (Parameter& p : parameters_.all()) {
      const bool written =
          p.spec.is_adapter() || std::any_of(linears_.begin(), linears_.end(), [&](const Linear* linear) {
            return &linear->weight.parameter() == &p;
          });
      if (p.gradient && !written) added.push_back(p.gradient);
    }
    device_.zero(added);
  }
  const auto forward = [&] { forward_body(pass(true)); };
  const auto score = [&] { head_.score(inputs_, true); };
  const auto head = [&] { head_.losses_and_gradients(inputs_, penalty, first); };
  const auto backward = [&] { backward_body(first); };
  if (!shape_.graphs) {
    forward();
    if (weigh) score(), head_.weigh(weigh);
    head();
    backward();
  } else {
    const std::string common = common_signature(first, fp8_stats);
    const std::string body =
        fmt::format("{} body {} {}", common, inputs_.documents.count, inputs_.documents.max_length);
    const auto body_part = [&](const char* name, const std::function<void()>& work) {
      if (!mover_) return device_.repeat(fmt::format("{} {}", body, name), work);
      segments_ = body;
      work();
      segments_.clear();
    };
    body_part("forward", forward);
    if (weigh) {
      device_.repeat(fmt::format("{} scores {}", common, head_.signature()), score);
      head_.weigh(weigh);
    }
    device_.repeat(fmt::format("{} head {} {} {}", common, head_.signature(), static_cast<int>(penalty.kind),
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

// A forward pass that does not change the training state.
template <class Use>
void Transformer::evaluate(bool fp8, const Use& use) {
  // First: making FP8 copies of new weights changes slots, and evaluation must not.
  if (mover_) mover_->settle();
  scales_.push_slots(device_);
  scales_.begin_pass(false);
  shared_.adapter.dropout.active = false;
  forward_body(pass(fp8));
  use();
  release(last_group(), Sweep::Forward);
  release(0, Sweep::Forward);
  device_.begin_phase(Phase::Outside);
  scales_.pop_slots(device_);
}

void Transformer::forward_loss(const PenaltyOptions& penalty, bool fp8) {
  evaluate(fp8, [&] { head_.losses(inputs_, penalty, fp8); });
}

std::vector<float> Transformer::row_losses(bool fp8) {
  evaluate(fp8, [&] { head_.score(inputs_, fp8); });
  return head_.row_losses();
}

std::vector<std::vector<float>> Transformer::logits_at(const std::vector<int64_t>& tokens) {
  std::vector<std::vector<float>> logits;
  evaluate(false, [&] {
    for (const int64_t token : tokens) logits.push_back(head_.logits_of(token));
  });
  return logits;
}

LossSums Transformer::sums() const {
  float values[2];
  device_.copy_to_host(values, head_.sums());
  return {values[0], values[1]};
}

std::vector<AdamWParameter> Transformer::optimizer_view(float weight_decay, float loraplus_ratio) {
  std::vector<Parameter*> all;
  for (Parameter& p : parameters_.all()) all.push_back(&p);
  return optimizer_view(all, weight_decay, loraplus_ratio);
}

std::vector<AdamWParameter> Transformer::optimizer_view(std::span<Parameter* const> parameters,
                                                        float weight_decay, float loraplus_ratio) {
  require(memory_.device != nullptr, "[model] optimizer_view() before allocate()");
  std::vector<AdamWParameter> view;
  for (const Parameter* parameter : parameters) {
    const Parameter& p = *parameter;
    if (!p.storage.trainable || p.own_rows.numel() == 0) continue;
    AdamWParameter entry{
        .weight = p.own_rows,
        .remainder = p.remainder,
        .gradient = p.summed_gradient(),
        .m = p.m,
        .v = p.v,
        .m_scales = p.m_scales,
        .v_scales = p.v_scales,
        .weight_decay = p.spec.decay ? weight_decay : 0.0f,
        .learning_rate_scale = p.spec.adapter == ParameterSpec::Adapter::B ? loraplus_ratio : 1.0f,
        .stream = p.stream(),
        .first_row = p.first_row()};
    for (Linear* linear : linears_) {
      if (&linear->weight.parameter() == &p) entry.fp8 = linear->weight.updated_copies();
    }
    view.push_back(entry);
  }
  return view;
}

}  // namespace octet
