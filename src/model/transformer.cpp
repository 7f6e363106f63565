#include "model/transformer.h"

#include <algorithm>
#include <bit>

namespace octet {

void Transformer::weights_changed() {
  ops().set_workspace(workspace_);
  for (Linear* linear : linears_) {
    linear->set_pass(scales_, false);
    linear->quantize_weight(ops());
  }
}

void Transformer::load(const HostBatch& batch) {
  const auto n = static_cast<size_t>(shape_.tokens());
  require(batch.tokens.size() == n && batch.targets.size() == n && batch.positions.size() == n,
          "[model] a micro-batch of {} tokens, {} targets and {} positions, expected {} of each",
          batch.tokens.size(), batch.targets.size(), batch.positions.size(), n);
  const size_t documents = batch.document_starts.size() - 1;
  require(batch.document_starts.size() >= 2 && documents <= n, "[model] {} documents in {} tokens", documents,
          n);
  ops().set_workspace(workspace_);  // several Transformers may take turns on one device
  Tensor starts = document_starts_;
  starts.shape = {static_cast<int64_t>(batch.document_starts.size())};
  const InputCopy inputs[] = {{tokens_, batch.tokens.data()},
                              {targets_, batch.targets.data()},
                              {positions_, batch.positions.data()},
                              {starts, batch.document_starts.data()}};
  device_.feed(inputs);

  documents_ = {document_starts_, static_cast<int64_t>(documents), 0};
  for (size_t i = 0; i < documents; ++i) {
    documents_.max_length =
        std::max<int64_t>(documents_.max_length, batch.document_starts[i + 1] - batch.document_starts[i]);
  }
}

void Transformer::norm_forward(const Norm& norm, const Operand& y, Tensor residual, Tensor mean, Tensor inv,
                               Tensor x, Tensor delta) {
  ops().norm_forward(config_.norm, y, residual, mean, inv, x, delta, norm.gain->weight,
                     norm.bias ? norm.bias->weight : Tensor{}, config_.norm_epsilon);
}

void Transformer::norm_backward(const Norm& norm, const Operand& dresidual, Tensor dy, Tensor residual,
                                Tensor mean, Tensor inv) {
  ops().norm_backward(config_.norm, dresidual, norm.gain->gradient,
                      norm.bias ? norm.bias->gradient : Tensor{}, dy, residual, mean, inv, norm.gain->weight);
}

// One block. In a recompute pass x is the kept input and only what the policy dropped is made again, by the same ops
// in the same order, so it has the same bits.
void Transformer::block_forward(Block& b, Tensor x, Tensor delta, Pass pass) {
  const bool all = !pass.recompute;
  const AttentionShape attention = config_.attention();

  const Operand qkv_in = b.qkv.input(b.attention_normed, pass.fp8);
  if (all || !keep_.norm_out) {
    norm_forward(b.attention_norm, qkv_in, b.residual_in, b.attention_mean, b.attention_inv, x, delta);
  }
  if (all || !keep_.attention) {
    b.qkv.forward(ops(), b.qkv_out, qkv_in);
    if (config_.qk_norm) {
      ops().qk_norm_forward(b.qkv_out, b.qk_raw, b.qk_inv, b.q_norm.gain->weight, b.k_norm.gain->weight,
                            config_.norm_epsilon, attention);
    }
    if (rope_table_) ops().rope_forward(b.qkv_out, positions_, rope_table_, attention);
    Operand out_in = b.out.input(b.attended, pass.fp8);
    out_in.keep_dense = true;  // attention's backward reads its own output
    ops().attention_forward(out_in, b.lse, b.qkv_out, documents_, attention);
    b.out.forward(ops(), shared_.delta, out_in);
  }

  const Operand up_in = b.up.input(b.mlp_normed, pass.fp8);
  if (all || !keep_.attention) {
    norm_forward(b.mlp_norm, up_in, b.residual_mid, b.mlp_mean, b.mlp_inv, b.residual_in, shared_.delta);
  } else if (!keep_.norm_out) {
    norm_forward(b.mlp_norm, up_in, b.residual_mid, b.mlp_mean, b.mlp_inv, b.residual_mid, {});
  }
  if (all || !keep_.up_out) b.up.forward(ops(), b.up_out, up_in);
  const Operand down_in = b.down.input(b.act_out, pass.fp8);
  if (all || !keep_.act_out) ops().activation_forward(config_.activation, down_in, b.up_out);
  if (all) b.down.forward(ops(), shared_.delta, down_in);
}

// Embedding, all blocks and the final norm.
void Transformer::forward_body(Pass pass) {
  device_.begin_phase(Phase::Forward);
  Block& first = blocks_.front();
  ops().embedding_forward(first.residual_in, tokens_, positions_, wte_->weight,
                          wpe_ ? wpe_->weight : Tensor{});
  block_forward(first, first.residual_in, {}, pass);
  for (size_t l = 1; l < blocks_.size(); ++l)
    block_forward(blocks_[l], blocks_[l - 1].residual_mid, shared_.delta, pass);
  norm_forward(final_norm_, {.dense = final_normed_}, final_residual_, final_mean_, final_inv_,
               blocks_.back().residual_mid, shared_.delta);
}

// Logits, loss and their gradients for a chunk of rows at a time, so that all logits never exist at once.
void Transformer::head_loss(bool backward, float gradient_scale, const PenaltyOptions& penalty, bool first,
                            Pass pass) {
  device_.begin_phase(Phase::Head);
  const int64_t n = shape_.tokens();
  const LossOptions options{config_.vocab, gradient_scale, penalty.kind, penalty.weight};
  for (int64_t begin = 0; begin < n; begin += head_rows_) {
    const int64_t rows = std::min(head_rows_, n - begin);
    const auto part = [&](Tensor t) {
      return Tensor{
          static_cast<std::byte*>(t.data) + begin * static_cast<int64_t>(size_of(t.dtype)), t.dtype, {rows}};
    };
    Quantized input8, gradient8;  // the chunk's views of the Linear's copies
    const auto chunk_operand = [&](Operand operand, Quantized& view) {
      if (operand.fp8) {
        view = with_rows(*operand.fp8, rows);
        operand.fp8 = &view;
      }
      return operand;
    };
    const Operand x = chunk_operand(head_.input(final_normed_.row_range(begin, rows), pass.fp8), input8);
    if (x.fp8) ops().quantize(x);
    const Tensor logits = logits_.row_range(0, rows);
    head_.forward(ops(), logits, x);
    if (backward) {
      const Operand dlogits = chunk_operand(head_.gradient(logits, false), gradient8);
      ops().cross_entropy(dlogits, part(loss_), part(penalty_), {}, logits, part(targets_), options);
      head_.backward(ops(), dfinal_normed_.row_range(begin, rows), x, dlogits, first && begin == 0);
    } else {
      ops().cross_entropy({}, part(loss_), part(penalty_), part(correct_), logits, part(targets_), options);
    }
  }
  const auto add_to_sum = [&](int64_t index, Tensor values) {
    const Tensor sum{static_cast<float*>(sums_.data) + index, DType::F32, {1}};
    ops().add_column_sum(sum, values.reshaped({n, 1}));
  };
  add_to_sum(0, loss_);
  add_to_sum(1, penalty_);
}

Operand Transformer::dresidual_operand(Linear* reader) {
  return reader ? reader->gradient(shared_.dresidual, true) : Operand{.dense = shared_.dresidual};
}

void Transformer::block_backward(size_t index, bool first) {
  Block& b = blocks_[index];
  block_forward(b, b.residual_in, {}, {.fp8 = true, .recompute = true});

  // dresidual holds the gradient of the block's output, already in the form that down reads.
  b.down.backward(ops(), shared_.dact, b.down.input(b.act_out, true),
                  b.down.gradient(shared_.dresidual, true), first);
  const Operand dup = b.up.gradient(shared_.dup, false);
  ops().activation_backward(config_.activation, dup, shared_.dact, b.up_out);
  b.up.backward(ops(), shared_.dnormed, b.up.input(b.mlp_normed, true), dup, first);
  const Operand dmid = dresidual_operand(&b.out);
  norm_backward(b.mlp_norm, dmid, shared_.dnormed, b.residual_mid, b.mlp_mean, b.mlp_inv);

  b.out.backward(ops(), shared_.dattended, b.out.input(b.attended, true), dmid, first);
  ops().attention_backward(shared_.dqkv, shared_.dattended, b.qkv_out, b.attended, b.lse, documents_,
                           config_.attention());
  const Operand dqkv = b.qkv.gradient(shared_.dqkv, false);
  if (config_.qk_norm) {
    if (rope_table_)
      ops().rope_backward({.dense = shared_.dqkv}, positions_, rope_table_, config_.attention());
    ops().qk_norm_backward(dqkv, b.q_norm.gain->gradient, b.k_norm.gain->gradient, b.qk_raw, b.qk_inv,
                           b.q_norm.gain->weight, b.k_norm.gain->weight, config_.attention());
  } else if (rope_table_) {
    ops().rope_backward(dqkv, positions_, rope_table_, config_.attention());
  } else if (dqkv.fp8) {
    ops().quantize(dqkv);
  } else if (dqkv.column_sum) {
    ops().add_column_sum(dqkv.column_sum, dqkv.dense);
  }
  b.qkv.backward(ops(), shared_.dnormed, b.qkv.input(b.attention_normed, true), dqkv, first);
  norm_backward(b.attention_norm, dresidual_operand(linear_below(index)), shared_.dnormed, b.residual_in,
                b.attention_mean, b.attention_inv);
}

void Transformer::backward_body(bool first) {
  device_.begin_phase(Phase::Backward);
  device_.zero(shared_.dresidual);
  norm_backward(final_norm_, dresidual_operand(&blocks_.back().down), dfinal_normed_, final_residual_,
                final_mean_, final_inv_);
  for (size_t l = blocks_.size(); l-- > 0;) block_backward(l, first);
  ops().embedding_backward(wte_->gradient, wpe_ ? wpe_->gradient : Tensor{}, shared_.dresidual, tokens_,
                           positions_);
}

void Transformer::forward_backward(float gradient_scale, const PenaltyOptions& penalty, bool first,
                                   bool fp8_stats) {
  for (Linear* linear : linears_) linear->set_pass(scales_, fp8_stats);
  if (first) {
    // Linears overwrite their weights' gradients; everything else is added to.
    std::vector<Tensor> added;
    for (Parameter& p : parameters_.all()) {
      const bool written = std::any_of(linears_.begin(), linears_.end(),
                                       [&](const Linear* linear) { return &linear->weight() == &p; });
      if (!written) added.push_back(p.gradient);
    }
    device_.zero(added);
  }
  const auto ops = [&] {
    forward_body({});
    head_loss(true, gradient_scale, penalty, first, {});
    backward_body(first);
  };
  if (shape_.graphs) {
    device_.repeat(signature(gradient_scale, penalty, first, fp8_stats), ops);
  } else {
    ops();
  }
  scales_.end_calibration();
}

// The buffers follow from the Transformer; the rest is what load() and the arguments change.
std::string Transformer::signature(float gradient_scale, const PenaltyOptions& penalty, bool first,
                                   bool fp8_stats) const {
  return fmt::format("{} {} {} {} {} {} {} {} {}", number_, documents_.count, documents_.max_length,
                     std::bit_cast<uint32_t>(gradient_scale), static_cast<int>(penalty.kind),
                     std::bit_cast<uint32_t>(penalty.weight), first, fp8_stats, scales_.calibrating());
}

void Transformer::forward_loss(const PenaltyOptions& penalty, bool fp8) {
  scales_.push_slots(device_);
  for (Linear* linear : linears_) linear->set_pass(scales_, false);
  forward_body({.fp8 = fp8});
  head_loss(false, 0, penalty, false, {.fp8 = fp8});
  device_.begin_phase(Phase::Outside);
  scales_.pop_slots(device_);
}

int64_t Transformer::correct_targets() const {
  std::vector<int32_t> correct(static_cast<size_t>(shape_.tokens()));
  device_.copy_to_host(correct.data(), correct_);
  return std::count(correct.begin(), correct.end(), 1);
}

LossSums Transformer::sums() const {
  float values[2];
  device_.copy_to_host(values, sums_);
  return {values[0], values[1]};
}

std::vector<std::vector<float>> Transformer::logits_at(const std::vector<int64_t>& tokens) {
  scales_.push_slots(device_);
  for (Linear* linear : linears_) linear->set_pass(scales_, false);
  forward_body({.fp8 = false});
  std::vector<std::vector<float>> result;
  for (const int64_t token : tokens) {
    const Tensor logits = logits_.row_range(0, 1);
    head_.forward(ops(), logits, head_.input(final_normed_.row_range(token, 1), false));
    std::vector<float> values(static_cast<size_t>(config_.padded_vocab()));
    if (logits.dtype == DType::F32) {
      device_.copy_to_host(values.data(), logits);
    } else {
      std::vector<Bf16> narrow_values(values.size());
      device_.copy_to_host(narrow_values.data(), logits);
      std::transform(narrow_values.begin(), narrow_values.end(), values.begin(),
                     [](Bf16 x) { return to_float(x); });
    }
    values.resize(static_cast<size_t>(config_.vocab));
    result.push_back(std::move(values));
  }
  device_.begin_phase(Phase::Outside);
  scales_.pop_slots(device_);
  return result;
}

std::vector<AdamWParameter> Transformer::optimizer_view(float weight_decay) {
  require(memory_ != nullptr, "[model] optimizer_view() before allocate()");
  std::vector<AdamWParameter> view;
  for (Parameter& p : parameters_.all()) {
    AdamWParameter entry{.weight = p.weight,
                         .remainder = p.remainder,
                         .gradient = p.gradient,
                         .m = p.m,
                         .v = p.v,
                         .m_scales = p.m_scales,
                         .v_scales = p.v_scales,
                         .weight_decay = p.spec.decay ? weight_decay : 0.0f,
                         .stream = p.stream()};
    for (Linear* linear : linears_) {
      if (&linear->weight() == &p) entry.fp8 = linear->weight_fp8();
    }
    view.push_back(entry);
  }
  return view;
}

}  // namespace octet
