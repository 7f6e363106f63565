#include "plan/rank_costs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "io/env.h"

namespace octet {
namespace {

// Tensors of a plan have a shape but no memory yet.
bool is_planned(const Tensor& tensor) {
  return tensor.shape.rank() > 0;
}

// Of `members` equal parts, all but one come from others.
double from_others(int64_t whole_bytes, int64_t members) {
  return static_cast<double>(whole_bytes) * static_cast<double>(members - 1) / static_cast<double>(members);
}

void add_call(Transfer& transfer, double bytes) {
  if (bytes > 0) transfer += {.bytes = bytes, .calls = 1};
}

// What RankSync gathers of one group.
struct Gathered {
  int64_t kept = 0, per_layer = 0;  // bytes of whole tensors
  int64_t kept_group = 0,
          per_layer_group = 0;  // bytes that the same places in all groups of ranks have together
};

Gathered gathered_bytes(const ParameterGroup& group) {
  Gathered bytes;
  const auto add = [&](const ParameterStorage& storage, const Tensor& parts, const Tensor& of_group) {
    if (!is_planned(parts)) return;
    // Frozen weights that are kept whole travel once, before the first step.
    if (storage.whole_per_layer) {
      bytes.per_layer += parts.bytes();
      if (storage.trainable) bytes.per_layer_group += of_group.bytes();
    } else if (storage.trainable) {
      bytes.kept += parts.bytes();
      bytes.kept_group += of_group.bytes();
    }
  };
  for (const Parameter* p : group.parameters) {
    if (p->storage.is_shared() && !p->storage.whole_is_codes)
      add(p->storage, p->weight_parts, p->weight_group);
  }
  for (const Linear* linear : group.linears) {
    if (!linear->sends_codes()) continue;
    const Linear::SharedCodes& codes = linear->shared_codes();
    add(linear->weight().storage, codes.parts, codes.group);
    add(linear->weight().storage, codes.scales_parts, codes.scales_group);
  }
  return bytes;
}

GroupTransfer exchanged(std::span<Parameter* const> parameters, const Sharding& sharding, int64_t capacity) {
  const auto wire = static_cast<int64_t>(size_of(sharding.wire));
  GroupTransfer transfer;
  for (const ExchangeRound& round : exchange_rounds(parameters, sharding, capacity)) {
    int64_t elements = 0;
    for (const ExchangePiece& piece : round.pieces) elements += piece.elements();
    add_call(transfer.inside, from_others(sharding.ranks * elements * wire, sharding.group));
    add_call(transfer.between, from_others(sharding.groups() * elements * wire, sharding.groups()));
  }
  return transfer;
}

}  // namespace

RankTraffic rank_traffic(Transformer& transformer) {
  const Sharding& sharding = transformer.sharding();
  RankTraffic traffic{.sharding = sharding};
  for (const ParameterGroup& group : transformer.groups()) {
    GroupTraffic& of = traffic.groups.emplace_back();
    of.name = group.name;
    for (const Parameter* p : group.parameters) {
      if (p->storage.trainable) of.updated_elements += p->shape().numel();
    }
    if (!sharding.is_active()) continue;
    if (sharding.shares_state()) {
      const Gathered bytes = gathered_bytes(group);
      add_call(of.gather_kept.inside, from_others(bytes.kept, sharding.group));
      add_call(of.gather_kept.between,
               from_others(bytes.kept_group + bytes.per_layer_group, sharding.groups()));
      add_call(of.gather_per_layer.inside, from_others(bytes.per_layer, sharding.group));
    }
    std::vector<Parameter*> early;
    int64_t sums = 0;
    for (Parameter* p : group.parameters) {
      if (p->storage.gradient_per_layer) early.push_back(p);
      if (is_planned(p->reduced_parts)) sums += p->reduced_parts.bytes();
    }
    of.exchange = exchanged(group.parameters, sharding, transformer.exchange_capacity());
    of.exchange_early = exchanged(early, sharding, transformer.exchange_capacity());
    add_call(of.gather_sums.inside, from_others(sums, sharding.group));
  }
  const RankBuffers& buffers = transformer.rank_buffers();
  for (const Tensor& whole : {buffers.counts, buffers.records, buffers.slots}) {
    if (is_planned(whole)) add_call(traffic.small, from_others(whole.bytes(), sharding.ranks));
  }
  return traffic;
}

LinkSpeeds read_link_speeds(const std::string& path, LinkSpeeds speeds) {
  const nlohmann::json file = parse_json(posix_env().read_text(path), path, {.max_values = 100'000});
  require(file.is_object() && file.contains("speeds") && file["speeds"].is_object(),
          "[{}] no speeds found, expected a file of 'octet bench --comm --json'", path);
  const auto read = [&](const char* key, double& speed, double least) {
    if (!file["speeds"].contains(key)) return;
    const nlohmann::json& value = file["speeds"][key];
    require(value.is_number() && value.get<double>() >= least,
            "[{}] {} is {}, expected a number of at least {}", path, key, value.dump(), least);
    speed = value.get<double>();
  };
  read("node_gb", speeds.node_gb, 1e-6);
  read("network_gb", speeds.network_gb, 1e-6);
  read("node_latency_us", speeds.node_latency_us, 0);
  read("network_latency_us", speeds.network_latency_us, 0);
  read("compute_slowdown", speeds.compute_slowdown, 0);
  return speeds;
}

double transfer_seconds(const Transfer& transfer, CollectiveKind kind, int64_t members,
                        int64_t members_per_node, const LinkSpeeds& speeds) {
  if (transfer.calls == 0 || members <= 1) return 0;
  const int64_t local = std::min(members, members_per_node);
  double latency = speeds.node_latency_us * 1e-6, seconds = transfer.bytes / (speeds.node_gb * 1e9);
  if (local < members) {
    const auto n = static_cast<double>(members);
    const double from_nodes = transfer.bytes * static_cast<double>(members - local) / (n - 1);
    // Every adapter of the node brings its share of what all ranks of the node gather.
    const double adapters = kind == CollectiveKind::Gather ? static_cast<double>(local) : 1;
    seconds = std::max(seconds, from_nodes / (adapters * speeds.network_gb * 1e9));
    latency += static_cast<double>(members - local) * speeds.network_latency_us * 1e-6;
  }
  return static_cast<double>(transfer.calls) * latency + seconds;
}

namespace {

// The three queues. A queue is the time at which all that was put on it has ended.
class StepSimulation {
 public:
  StepSimulation(const RankTraffic& traffic, const ComputeTimes& compute, const LinkSpeeds& speeds,
                 int64_t local_ranks)
      : traffic_(traffic), compute_times_(compute), speeds_(speeds), local_ranks_(local_ranks) {
    gathered_.resize(traffic.groups.size(), 0);
    fresh_.resize(traffic.groups.size(), false);
  }

  void step(int64_t accumulation) {
    result_ = {};
    small(1);
    const size_t groups = traffic_.groups.size();
    for (int64_t micro = 0; micro < accumulation; ++micro) {
      for (size_t g = 0; g < groups; ++g) {
        use(g);
        if (g + 1 < groups) fetch(g + 1);
        run(forward_seconds(g));
      }
      for (size_t g = groups; g-- > 0;) {
        use(g);
        if (g > 0) fetch(g - 1);
        const bool in_ring = traffic_.groups[g].exchange_early.inside.calls > 0;
        if (in_ring) wait(ring_free_[g % 2], result_.reduce_waits);
        run(backward_seconds(g));
        reduce(g, micro + 1 == accumulation);
      }
    }
    wait(reduce_, result_.reduce_waits);
    small(traffic_.small.calls - 1);
    resident_[0] = resident_[1] = groups;
    for (size_t g = 0; g < groups; ++g) {
      run(compute_times_.per_updated_element * static_cast<double>(traffic_.groups[g].updated_elements));
      gather_kept(g);
      if (g == 1 || g == 2) fetch(g);
    }
  }
  double now() const { return compute_; }
  const StepForecast& result() const { return result_; }

 private:
  bool is_layer(size_t g) const { return g > 0 && g + 1 < traffic_.groups.size(); }
  double forward_seconds(size_t g) const { return is_layer(g) ? compute_times_.layer_forward : 0; }
  // The head computes its loss and its gradients in one go.
  double backward_seconds(size_t g) const {
    if (is_layer(g)) return compute_times_.layer_backward;
    return g > 0 ? compute_times_.head : 0;
  }

  void run(double seconds) {
    compute_ += seconds;
    result_.compute += seconds;
  }
  void wait(double until, double& waits) {
    waits += std::max(0.0, until - compute_);
    compute_ = std::max(compute_, until);
  }
  void small(int64_t calls) {
    calls = std::min(calls, traffic_.small.calls);
    if (calls <= 0) return;
    Transfer transfer = traffic_.small;
    transfer.bytes *= static_cast<double>(calls) / static_cast<double>(traffic_.small.calls);
    transfer.calls = calls;
    const double seconds =
        transfer_seconds(transfer, CollectiveKind::Gather, traffic_.sharding.ranks, local_ranks_, speeds_);
    compute_ += seconds;
    result_.small += seconds;
  }

  double seconds_of(const GroupTransfer& transfer, CollectiveKind kind, double& bytes) {
    const Sharding& s = traffic_.sharding;
    bytes += transfer.inside.bytes + transfer.between.bytes;
    // Groups are nodes or parts of one; what goes between groups leaves the node.
    const int64_t local = std::min(local_ranks_, s.group);
    if (local < s.group) {
      result_.between_nodes +=
          transfer.inside.bytes * static_cast<double>(s.group - local) / static_cast<double>(s.group - 1);
    }
    const int64_t groups_per_node = std::max<int64_t>(1, local_ranks_ / s.group);
    if (groups_per_node < s.groups()) {
      result_.between_nodes += transfer.between.bytes * static_cast<double>(s.groups() - groups_per_node) /
                               static_cast<double>(s.groups() - 1);
    }
    return transfer_seconds(transfer.inside, kind, s.group, local_ranks_, speeds_) +
           transfer_seconds(transfer.between, kind, s.groups(), groups_per_node, speeds_);
  }

  void fetch(size_t g) {
    const GroupTransfer& transfer = traffic_.groups[g].gather_per_layer;
    if (transfer.inside.calls == 0 || resident_[g % 2] == g) return;
    const double seconds = seconds_of(transfer, CollectiveKind::Gather, result_.gather_bytes);
    gather_ = std::max(gather_, compute_) + seconds;
    result_.gather += seconds;
    fetched_[g % 2] = gather_;
    resident_[g % 2] = g;
    fresh_[g] = true;
  }
  void use(size_t g) {
    fetch(g);
    if (traffic_.groups[g].gather_per_layer.inside.calls > 0) wait(fetched_[g % 2], result_.gather_waits);
    if (fresh_[g]) wait(gathered_[g], result_.gather_waits);
    fresh_[g] = false;
  }
  void gather_kept(size_t g) {
    const GroupTransfer& transfer = traffic_.groups[g].gather_kept;
    if (transfer.inside.calls + transfer.between.calls == 0) return;
    const double seconds = seconds_of(transfer, CollectiveKind::Gather, result_.gather_bytes);
    gather_ = std::max(gather_, compute_) + seconds;
    result_.gather += seconds;
    gathered_[g] = gather_;
    fresh_[g] = true;
  }
  void reduce(size_t g, bool last) {
    const GroupTraffic& group = traffic_.groups[g];
    const GroupTransfer& transfer = last ? group.exchange : group.exchange_early;
    if (transfer.inside.calls + transfer.between.calls == 0) return;
    double seconds = seconds_of(transfer, CollectiveKind::Exchange, result_.reduce_bytes);
    if (last) seconds += seconds_of(group.gather_sums, CollectiveKind::Gather, result_.reduce_bytes);
    reduce_ = std::max(reduce_, compute_) + seconds;
    result_.reduce += seconds;
    ring_free_[g % 2] = reduce_;
  }

  const RankTraffic& traffic_;
  const ComputeTimes& compute_times_;
  const LinkSpeeds& speeds_;
  const int64_t local_ranks_;
  double compute_ = 0, gather_ = 0, reduce_ = 0;
  double fetched_[2] = {0, 0}, ring_free_[2] = {0, 0};
  size_t resident_[2] = {SIZE_MAX, SIZE_MAX};
  std::vector<double> gathered_;
  std::vector<bool> fresh_;
  StepForecast result_;
};

}  // namespace

StepForecast forecast_step(const RankTraffic& traffic, const ComputeTimes& compute, const LinkSpeeds& speeds,
                           int64_t accumulation, int64_t local_ranks) {
  // The second step begins as the first one left the queues.
  StepSimulation simulation(traffic, compute, speeds, local_ranks);
  simulation.step(accumulation);
  const double begin = simulation.now();
  simulation.step(accumulation);
  StepForecast result = simulation.result();
  result.step = simulation.now() - begin;
  const double travels = result.gather + result.reduce;
  const double hidden = std::max(0.0, travels - result.gather_waits - result.reduce_waits);
  result.slowdown = speeds.compute_slowdown * std::min(hidden, result.compute);
  result.step += result.slowdown;
  if (traffic.sharding.ranks > 1) {
    result.stragglers = speeds.step_spread *
                        std::sqrt(2 * std::log(static_cast<double>(traffic.sharding.ranks))) * result.step;
    result.step += result.stragglers;
  }
  return result;
}

}  // namespace octet
