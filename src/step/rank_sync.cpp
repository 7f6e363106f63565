#include "step/rank_sync.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/trace.h"

namespace octet {
namespace {

// A record as it travels: norm, loss, penalty, then the note.
constexpr int64_t kNoteBegin = 3;
static_assert(kNoteBegin * 4 + sizeof(StepNote) + 4 <= RankBuffers::kRecordValues * 4);

Tensor elements_at(const Tensor& bytes, int64_t offset, DType dtype, Shape shape) {
  return {static_cast<std::byte*>(bytes.data) + offset, dtype, shape};
}

std::vector<int> consecutive(int64_t first, int64_t count, int64_t stride = 1) {
  std::vector<int> members(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) members[static_cast<size_t>(i)] = narrow<int>(first + i * stride);
  return members;
}

}  // namespace

struct RankSync::Group {
  std::string name;
  std::vector<Parameter*> parameters;
  std::vector<Linear*> linears;
  // Gathered after the optimizer has run; the frozen ones only once. `across` comes first.
  std::vector<GatherItem> across, kept, across_frozen, kept_frozen;
  std::vector<GatherItem> per_layer;  // before the layer is computed
  // Gradients that travel after every micro-batch, and all of them.
  std::vector<ExchangeRound> rounds_per_layer, rounds;
  std::unique_ptr<Event> gathered;
  bool fresh = false;                   // gathered, but not used yet
  ScaleFrom scale = ScaleFrom::Values;  // how the optimizer would have quantised what was gathered
};

RankSync::RankSync(Transformer& model, Device& device, Ranks& ranks)
    : model_(model),
      device_(device),
      ranks_(ranks),
      sharding_(model.sharding()),
      memory_(device.allocate(512)),
      gather_queue_(device.make_queue("gather")),
      reduce_queue_(device.make_queue("reduce")),
      gather_ops_(device.make_ops(*gather_queue_)),
      reduce_ops_(device.make_ops(*reduce_queue_)),
      computed_(device.make_event()),
      reduced_(device.make_event()),
      local_norm_{memory_.get(), DType::F32, {2}},
      hash_{static_cast<std::byte*>(memory_.get()) + 256, DType::U8, {8}} {
  const RankPlace& place = ranks.place();
  require(place.rank == sharding_.rank && place.ranks == sharding_.ranks,
          "[ranks] rank {} of {} was planned as rank {} of {}", place.rank, place.ranks, sharding_.rank,
          sharding_.ranks);
  for (int i = 0; i < 2; ++i) {
    ring_free_[i] = device.make_event();
    fetched_[i] = device.make_event();
  }
  make_communicators();
  make_groups();
  model_.set_mover(this);
}

RankSync::~RankSync() {
  model_.set_mover(nullptr);
}

void RankSync::make_communicators() {
  // All ranks make all groups in the same order, and keep those that they are members of.
  const auto make = [&](const std::string& name, int64_t count, auto&& members_of) {
    std::unique_ptr<Communicator> mine;
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<int> members = members_of(i);
      if (auto group = ranks_.make_communicator(device_, fmt::format("{} {}", name, i), members))
        mine = std::move(group);
    }
    return mine;
  };
  const int64_t size = sharding_.group, groups = sharding_.groups();
  const auto inside = [&](int64_t g) { return consecutive(g * size, size); };
  const auto across = [&](int64_t r) { return consecutive(r, groups, size); };
  world_ = make("world", 1, [&](int64_t) { return consecutive(0, sharding_.ranks); });
  gather_ = make("gather", groups, inside);
  reduce_ = make("reduce", groups, inside);
  if (groups > 1) {
    gather_across_ = make("gather across", size, across);
    reduce_across_ = make("reduce across", size, across);
  }
  for (Communicator* c :
       {world_.get(), gather_.get(), reduce_.get(), gather_across_.get(), reduce_across_.get()})
    if (c) c->register_memory(model_.memory(), model_.allocated_bytes());
}

void RankSync::make_groups() {
  const int64_t capacity = model_.exchange_capacity();
  for (const ParameterGroup& from : model_.groups()) {
    Group group{.name = from.name, .parameters = from.parameters, .linears = from.linears};
    const auto add = [&](const ParameterStorage& storage, Tensor parts, Tensor of_group, Tensor part) {
      const bool frozen = !storage.trainable;
      if (sharding_.groups() > 1) (frozen ? group.across_frozen : group.across).push_back({of_group, part});
      if (storage.residency == Residency::PerLayer) {
        group.per_layer.push_back({parts, of_group});
      } else {
        (frozen ? group.kept_frozen : group.kept).push_back({parts, of_group});
      }
    };
    std::vector<Parameter*> each_micro_batch;
    for (Parameter* p : group.parameters) {
      if (p->storage.is_shared() && !p->storage.sends_codes)
        add(p->storage, p->parts->weight_parts, p->parts->weight_group, p->parts->weight_part);
      if (p->storage.gradient_per_layer) each_micro_batch.push_back(p);
      if (p->storage.trainable) updates_.push_back(part_update(*p));
    }
    for (const Linear* linear : group.linears) {
      if (!linear->weight.sends_codes()) continue;
      const Weight::SharedCodes& codes = linear->weight.shared_codes();
      const ParameterStorage& storage = linear->weight.parameter().storage;
      add(storage, codes.parts, codes.group, codes.part);
      if (codes.scales_part) add(storage, codes.scales_parts, codes.scales_group, codes.scales_part);
    }
    group.rounds_per_layer = exchange_rounds(each_micro_batch, sharding_, capacity);
    group.rounds = exchange_rounds(group.parameters, sharding_, capacity);
    group.gathered = device_.make_event();
    groups_.push_back(std::move(group));
  }
}

// The rows of the summed gradient that belong to this rank, without padding.
Tensor RankSync::part_update(const Parameter& p) const {
  if (!p.parts || !p.parts->sum_part) return p.gradient;  // a single rank
  const int64_t rows = p.storage.cut.rows_of(p.spec.shape[0]);
  return {p.parts->sum_part.data, DType::F32, p.shape_of_rows(rows)};
}

// Where work is done when it is queued, this is also how long it took, and mostly waiting for other ranks.
void RankSync::all_gather(Communicator& group, Queue& queue, std::span<const GatherItem> items,
                          std::string_view what) {
  const TraceSpan span("training", "all_gather");
  const auto start = Clock::now();
  group.all_gather(queue, items, what);
  waited_ms_ += 1e3 * seconds_since(start);
}

void RankSync::exchange(Communicator& group, std::span<const ExchangeItem> items, std::string_view what) {
  const TraceSpan span("training", "exchange");
  const auto start = Clock::now();
  group.exchange(*reduce_queue_, items, what);
  waited_ms_ += 1e3 * seconds_since(start);
}

// ---- weights ----

bool RankSync::is_fetched(size_t group) const {
  return resident_[group % 2] == static_cast<int64_t>(group);
}

// Brings the whole weights of a layer into the ring, after everything that is queued now.
void RankSync::fetch(size_t index) {
  if (index >= groups_.size() || groups_[index].per_layer.empty() || is_fetched(index)) return;
  Group& group = groups_[index];
  const size_t slot = index % 2;
  device_.record(*computed_, device_.queue());
  device_.wait(*gather_queue_, *computed_);
  all_gather(*gather_, *gather_queue_, group.per_layer, "weights of " + group.name);
  device_.record(*fetched_[slot], *gather_queue_);
  resident_[slot] = static_cast<int64_t>(index);
  group.fresh = true;
}

// The computation waits until the weights of a group are there, and makes the FP8 copies that did not travel.
void RankSync::use(size_t index) {
  Group& group = groups_[index];
  fetch(index);
  if (!group.per_layer.empty()) device_.wait(device_.queue(), *fetched_[index % 2]);
  if (!group.fresh) return;
  group.fresh = false;
  device_.wait(device_.queue(), *group.gathered);
  for (Linear* linear : group.linears) {
    if (!linear->weight.sends_codes() && linear->weight.parameter().storage.is_shared())
      linear->weight.quantize(device_.ops(), group.scale);
  }
}

void RankSync::acquire(int64_t group, Sweep sweep) {
  const auto index = static_cast<size_t>(group);
  use(index);
  if (sweep == Sweep::Forward) return fetch(index + 1);
  if (index > 0) fetch(index - 1);
  // In the ring, gradients of this layer overwrite those of the layer two before it.
  if (!groups_[index].rounds_per_layer.empty()) device_.wait(device_.queue(), *ring_free_[index % 2]);
}

// Queued after the optimizer has written this rank's part.
void RankSync::gather_kept(size_t index, bool frozen) {
  Group& group = groups_[index];
  device_.record(*computed_, device_.queue());
  device_.wait(*gather_queue_, *computed_);
  const auto gather = [&](Communicator& ranks, const std::vector<GatherItem>& items) {
    if (!items.empty()) all_gather(ranks, *gather_queue_, items, "weights of " + group.name);
  };
  if (gather_across_) {
    gather(*gather_across_, group.across);
    if (frozen) gather(*gather_across_, group.across_frozen);
  }
  gather(*gather_, group.kept);
  if (frozen) gather(*gather_, group.kept_frozen);
  for (Linear* linear : group.linears) {
    const ParameterStorage& storage = linear->weight.parameter().storage;
    if (linear->weight.sends_codes() && storage.residency == Residency::Parts &&
        (storage.trainable || frozen))
      linear->weight.transpose_codes(*gather_ops_);
  }
  device_.record(*group.gathered, *gather_queue_);
  group.fresh = true;
  const bool keeps_scale =
      std::ranges::any_of(group.linears, [](const Linear* linear) { return linear->weight.keeps_scale(); });
  group.scale = keeps_scale ? ScaleFrom::Slot : ScaleFrom::Values;
}

void RankSync::publish() {
  resident_[0] = resident_[1] = -1;
  for (size_t g = 0; g < groups_.size(); ++g) gather_kept(g, true);
}

void RankSync::settle() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    device_.wait(device_.queue(), *groups_[g].gathered);
    if (groups_[g].per_layer.empty()) use(g);
  }
}

// ---- gradients ----

void RankSync::begin_micro_batch(bool first, bool last) {
  first_ = first;
  last_ = last;
}

// Weights need nothing: the ring holds two layers, and fetch() waits for the computation.
void RankSync::release(int64_t number, Sweep sweep) {
  if (sweep == Sweep::Forward) return;
  const auto index = static_cast<size_t>(number);
  Group& group = groups_[index];
  const std::vector<ExchangeRound>& rounds = last_ ? group.rounds : group.rounds_per_layer;
  if (rounds.empty()) return;
  device_.record(*computed_, device_.queue());
  device_.wait(*reduce_queue_, *computed_);
  for (const ExchangeRound& round : rounds) {
    if (sharding_.ranks == 1) {
      sum_alone(round);
      continue;
    }
    exchange_in_group(round, group.name);
    if (sharding_.groups() > 1) exchange_between_groups(round, group.name);
    gather_sums(round, group.name);
  }
  device_.record(*ring_free_[index % 2], *reduce_queue_);
}

// The bytes to send of a piece: those of the gradient itself, or of a copy in the dtype of the wire.
RankSync::Source RankSync::source_of(const ExchangePiece& piece) {
  const Parameter& p = *piece.parameter;
  const Tensor& gradient = p.parts->gradient_parts;
  const DType wire = sharding_.wire;
  const int64_t n = piece.elements(), all = p.storage.cut.part_rows * p.width();
  const auto size = static_cast<int64_t>(size_of(gradient.dtype)),
             wire_size = static_cast<int64_t>(size_of(wire));
  std::byte* begin = static_cast<std::byte*>(gradient.data) + piece.begin * p.width() * size;
  if (gradient.dtype == wire) return {begin, all * size};
  const Tensor copy = elements_at(model_.rank_buffers().sent, piece.sent, wire, {sharding_.ranks * n});
  if (n == all) {
    reduce_ops_->convert(copy, {gradient.data, gradient.dtype, {sharding_.ranks * n}});
  } else {
    for (int64_t part = 0; part < sharding_.ranks; ++part) {
      reduce_ops_->convert(elements_at(copy, part * n * wire_size, wire, {n}),
                           {begin + part * all * size, gradient.dtype, {n}});
    }
  }
  return {static_cast<const std::byte*>(copy.data), n * wire_size};
}

// Adds what came from several ranks to this rank's part of the summed gradient. A gradient that stays over micro-batches
// travels once; one in the ring is added to what came before.
void RankSync::add_to_sum(const ExchangePiece& piece, const Tensor& received) {
  const Parameter& p = *piece.parameter;
  const Tensor sum =
      elements_at(p.parts->sum_part, piece.begin * p.width() * 4, DType::F32, {piece.elements()});
  reduce_ops_->sum_parts(sum, received, p.storage.gradient_per_layer && !first_);
}

// A single rank: nothing travels.
void RankSync::sum_alone(const ExchangeRound& round) {
  for (const ExchangePiece& piece : round.pieces) {
    const ParameterParts& parts = *piece.parameter->parts;
    if (!parts.sum_part) continue;  // the optimizer reads the gradient itself
    const DType dtype = parts.gradient_parts.dtype;
    const int64_t offset = piece.begin * piece.parameter->width() * static_cast<int64_t>(size_of(dtype));
    add_to_sum(piece, elements_at(parts.gradient_parts, offset, dtype, {1, piece.elements()}));
  }
}

// Ranks of a group exchange their gradients. Without groups the sums are complete then; with groups they are brought into
// the form in which they travel on.
void RankSync::exchange_in_group(const ExchangeRound& round, const std::string& name) {
  const RankBuffers& buffers = model_.rank_buffers();
  const DType wire = sharding_.wire;
  const auto wire_size = static_cast<int64_t>(size_of(wire));
  const int64_t groups = sharding_.groups(), size = sharding_.group;
  // Part g of every group of parts belongs to group g of ranks.
  std::vector<ExchangeItem> items;
  for (const ExchangePiece& piece : round.pieces) {
    const Source from = source_of(piece);
    const int64_t n = piece.elements();
    for (int64_t g = 0; g < groups; ++g) {
      items.push_back({.received = elements_at(buffers.received, piece.received + g * size * n * wire_size,
                                               wire, {size, n}),
                       .sent = from.data + g * from.part_bytes,
                       .stride = groups * from.part_bytes});
    }
  }
  exchange(*reduce_, items, "gradients of " + name);
  size_t next = 0;
  for (const ExchangePiece& piece : round.pieces) {
    const int64_t n = piece.elements();
    for (int64_t g = 0; g < groups; ++g) {
      const Tensor received = items[next++].received;
      if (groups == 1) {
        add_to_sum(piece, received);
        continue;
      }
      const Tensor sum = elements_at(buffers.partial, piece.sums + g * n * 4, DType::F32, {n});
      reduce_ops_->sum_parts(sum, received, false);
      reduce_ops_->convert(elements_at(buffers.partial, piece.sums_sent + g * n * wire_size, wire, {n}), sum);
    }
  }
}

// The same places of all groups exchange the sums of their groups.
void RankSync::exchange_between_groups(const ExchangeRound& round, const std::string& name) {
  const Tensor& partial = model_.rank_buffers().partial;
  std::vector<ExchangeItem> items;
  for (const ExchangePiece& piece : round.pieces) {
    const int64_t n = piece.elements();
    items.push_back(
        {.received = elements_at(partial, piece.sums_received, sharding_.wire, {sharding_.groups(), n}),
         .sent = static_cast<const std::byte*>(partial.data) + piece.sums_sent,
         .stride = n * static_cast<int64_t>(size_of(sharding_.wire))});
  }
  exchange(*reduce_across_, items, "gradients between nodes of " + name);
  for (size_t i = 0; i < items.size(); ++i) add_to_sum(round.pieces[i], items[i].received);
}

// Where every rank updates all weights, it needs the sums of all parts.
void RankSync::gather_sums(const ExchangeRound& round, const std::string& name) {
  std::vector<GatherItem> sums;
  for (const ExchangePiece& piece : round.pieces) {
    const Parameter& p = *piece.parameter;
    if (p.parts->sum_parts && piece.begin + piece.rows == p.storage.cut.part_rows)
      sums.push_back({p.parts->sum_parts, p.parts->sum_part});
  }
  if (!sums.empty()) all_gather(*reduce_, *reduce_queue_, sums, "summed gradients of " + name);
}

// ---- a step ----

void RankSync::begin_step(const StepNote& note) {
  step_start_ = Clock::now();
  waited_ms_ = 0;
  const RankBuffers& buffers = model_.rank_buffers();
  const int64_t rank = sharding_.rank;
  const Tensor count = elements_at(buffers.counts, rank * 4, DType::I32, {1});
  const auto note_values = static_cast<int64_t>(sizeof note / 4);
  const Tensor record = elements_at(buffers.records, (rank * RankBuffers::kRecordValues + kNoteBegin) * 4,
                                    DType::F32, {note_values});
  const InputCopy inputs[] = {{count, &note.targets}, {record, &note}};
  device_.feed(inputs);
  const GatherItem counts{buffers.counts, count};
  all_gather(*world_, device_.queue(), {&counts, 1}, "targets");
  device_.ops().reciprocal_of_sum(model_.gradient_scale(), buffers.counts);
}

void RankSync::finish_gradients(Tensor norm, float max_norm) {
  const RankBuffers& buffers = model_.rank_buffers();
  device_.record(*reduced_, *reduce_queue_);
  device_.wait(device_.queue(), *reduced_);
  device_.ops().grad_norm(local_norm_, updates_, 0, model_.loss_sums());
  const int64_t begin = sharding_.rank * RankBuffers::kRecordValues * 4;
  device_.copy(elements_at(buffers.records, begin, DType::F32, {1}),
               elements_at(local_norm_, 0, DType::F32, {1}));
  device_.copy(elements_at(buffers.records, begin + 4, DType::F32, {2}), model_.loss_sums());
  const GatherItem records{buffers.records,
                           elements_at(buffers.records, begin, DType::F32, {RankBuffers::kRecordValues})};
  all_gather(*world_, device_.queue(), {&records, 1}, "norms and losses");
  device_.ops().combine_norms(norm, buffers.records, max_norm);
  merge_slots();
}

float RankSync::largest(float value) {
  for (const std::string& text : ranks_.host().all_gather("largest", fmt::format("{:a}", value)))
    value = std::max(value, std::strtof(text.c_str(), nullptr));
  return value;
}

void RankSync::merge_slots() {
  const Tensor slots = model_.scales().slots();
  if (!slots) return;
  const GatherItem item{model_.rank_buffers().slots, slots};
  all_gather(*world_, device_.queue(), {&item, 1}, "FP8 scales");
  device_.ops().merge_slots(slots, model_.rank_buffers().slots);
}

void RankSync::update(Tensor norm, const AdamWOptions& options, float weight_decay, float loraplus_ratio) {
  const bool agree_later = model_.parts_need_scales();
  resident_[0] = resident_[1] = -1;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto view = model_.optimizer_view(groups_[g].parameters, weight_decay, loraplus_ratio);
    if (!view.empty()) device_.ops().adamw(view, norm, options);
    if (!sharding_.shares_state() || agree_later) continue;
    gather_kept(g, false);
    if (g == 1 || g == 2) fetch(g);
  }
  if (!sharding_.shares_state() || !agree_later) return;
  model_.quantize_parts(ScaleFrom::Values);
  for (size_t g = 0; g < groups_.size(); ++g) gather_kept(g, false);
}

std::vector<RankRecord> RankSync::records() {
  if (!device_.capabilities().separate_memory) compute_ms_ = 1e3 * seconds_since(step_start_) - waited_ms_;
  const RankBuffers& buffers = model_.rank_buffers();
  std::vector<float> values(static_cast<size_t>(buffers.records.numel()));
  device_.copy_to_host(values.data(), buffers.records);
  std::vector<RankRecord> records(static_cast<size_t>(sharding_.ranks));
  for (size_t r = 0; r < records.size(); ++r) {
    const float* from = values.data() + r * RankBuffers::kRecordValues;
    records[r] = {.norm = from[0], .loss = from[1], .penalty = from[2]};
    std::memcpy(static_cast<void*>(&records[r].note), from + kNoteBegin, sizeof(StepNote));
  }
  return records;
}

uint64_t RankSync::weights_hash() {
  settle();
  device_.zero(hash_);
  uint64_t seed = 1;
  for (const Group& group : groups_) {
    for (const Parameter* p : group.parameters) {
      if (p->weight && p->storage.residency != Residency::PerLayer)
        device_.ops().add_hash(hash_, p->weight, seed);
      seed += uint64_t{1} << 40;
    }
    for (Linear* linear : group.linears) {
      if (!linear->weight.copies() || linear->weight.parameter().storage.residency == Residency::PerLayer)
        continue;
      if (linear->weight.copies()->rowwise)
        device_.ops().add_hash(hash_, linear->weight.copies()->rowwise.codes, seed);
      seed += uint64_t{1} << 40;
    }
  }
  uint64_t value = 0;
  device_.copy_to_host(&value, hash_);
  return value == 0 ? 1 : value;
}

void RankSync::gather(Tensor parts, Tensor part, std::string_view what) {
  const GatherItem item{parts, part};
  all_gather(*world_, device_.queue(), {&item, 1}, what);
}

}  // namespace octet
