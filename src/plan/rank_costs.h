#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "dist/ranks.h"
#include "model/transformer.h"

// What communication between ranks costs, computed before any rank exists: bytes from the plan of a rank, seconds from
// bandwidths, and a step of the schedule that RankSync queues. All seconds are predictions.

namespace octet {

// What a rank receives from others in one collective, and how many collectives that takes.
struct Transfer {
  double bytes = 0;
  int64_t calls = 0;
  Transfer& operator+=(const Transfer& other) { return bytes += other.bytes, calls += other.calls, *this; }
};
// The same, inside the group of ranks and between groups (only hsdp has several).
struct GroupTransfer {
  Transfer inside, between;
  GroupTransfer& operator+=(const GroupTransfer& other) {
    inside += other.inside;
    between += other.between;
    return *this;
  }
};

// What one ParameterGroup of a Transformer sends, as RankSync queues it.
struct GroupTraffic {
  std::string name;
  GroupTransfer gather_kept;       // after the optimizer, once per step
  GroupTransfer gather_per_layer;  // before the layer is computed with
  GroupTransfer exchange;          // gradients, after the last micro-batch
  GroupTransfer exchange_early;    // after the other micro-batches
  GroupTransfer gather_sums;       // of gradients, if every rank updates all weights
  int64_t updated_elements = 0;    // that this rank's optimizer updates
};
struct RankTraffic {
  Sharding sharding;
  std::vector<GroupTraffic> groups;
  Transfer small;  // counts, records and FP8 slots of a step
};
RankTraffic rank_traffic(Transformer& transformer);

// Speeds as seen by one rank. Bandwidths are bus bandwidths in GB/s: bytes that a rank receives from others per second.
struct LinkSpeeds {
  double node_gb = 330;            // all-gather and exchange inside a node
  double network_gb = 46;          // of one rank's network adapter
  double node_latency_us = 20;     // of a collective inside a node
  double network_latency_us = 8;   // more for each rank or node that a collective over the network passes
  double compute_slowdown = 0.35;  // of computation while something travels; 0: none
  double step_spread = 0.01;       // standard deviation of a rank's step time; all wait for the slowest
};

// The speeds that 'octet bench --comm --json' has measured, in `path`; `speeds` where it has none. Error if the file is
// something else.
LinkSpeeds read_link_speeds(const std::string& path, LinkSpeeds speeds);

enum class CollectiveKind { Gather, Exchange };
// Seconds of collectives of `members` ranks, of which `members_per_node` are on each node. A gather sends what other
// nodes need through all adapters of a node together. In an exchange every rank sends each part to another rank, so its
// own adapter carries all that goes to other nodes.
double transfer_seconds(const Transfer& transfer, CollectiveKind kind, int64_t members,
                        int64_t members_per_node, const LinkSpeeds& speeds);

// Seconds of computation of one rank, without any waiting.
struct ComputeTimes {
  double layer_forward = 0, layer_backward = 0;  // of one layer and one micro-batch
  double head = 0;                               // forward and backward
  double per_updated_element = 0;                // of the optimizer
};

struct StepForecast {
  double step = 0;          // seconds
  double compute = 0;       // of it, computation and optimizer
  double gather = 0;        // seconds that gathers take on their queue
  double reduce = 0;        // likewise of gradients
  double small = 0;         // counts, records and slots, which nothing hides
  double gather_waits = 0;  // of computation for weights
  double reduce_waits = 0;  // of computation for gradients
  double slowdown = 0;      // of computation by what travels at the same time
  double stragglers = 0;    // waiting for the slowest rank
  // Bytes that a rank receives in a step; `between_nodes` of them over the network.
  double gather_bytes = 0, reduce_bytes = 0, between_nodes = 0;
  double efficiency() const { return step > 0 ? std::min(1.0, compute / step) : 1; }
};
// A step in the middle of a run, of `accumulation` micro-batches, on ranks of which `local_ranks` are on each node. Follows
// the three queues of RankSync: computation, gathers, gradients.
StepForecast forecast_step(const RankTraffic& traffic, const ComputeTimes& compute, const LinkSpeeds& speeds,
                           int64_t accumulation, int64_t local_ranks);

}  // namespace octet
