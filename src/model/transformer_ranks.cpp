// The part of a Transformer that ranks need: groups of parameters, and the memory of what travels.

#include <algorithm>

#include "model/transformer.h"

namespace octet {

void Transformer::make_groups() {
  groups_.resize(last_group() + 1);
  groups_.front().name = "embedding";
  groups_.back().name = "head";
  for (size_t l = 0; l < blocks_.size(); ++l) groups_[l + 1].name = fmt::format("layers.{}", l);
  const auto group_of = [&](const Parameter& p) -> ParameterGroup& {
    return groups_[static_cast<size_t>(p.spec.layer + 1)];
  };
  for (Parameter& p : parameters_.all()) group_of(p).parameters.push_back(&p);
  for (Linear* linear : linears_) group_of(linear->weight.parameter()).linears.push_back(linear);
}

// Two layers' weights and gradients, one of which is computed with while the other one travels.
void Transformer::plan_rings() {
  const Sharding& sharding = finetuning_.sharding;
  const auto aligned = [](int64_t bytes) { return round_up(bytes, MemoryPlan::kAlignment); };
  const auto gradient_bytes = [&](const Parameter& p) {
    const int64_t elements = p.storage.cut.all_rows() * p.width();
    return p.storage.gradient_per_layer
               ? aligned(elements * static_cast<int64_t>(size_of(p.parts->gradient_parts.dtype)))
               : 0;
  };
  int64_t weights = 0, gradients = 0;
  for (const ParameterGroup& group : groups_) {
    int64_t group_weights = 0, group_gradients = 0;
    for (const Linear* linear : group.linears) group_weights += linear->weight.per_layer_bytes();
    for (const Parameter* p : group.parameters) group_gradients += gradient_bytes(*p);
    weights = std::max(weights, group_weights);
    gradients = std::max(gradients, group_gradients);
  }
  const auto add = [&](Tensor(&ring)[2], const char* name, int64_t bytes) {
    for (int i = 0; i < 2 && bytes > 0; ++i) {
      planner_.add(ring[i], fmt::format("{}.{}", name, i), DType::U8, {bytes}, MemoryCategory::Communication,
                   Lifetime::always());
    }
  };
  if (sharding.shares_weights()) add(ranks_.gather_ring, "ranks.gather", weights);
  if (shape_.training) add(ranks_.gradient_ring, "ranks.gradients", gradients);
  for (size_t g = 0; g < groups_.size(); ++g) {
    int64_t offset = 0;
    for (Linear* linear : groups_[g].linears) {
      linear->weight.attach_per_layer(planner_, ranks_.gather_ring[g % 2], offset);
      offset += linear->weight.per_layer_bytes();
    }
    if (!shape_.training) continue;
    offset = 0;
    for (Parameter* p : groups_[g].parameters) {
      if (!p->storage.gradient_per_layer) continue;
      const Tensor& ring = ranks_.gradient_ring[g % 2];
      const DType dtype = p->parts->gradient_parts.dtype;
      planner_.alias(p->parts->gradient_parts, ring, dtype, p->shape_of_rows(p->storage.cut.all_rows()),
                     offset);
      planner_.alias(p->gradient, ring, dtype, p->spec.shape, offset);
      offset += gradient_bytes(*p);
    }
  }
}

// The largest groups are the embedding and the head. Their gradients travel in several rounds, so that they need no more
// memory than those of a layer.
void Transformer::plan_rank_buffers() {
  const Sharding& sharding = finetuning_.sharding;
  if (!sharding.is_active() || !shape_.training) return;
  constexpr int64_t kSmallRound = int64_t{64} << 20;
  int64_t layer = 0, largest = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t bytes = exchange_bytes(groups_[g].parameters, sharding);
    largest = std::max(largest, bytes);
    if (g > 0 && g < last_group()) layer = std::max(layer, bytes);
  }
  ranks_.round_capacity = std::max(layer, std::min(largest, kSmallRound));
  int64_t received = 0, sent = 0, partial = 0;
  for (const ParameterGroup& group : groups_) {
    for (const ExchangeRound& round : exchange_rounds(group.parameters, sharding, ranks_.round_capacity)) {
      received = std::max(received, round.received_bytes);
      sent = std::max(sent, round.sent_bytes);
      partial = std::max(partial, round.partial_bytes);
    }
  }
  const auto add = [&](Tensor& view, const char* name, DType dtype, Shape shape) {
    if (shape.numel() > 0)
      planner_.add(view, name, dtype, shape, MemoryCategory::Communication, Lifetime::always());
  };
  add(ranks_.received, "ranks.received", DType::U8, {received});
  add(ranks_.sent, "ranks.sent", DType::U8, {sent});
  add(ranks_.partial, "ranks.partial", DType::U8, {partial});
  add(ranks_.counts, "ranks.counts", DType::I32, {sharding.ranks});
  add(ranks_.records, "ranks.records", DType::F32, {sharding.ranks, RankBuffers::kRecordValues});
  add(ranks_.slots, "ranks.slots", DType::U8,
      {sharding.ranks, scales_.count() * static_cast<int64_t>(sizeof(ScaleSlot))});
}

}  // namespace octet
