#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dist/ranks.h"
#include "model/transformer.h"

namespace octet {

enum class CollectiveKind { Gather, Exchange };

struct CommBenchOptions {
  int64_t warmup = 3;
  int64_t repeats = 20;
};

// One of a run's collectives as measured: the slowest rank's time per call.
struct CommResult {
  std::string name;  // "weights of a layer"
  CollectiveKind kind = CollectiveKind::Gather;
  int members = 1;
  double bytes = 0;  // that a rank receives from others per call
  double ms = 0;     // alone
  // On a GPU: while products of the layer's largest matrix run on the compute queue.
  std::optional<double> ms_beside_gemm;
  std::optional<double> gemm_slowdown;  // of these products, 0: none
  double busbw_gb() const { return ms > 0 ? bytes / ms / 1e6 : 0; }
};

struct CommReport {
  std::string engine, device, mode;
  RankPlace place;
  std::vector<CommResult> results;
};

// Measures what RankSync would queue for one layer of `planned`, a Transformer that need not be allocated: the gather of
// its weights, the exchange of its gradients, both also between nodes with hsdp, and the gather of a step's records. All
// ranks call it. Takes memory for these tensors only.
CommReport bench_comm(Transformer& planned, Device& device, Ranks& ranks,
                      const CommBenchOptions& options = {});

nlohmann::json comm_json(const CommReport& report);
std::string comm_text(const CommReport& report);

}  // namespace octet
