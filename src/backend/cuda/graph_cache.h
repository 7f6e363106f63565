#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "backend/cuda/cuda_check.h"
#include "ops/device.h"

namespace octet {

// CUDA graphs of repeated work, by signature. The first time, work runs op by op, which also does the tuning of first
// use. The second time it is recorded. From then on the recording is launched. Work that cannot be recorded continues
// to run op by op. The least recently used recordings make room for new ones.
class GraphCache {
 public:
  explicit GraphCache(cudaStream_t stream) : stream_(stream) {}

  void run(const std::string& signature, const std::function<void()>& work);
  const GraphCounts& counts() const { return counts_; }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Executable = std::unique_ptr<CUgraphExec_st, Destroy>;
  struct Entry {
    std::string signature;
    Executable graph;  // absent until the second time
    bool recordable = true;
  };

  Executable record(const std::function<void()>& work);

  // A micro-step of ranks is recorded in pieces, two per layer: there must be room for all of them, in two variants.
  static constexpr size_t kMost = 512;
  cudaStream_t stream_;
  std::list<Entry> entries_;  // most recently used first
  GraphCounts counts_;
};

}  // namespace octet
